import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.pipeline.spooling import spool_rows

from hanse.errors import LocalError, Unavailable
from hanse.pipeline.jobs.ingest import STARTS_MAX, Ingest, Progress, explain, follow, read_progress, start, watch
from hanse.pipeline.spool import load_marks
from hanse.pipeline.tables import bronze

pytestmark = pytest.mark.spark


def test_ingest_moves_the_whole_spool_to_bronze_and_reports_progress(spark: SparkSession, tmp_path: Path) -> None:
    spool_rows(tmp_path / "spool", "p", [100] * 5)
    spool_rows(tmp_path / "spool", "q", [7])
    ingest = Ingest(tmp_path / "lake", {"spool": str(tmp_path / "spool"), "maxRowsPerBatch": "200"})
    told: list[Progress] = []
    follow(lambda: start(spark, ingest, once=True), told.append)
    assert sum(one.rows for one in told) == 507
    assert (told[0].lag_rows, told[-1].lag_rows) == (507 - told[0].rows, 0)
    table = bronze(ingest.warehouse)
    assert table.rows() == 507
    keys = {(row.producer, row.seq) for row in table.read(spark).select("producer", "seq").collect()}
    assert keys == {("p", n) for n in range(500)} | {("q", n) for n in range(7)}
    assert set(load_marks(tmp_path / "spool")) == {"bronze_mqtt"}

    spool_rows(tmp_path / "spool", "p", [50])
    follow(lambda: start(spark, ingest, once=True), told.append)
    assert table.rows() == 557

    # After compaction by delta-rs, the table reads the same: times, bytes and nested properties.
    before = sorted(table.read(spark).collect())
    assert table.compact()["numFilesRemoved"] > 1
    assert sorted(table.read(spark).collect()) == before


@pytest.mark.slow
def test_a_query_that_fails_says_why_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    spool_rows(tmp_path / "spool", "p", [10])
    path = next((tmp_path / "spool" / "p").glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    query = start(spark, Ingest(tmp_path / "lake", {"spool": str(tmp_path / "spool")}), once=True)
    with pytest.raises(LocalError, match="checksum does not match") as caught:
        watch(query, lambda _: None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("observed", "rows"),
    [
        ({"bronze_mqtt": {"rows": 4000}}, 4000),  # classic
        ({"bronze_mqtt": {"values": [4000], "schema": {"type": "struct"}}}, 4000),  # over Connect
        ({"bronze_mqtt": {"values": [None], "schema": {"type": "struct"}}}, 0),  # no file
        ({}, 7),
    ],
)
def test_progress_is_read_in_the_forms_of_classic_and_connect(observed: dict[str, object], rows: int) -> None:
    def offset(count: int) -> str:
        return json.dumps({"p": {"seg": 1, "pos": 8, "rows": count}})

    source = {"endOffset": offset(4000), "latestOffset": offset(10_000), "numInputRows": 7}
    told = {"batchId": 3, "sources": [source], "durationMs": {"triggerExecution": 2000}, "observedMetrics": observed}
    assert read_progress(SimpleNamespace(json=json.dumps(told))) == Progress(3, rows, rows / 2, 6000)


def test_other_spark_errors_are_cut_to_a_sentence() -> None:
    assert str(explain(ValueError("first\nsecond"))) == "The query failed: first"
    assert str(explain(ValueError())) == "The query failed: ValueError"


class Late:
    """Query whose Python process did not connect in time."""

    recentProgress: tuple[object, ...] = ()  # noqa: N815 - Spark's name

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802, ARG002 - Spark's name
        raise StreamingQueryException("[STREAM_FAILED] Python worker failed to connect back. SQLSTATE: XXKST")

    def stop(self) -> None:
        pass


@pytest.mark.slow
def test_a_query_whose_python_process_was_late_is_restarted(spark: SparkSession, tmp_path: Path) -> None:
    spool_rows(tmp_path / "spool", "p", [10])
    ingest = Ingest(tmp_path / "lake", {"spool": str(tmp_path / "spool")})
    late = [Late()] * (STARTS_MAX - 1)

    def begin() -> StreamingQuery:
        if len(late) == 1:
            late.pop()
            raise SparkConnectGrpcException("Python worker failed to connect back.")
        return late.pop() if late else start(spark, ingest, once=True)  # type: ignore[return-value]

    told: list[Progress] = []
    said: list[str] = []
    follow(begin, told.append, said.append)
    assert ([one.rows for one in told], len(said)) == ([10], STARTS_MAX - 1)
    late += [Late()] * STARTS_MAX
    with pytest.raises(Unavailable, match="the machine is busy"):
        follow(begin, told.append)

    def refused() -> StreamingQuery:
        raise SparkConnectGrpcException("something else")

    with pytest.raises(SparkConnectGrpcException, match="something else"):
        follow(refused, told.append)
