from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.spooling import spool_rows

from hanse.errors import LocalError
from hanse.pipeline.jobs.ingest import Ingest, start
from hanse.pipeline.schemas import mqtt
from hanse.pipeline.tables import StoredTable, bronze, checkpoint_id

pytestmark = pytest.mark.spark

NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def numbers(spark: SparkSession, first: int, count: int) -> DataFrame:
    return spark.range(first, first + count).withColumnRenamed("id", "n")


def found(spark: SparkSession, table: StoredTable) -> list[int]:
    return sorted(row.n for row in table.read(spark).collect())


def test_a_missing_table_reads_as_empty(spark: SparkSession, tmp_path: Path) -> None:
    table = StoredTable(tmp_path / "t", NUMBERS)
    assert found(spark, table) == []
    assert (table.rows(), table.files(), table.last_batch("a"), table.vacuum()) == (0, [], None, 0)
    assert table.compact()["numFilesAdded"] == 0


def test_a_batch_is_added_once_however_often_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    table = StoredTable(tmp_path / "a table", NUMBERS)
    first = table.append(numbers(spark, 0, 5), app_id="a", batch_id=0)
    again = table.append(numbers(spark, 0, 5), app_id="a", batch_id=0)
    assert (first.rows, first.skipped, again.rows, again.skipped) == (5, False, 0, True)
    table.append(numbers(spark, 5, 5), app_id="a", batch_id=1)
    # Another checkpoint counts from 0 again, under its own id.
    table.append(numbers(spark, 10, 5), app_id="b", batch_id=0)
    assert found(spark, table) == list(range(15))
    assert (table.rows(), table.last_batch("a"), table.last_batch("b")) == (15, 1, 0)
    assert DeltaTable(str(table.path)).to_pyarrow_table().num_rows == 15


def test_an_empty_batch_is_also_recorded(spark: SparkSession, tmp_path: Path) -> None:
    table = StoredTable(tmp_path / "t", NUMBERS)
    assert table.append(numbers(spark, 0, 0), app_id="a", batch_id=7).files == 0
    assert table.last_batch("a") == 7


def test_replacing_shows_the_old_rows_or_the_new_ones(spark: SparkSession, tmp_path: Path) -> None:
    table = StoredTable(tmp_path / "t", NUMBERS)
    table.append(numbers(spark, 0, 5), app_id="a", batch_id=0)
    done = table.replace(numbers(spark, 100, 3), app_id="a", batch_id=1)
    assert found(spark, table) == [100, 101, 102]
    assert sorted(row.n for row in table.read(spark, version=done.version - 1).collect()) == list(range(5))


@pytest.mark.slow
def test_two_drivers_with_one_batch_commit_it_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = StoredTable(tmp_path / "t", NUMBERS)
    other = StoredTable(tmp_path / "t", NUMBERS)
    table.append(numbers(spark, 0, 1), app_id="a", batch_id=0)
    commit = StoredTable._commit

    def commit_second(self: StoredTable, *arguments: Any) -> None:
        if self is table:
            other.append(numbers(spark, 5, 5), app_id="a", batch_id=1)
        commit(self, *arguments)

    monkeypatch.setattr(StoredTable, "_commit", commit_second)
    assert table.append(numbers(spark, 5, 5), app_id="a", batch_id=1).skipped
    assert found(spark, table) == [0, 5, 6, 7, 8, 9]


@pytest.mark.slow
def test_compaction_joins_files_and_keeps_rows_and_batches(spark: SparkSession, tmp_path: Path) -> None:
    table = StoredTable(tmp_path / "t", NUMBERS)
    for batch in range(6):
        table.append(numbers(spark, batch * 10, 10), app_id="a", batch_id=batch)
    before = len(table.files())
    table.compact()
    assert len(table.files()) < before
    assert found(spark, table) == list(range(60))
    assert table.last_batch("a") == 5
    table.append(numbers(spark, 60, 10), app_id="a", batch_id=6)
    assert table.append(numbers(spark, 60, 10), app_id="a", batch_id=6).skipped
    assert found(spark, table) == list(range(70))


@pytest.mark.slow
def test_vacuum_removes_unneeded_files_and_orphans_but_not_too_early(spark: SparkSession, tmp_path: Path) -> None:
    table = StoredTable(tmp_path / "t", NUMBERS)
    for batch in range(3):
        table.append(numbers(spark, batch * 10, 10), app_id="a", batch_id=batch)
    table._write_parquet(numbers(spark, 0, 10), 3)
    table.compact()
    with pytest.raises(LocalError, match="at least 3600 s"):
        table.vacuum(0)
    assert table.vacuum() == 0
    assert table.vacuum(0, now=True) >= 4
    assert found(spark, table) == list(range(30))
    assert not list((table.path / "data").iterdir())


def test_a_table_with_other_columns_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    StoredTable(tmp_path / "t", NUMBERS).append(numbers(spark, 0, 1), app_id="a", batch_id=0)
    with pytest.raises(LocalError, match="has the columns n int64, but producer string"):
        StoredTable(tmp_path / "t", mqtt.ROW).append(numbers(spark, 0, 1), app_id="a", batch_id=1)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (["cast(n as int) n"], "unexpected n int; missing none"),
        (["n m"], "unexpected m bigint; missing n bigint"),
        (["n", "n"], "unexpected n twice"),
        (["n", "n + 1 more"], "unexpected more bigint"),
    ],
)
def test_a_frame_with_other_columns_is_refused_before_it_is_written(
    spark: SparkSession, tmp_path: Path, columns: list[str], complaint: str
) -> None:
    table = StoredTable(tmp_path / "t", NUMBERS)
    with pytest.raises(LocalError, match=complaint):
        table.append(numbers(spark, 0, 5).selectExpr(*columns), app_id="a", batch_id=0)
    assert table.rows() == 0
    assert not table.data.exists()


def test_columns_in_another_order_are_put_into_the_order_of_the_table(spark: SparkSession, tmp_path: Path) -> None:
    table = StoredTable(tmp_path / "t", NUMBERS.append(pa.field("s", pa.string())))
    table.append(spark.sql("select 'a' s, 1L n"), app_id="a", batch_id=0)
    assert table.read(spark).columns == ["n", "s"]


def test_a_null_in_a_required_column_is_refused_and_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    table = StoredTable(tmp_path / "t", NUMBERS)
    with pytest.raises(LocalError, match="1 of 3 rows for the table t have a null in n"):
        table.append(spark.sql("select if(id = 1, null, id) n from range(3)").coalesce(1), app_id="a", batch_id=0)
    assert table.rows() == 0
    assert not list(table.data.rglob("*.parquet"))
    assert not table.append(numbers(spark, 0, 3), app_id="a", batch_id=0).skipped


def test_a_condition_opens_only_files_that_may_match(spark: SparkSession, tmp_path: Path) -> None:
    schema = NUMBERS.append(pa.field("at", pa.timestamp("us", tz="UTC"))).append(pa.field("s", pa.string()))
    table = StoredTable(tmp_path / "t", schema)
    for hour in range(10):
        frame = spark.sql(
            f"select id n, timestamp '2026-01-01 0{hour}:30:00Z' at, 's{hour}' s from range({hour}, {hour + 2})"
        )
        table.append(frame.coalesce(1), app_id="a", batch_id=hour)
    for where, files, rows in (
        ("n >= 9", 2, 3),
        ("at >= '2026-01-01T08:00:00Z'", 2, 4),
        ("s = 's3' and n = 4", 1, 1),
        ("n > 100", 0, 0),
    ):
        assert len(table.files(where=where)) == files, where
        assert table.read(spark, where=where).count() == rows, where
    table.compact()
    assert table.read(spark, where="n >= 9").count() == 3


def test_a_new_nullable_column_is_added_to_a_table_and_null_in_older_rows(spark: SparkSession, tmp_path: Path) -> None:
    StoredTable(tmp_path / "t", NUMBERS).append(numbers(spark, 0, 2), app_id="a", batch_id=0)
    grown = StoredTable(tmp_path / "t", NUMBERS.append(pa.field("s", pa.string())))
    grown.append(spark.sql("select 7L n, 'new' s"), app_id="a", batch_id=1)
    assert sorted((row.n, row.s) for row in grown.read(spark).collect()) == [(0, None), (1, None), (7, "new")]
    # A writer of the older version would write rows without that value, so it is refused.
    with pytest.raises(LocalError, match="but n int64 were expected"):
        StoredTable(tmp_path / "t", NUMBERS).append(numbers(spark, 8, 1), app_id="a", batch_id=2)
    required = NUMBERS.append(pa.field("s", pa.string())).append(pa.field("must", pa.int64(), nullable=False))
    with pytest.raises(LocalError, match="Only nullable columns can be added"):
        StoredTable(tmp_path / "t", required).append(numbers(spark, 9, 1), app_id="a", batch_id=2)


class InjectedError(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
def test_a_crash_between_spark_and_the_log_adds_each_row_exactly_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    spool_rows(tmp_path / "spool", "p", [1000] * 5)
    ingest = Ingest(tmp_path / "lake", {"spool": str(tmp_path / "spool"), "maxRowsPerBatch": "2000"})
    commit = StoredTable._commit
    crashed: list[int] = []

    def crash_once(self: StoredTable, *arguments: Any) -> None:
        batch_id = arguments[-1]
        crash = batch_id == 1 and not crashed
        if not crash or when == "after the commit":
            commit(self, *arguments)
        if crash:
            crashed.append(batch_id)
            raise InjectedError

    monkeypatch.setattr(StoredTable, "_commit", crash_once)
    query = start(spark, ingest, once=True)
    with pytest.raises(Exception, match="InjectedError"):
        query.awaitTermination()
    assert crashed == [1]
    start(spark, ingest, once=True).awaitTermination()

    table = bronze(ingest.warehouse)
    seqs = sorted(row.seq for row in table.read(spark).select("seq").collect())
    assert seqs == list(range(5000))
    assert table.last_batch(checkpoint_id(ingest.checkpoint)) == 2


def test_a_directory_that_is_not_a_checkpoint_is_reported(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="a checkpoint that this process can read"):
        checkpoint_id(tmp_path)
