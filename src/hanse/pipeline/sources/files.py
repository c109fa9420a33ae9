# ruff: noqa: N802 - the methods have Spark's names
"""Source for the ingest: each task writes its rows to a Parquet file and yields the file's name.

A task converts the spool's Arrow blocks to Parquet directly, in Arrow's own code. The source `mqtt` must pass rows to
the JVM, where they become Spark rows and then Parquet: three times the work, for rows that nothing reads on the way.
Offsets, limits, tasks and checks are those of `mqtt`. Rules:

1. Each attempt of a task writes a file of its own. Only files whose names reach the driver are committed. Files of a
   failed or repeated attempt are in no version of the table, and `vacuum` removes them.
2. A task holds at most one row group in memory, however much it reads.
3. A task without rows writes no file.
"""

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from hanse.errors import LocalError
from hanse.pipeline.schemas import mqtt as contract
from hanse.pipeline.sources.options import ReadOptions
from hanse.pipeline.sources.rows import read_rows
from hanse.pipeline.sources.stream import MqttStreamReader

FILE = pa.schema([pa.field("path", pa.string(), nullable=False), pa.field("rows", pa.int64(), nullable=False)])

# Option for the target directory; the other options are those of `mqtt`.
INTO = "into"

# A task collects this many bytes before it writes them. Larger row groups scan faster; smaller ones bound a task's
# memory and allow finer skipping. Parquet's own advice of 512 MiB is for machines that do nothing else.
ROW_GROUP_BYTES = 32 * 1024 * 1024

# Columns with recurring values, which get a dictionary. Payloads hardly ever recur, and searching them for repetition
# takes a third of the writing time.
_REPEATED = ("producer", "topic", "origin_broker", "properties.content_type", "properties.response_topic", "qos")


class MqttFilesSource(DataSource):
    """Data source `mqtt_files`: reads like `mqtt` and writes the rows as Parquet files to the directory `into`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "mqtt_files"

    def schema(self) -> StructType:
        """Return the schema: one row per file."""
        return from_arrow_schema(FILE)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Create the reader for `readStream`; the source supports nothing else."""
        del schema
        given = dict(self.options)
        into = given.pop(INTO, None)
        if into is None:
            raise LocalError(f"The source mqtt_files needs the option {INTO}: the directory for its Parquet files.")
        return MqttFilesReader(ReadOptions.parse(given), Path(into))


class MqttFilesReader(MqttStreamReader):
    """Reader of `mqtt` whose tasks write Parquet files."""

    def __init__(self, options: ReadOptions, into: Path) -> None:
        super().__init__(options)
        self._into = into

    def __getstate__(self) -> dict[str, Any]:
        """Add the target directory to the state that tasks need."""
        return super().__getstate__() | {"_into": self._into}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write the rows of one task."""
        return land(read_rows(partition), self._into)


def land(batches: Iterator[pa.RecordBatch], into: Path) -> Iterator[pa.RecordBatch]:
    """Write rows to a new file in `into` and yield its name and row count; yield nothing if there are no rows."""
    groups = _grouped(batches)
    first = next(groups, None)
    if first is None:
        return
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"{uuid.uuid4().hex}.parquet"
    rows = 0
    # All columns are nullable, as in files that Spark writes and in the table's own schema.
    stored = pa.schema([field.with_nullable(True) for field in contract.ROW])
    with pq.ParquetWriter(path, stored, compression="snappy", use_dictionary=list(_REPEATED)) as writer:
        for group in (first, *groups):
            table = pa.Table.from_batches(group)
            rows += table.num_rows
            writer.write_table(table.cast(stored), row_group_size=table.num_rows)
    yield pa.RecordBatch.from_arrays([pa.array([str(path)]), pa.array([rows], pa.int64())], schema=FILE)


def _grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held
