"""Live alarms: the decision alone, and the query in a real session."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.tws_tester import TwsTester

from hanse.errors import LocalError
from hanse.pipeline.jobs.alarms import Alarms, alarms_table, describe, start
from hanse.pipeline.jobs.ingest import follow
from hanse.pipeline.schemas.mqtt import PROPERTIES, SPOOLED_ROW
from hanse.pipeline.spool import SpoolWriter
from hanse.pipeline.transforms.live_alarms import Silence
from hanse.telemetry.topic import topic_for

START = datetime(2026, 1, 1, tzinfo=UTC)


def heard(*seconds: float) -> list[Row]:
    return [Row(reporter="1", received_at=START + timedelta(seconds=second)) for second in seconds]


def judged_by(**settings: float) -> TwsTester:
    def time_ms(row: Row) -> int:
        at: datetime = row["received_at"]
        return round(at.timestamp() * 1000)

    return TwsTester(Silence(**settings), timeMode="EventTime", eventTimeExtractor=time_ms)


def told(rows: Any) -> list[tuple[str, float, float]]:
    return [(row.alarm, (row.at - START).total_seconds(), row.silent_s) for row in rows]


def pass_to(test: TwsTester, second: float) -> list[tuple[str, float, float]]:
    return told(test.setWatermark(round((START + timedelta(seconds=second)).timestamp() * 1000)))


def test_regular_reports_raise_no_alarm() -> None:
    test = judged_by(silent_s=10)
    assert told(test.test("1", heard(0, 2, 4))) == []
    assert pass_to(test, 13) == []
    assert told(test.test("1", heard(14))) == []
    assert pass_to(test, 20) == []


def test_silence_and_return_are_each_reported_once() -> None:
    test = judged_by(silent_s=10)
    test.test("1", heard(0, 2))
    assert pass_to(test, 12.5) == [("silent", 12, 10)]
    assert pass_to(test, 60) == []
    assert told(test.test("1", heard(62))) == [("back", 62, 60)]
    assert pass_to(test, 73) == [("silent", 72, 10)]


def test_a_gap_within_one_batch_gives_the_same_alarms_as_two_batches() -> None:
    test = judged_by(silent_s=10)
    assert told(test.test("1", heard(31, 0, 30))) == [("silent", 10, 10), ("back", 30, 30)]
    assert pass_to(test, 40) == []


def test_each_reporter_is_judged_separately() -> None:
    test = judged_by(silent_s=10)
    test.test("1", heard(0))
    test.test("2", heard(9))
    assert pass_to(test, 11) == [("silent", 10, 10)]
    assert pass_to(test, 20) == [("silent", 19, 10)]


def test_a_reporter_silent_for_a_day_is_forgotten() -> None:
    test = judged_by(silent_s=10, forget_s=100)
    test.test("1", heard(0))
    pass_to(test, 11)
    assert test.peekValueState("seen", "1") is not None
    assert pass_to(test, 101) == []
    assert test.peekValueState("seen", "1") is None
    assert told(test.test("1", heard(200))) == []


def test_an_alarm_is_a_line_and_a_wait_out_of_bounds_is_refused() -> None:
    row = Row(at=START, reporter="7", alarm="back", silent_s=12.34)
    assert describe(row) == "2026-01-01 00:00:00 7 is back after 12.3 s"
    with pytest.raises(LocalError, match="1 s to a day"):
        Alarms(Path("w"), Path("s"), silent_s=0.1)


def spool_telemetry(root: Path, rows: list[tuple[float, str]]) -> None:
    """Write one block of telemetry rows, each `(second, topic)`."""
    times_us = [round((START + timedelta(seconds=second)).timestamp() * 1_000_000) for second, _ in rows]
    with SpoolWriter(root, "p") as writer:
        first, count = writer.position.rows, len(rows)
        arrays = [
            pa.array(["p"] * count),
            pa.array(range(first, first + count), pa.int64()),
            pa.array(times_us, pa.timestamp("us", tz="UTC")),
            pa.array([topic for _, topic in rows]),
            pa.array([b""] * count, pa.binary()),
            pa.array([1] * count, pa.int32()),
            *[pa.array([False] * count)] * 2,
            pa.nulls(count, PROPERTIES),
            *[pa.nulls(count, pa.string())] * 2,
            *[pa.nulls(count, pa.int32())] * 2,
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=SPOOLED_ROW)
        writer.append(batch, received_us_min=min(times_us), received_us_max=max(times_us))


@pytest.mark.slow
@pytest.mark.spark
def test_the_query_reports_a_federator_that_fell_silent_and_its_return(spark: SparkSession, tmp_path: Path) -> None:
    one, two = topic_for("resource", "1"), topic_for("flow", "2")
    alarms = Alarms(tmp_path / "lake", tmp_path / "spool")
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)

    def watch(*rows: tuple[float, str]) -> list[tuple[str, str, float]]:
        spool_telemetry(tmp_path / "spool", list(rows))
        follow(lambda: start(spark, alarms, tell, once=True), lambda _: None)
        found = alarms_table(alarms.warehouse).read(spark).orderBy("at").collect()
        return [(row.reporter, row.alarm, row.silent_s) for row in found]

    assert watch((0, one), (1, two), (3, two), (2, "$hanse/telemetry/v1/flow/<b>"), (4, "plain/topic")) == []
    # New rows advance the stream's time; one batch later it has passed the alarm.
    watch((14, two))
    assert watch((15, two)) == [("1", "silent", 10.0), ("2", "silent", 10.0), ("2", "back", 11.0)]
    assert watch((16, one), (17, two))[-1] == ("1", "back", 16.0)
    assert len(alarms_table(alarms.warehouse).files()) > 0
