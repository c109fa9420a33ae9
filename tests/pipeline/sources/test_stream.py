"""The streaming reader as Spark calls it, but without Spark: the same object, the same calls."""

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from tests.pipeline.spooling import spool_rows

from hanse.pipeline.sources.options import ReadOptions
from hanse.pipeline.sources.stream import MqttStreamReader
from hanse.pipeline.spool import SpoolGoneError, load_marks


def reader(root: Path, **options: str) -> MqttStreamReader:
    return MqttStreamReader(ReadOptions.parse({"spool": str(root), **options}))


def rows_of(offset: dict[str, Any]) -> dict[str, int]:
    return {producer: position["rows"] for producer, position in offset.items()}


def read(source: MqttStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int]]:
    found = []
    for partition in source.partitions(start, end):
        # As in Spark, the task gets pickled copies.
        task_reader, task = pickle.loads(pickle.dumps((source, partition)))
        for batch in task_reader.read(task):
            found += list(zip(batch.column("producer").to_pylist(), batch.column("seq").to_pylist(), strict=True))
    return found


def drain(source: MqttStreamReader, limit: ReadLimit) -> tuple[list[tuple[str, int]], int]:
    start, found, batches = source.initialOffset(), [], 0
    while (end := source.latestOffset(start, limit)) != start:
        found += read(source, start, end)
        start = end
        batches += 1
    return found, batches


def test_every_row_of_every_producer_is_read_once_in_batches_of_the_limit(tmp_path: Path) -> None:
    spool_rows(tmp_path, "a", [50] * 20, segment_bytes_max=20_000)
    spool_rows(tmp_path, "b", [10] * 7)
    found, batches = drain(reader(tmp_path), ReadMaxRows(200))
    assert Counter(found) == Counter([("a", n) for n in range(1000)] + [("b", n) for n in range(70)])
    assert [seq for producer, seq in found if producer == "a"] == list(range(1000))
    assert batches >= 5


def test_a_limit_is_divided_so_that_a_large_producer_does_not_starve_a_small_one(tmp_path: Path) -> None:
    spool_rows(tmp_path, "large", [10] * 100)
    spool_rows(tmp_path, "small", [10] * 3)
    source = reader(tmp_path)
    end = source.latestOffset(source.initialOffset(), ReadMaxRows(100))
    assert rows_of(end) == {"large": 70, "small": 30}


def test_a_batch_is_also_limited_in_bytes(tmp_path: Path) -> None:
    ends = spool_rows(tmp_path, "p", [100] * 10)
    source = reader(tmp_path)
    start = source.initialOffset()
    assert rows_of(source.latestOffset(start, ReadMaxBytes(ends[3].pos))) == {"p": 400}
    assert rows_of(source.latestOffset(start, ReadMaxBytes(1))) == {"p": 100}
    assert rows_of(source.latestOffset(start, ReadAllAvailable())) == {"p": 1000}
    limited = reader(tmp_path, maxBytesPerBatch=str(ends[1].pos), maxRowsPerBatch="900")
    assert rows_of(limited.latestOffset(start, limited.getDefaultReadLimit())) == {"p": 200}


def test_the_latest_offset_is_reported_uncapped(tmp_path: Path) -> None:
    spool_rows(tmp_path, "p", [100] * 10)
    source = reader(tmp_path, maxRowsPerBatch="100")
    assert rows_of(source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())) == {"p": 100}
    assert rows_of(source.reportLatestOffset()) == {"p": 1000}


def test_an_empty_spool_has_nothing_to_read_until_a_producer_appears(tmp_path: Path) -> None:
    source = reader(tmp_path / "later")
    start = source.initialOffset()
    assert start == {} == source.latestOffset(start, ReadMaxRows(10))
    assert source.partitions(start, start) == []
    spool_rows(tmp_path / "later", "p", [5])
    end = source.latestOffset(start, ReadMaxRows(10))
    assert [seq for _, seq in read(source, start, end)] == [0, 1, 2, 3, 4]


def test_available_now_reads_only_rows_present_at_its_start(tmp_path: Path) -> None:
    spool_rows(tmp_path, "p", [100] * 3)
    source = reader(tmp_path)
    source.prepareForTriggerAvailableNow()
    spool_rows(tmp_path, "p", [100])
    spool_rows(tmp_path, "q", [100])
    found, _ = drain(source, ReadMaxRows(100))
    assert found == [("p", n) for n in range(300)]


@pytest.mark.parametrize(("starting", "rows"), [("earliest", 5), ("latest", 0), ("offset", 2)])
def test_a_query_begins_at_its_starting_offset(tmp_path: Path, starting: str, rows: int) -> None:
    ends = spool_rows(tmp_path, "p", [3, 2])
    if starting == "offset":
        starting = json.dumps({"p": ends[0].to_json()})
    found, _ = drain(reader(tmp_path, startingOffsets=starting), ReadMaxRows(10))
    assert len(found) == rows


def test_one_producer_can_be_chosen(tmp_path: Path) -> None:
    spool_rows(tmp_path, "p", [3])
    spool_rows(tmp_path, "q", [3])
    found, _ = drain(reader(tmp_path, clientId="q"), ReadMaxRows(10))
    assert {producer for producer, _ in found} == {"q"}


def test_topics_without_a_url_filter_the_rows(tmp_path: Path) -> None:
    spool_rows(tmp_path, "p", [20])
    found, _ = drain(reader(tmp_path, topics="plant/1,plant/3"), ReadMaxRows(100))
    assert [seq for _, seq in found] == [n for n in range(20) if n % 4 in {1, 3}]


def test_the_same_range_gives_the_same_tasks_after_more_rows_arrived(tmp_path: Path) -> None:
    spool_rows(tmp_path, "p", [50] * 4, segment_bytes_max=10_000)
    source = reader(tmp_path)
    start = source.initialOffset()
    end = source.latestOffset(start, ReadMaxRows(150))
    before = source.partitions(start, end)
    spool_rows(tmp_path, "p", [50] * 4, segment_bytes_max=10_000)
    assert reader(tmp_path).partitions(start, end) == before
    assert read(reader(tmp_path), start, end) == read(source, start, end)


def test_small_blocks_are_joined_into_one_batch(tmp_path: Path) -> None:
    spool_rows(tmp_path, "p", [1] * 60)
    source = reader(tmp_path)
    (partition,) = source.partitions({}, source.latestOffset({}, ReadMaxRows(100)))
    assert [batch.num_rows for batch in source.read(partition)] == [60]


def test_many_rows_are_cut_into_tasks_for_the_cores(tmp_path: Path) -> None:
    spool_rows(tmp_path, "p", [5000] * 16)
    source = reader(tmp_path, minPartitions="3")
    tasks = source.partitions({}, source.latestOffset({}, ReadMaxRows(100_000)))
    assert len(tasks) >= 3


def test_a_commit_saves_the_consumers_mark(tmp_path: Path) -> None:
    spool_rows(tmp_path, "p", [5])
    end = reader(tmp_path).latestOffset({}, ReadMaxRows(100))
    reader(tmp_path).commit(end)
    assert load_marks(tmp_path) == {}
    reader(tmp_path, consumer="bronze").commit(end)
    assert load_marks(tmp_path)["bronze"]["p"].rows == 5


def test_rows_deleted_before_they_were_read_stop_the_query_unless_configured_otherwise(tmp_path: Path) -> None:
    ends = spool_rows(tmp_path, "p", [5, 5, 5], segment_bytes_max=1)
    start = {"p": {"seg": 1, "pos": 0, "rows": 0}}
    min((tmp_path / "p").glob("*.seg")).unlink()
    with pytest.raises(SpoolGoneError, match="failOnDataLoss"):
        reader(tmp_path).latestOffset(start, ReadMaxRows(100))
    lenient = reader(tmp_path, failOnDataLoss="false")
    end = lenient.latestOffset(start, ReadMaxRows(100))
    assert end["p"] == ends[-1].to_json()
    assert [seq for _, seq in read(lenient, start, end)] == list(range(5, 15))
