# ruff: noqa: N802 - the methods have Spark's names
"""The ingest's way through the source: a task writes what it reads as a Parquet file and yields the file's name.

The rows go from the spool's Arrow blocks to Parquet in the task, in Arrow's own code. The source `mqtt` hands rows to
the JVM, as any query wants them, and there they become Spark's rows and then Parquet: three times the work, for
rows that nobody looks at on the way. Offsets, limits, tasks and checks are those of `mqtt`. Rules:

1. A try of a task writes a file of its own. Only files whose names reach the driver are committed, so what a failed
   or a second try left is in no version of the table, and `vacuum` removes it.
2. A task holds at most one row group in memory, whatever it reads.
3. A task without a row writes no file.
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

# The option that names the directory; the others are those of `mqtt`.
INTO = "into"

# A task holds this much before it is written. Larger row groups scan faster, smaller ones bound the memory of a task
# and are skipped more finely; Parquet's own advice of 512 MiB is for machines that do nothing else.
ROW_GROUP_BYTES = 32 * 1024 * 1024

# Columns whose values come again and again. A payload hardly ever does: to look for it costs a third of the writing.
_REPEATED = ("producer", "topic", "origin_broker", "properties.content_type", "properties.response_topic", "qos")


class MqttFilesSource(DataSource):
    """`format("mqtt_files")`: reads as `mqtt` does, and lands the rows as Parquet files in the directory `into`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        """What `format(...)` calls it."""
        return "mqtt_files"

    def schema(self) -> StructType:
        """A row is a file."""
        return from_arrow_schema(FILE)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `readStream`; there is no other way to read it."""
        del schema
        given = dict(self.options)
        into = given.pop(INTO, None)
        if into is None:
            raise LocalError(f"The source mqtt_files needs the option {INTO}: the directory for its Parquet files.")
        return MqttFilesReader(ReadOptions.parse(given), Path(into))


class MqttFilesReader(MqttStreamReader):
    """The reader of `mqtt` whose tasks land their rows."""

    def __init__(self, options: ReadOptions, into: Path) -> None:
        super().__init__(options)
        self._into = into

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need."""
        return super().__getstate__() | {"_into": self._into}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Land the rows of one task."""
        return land(read_rows(partition), self._into)


def land(batches: Iterator[pa.RecordBatch], into: Path) -> Iterator[pa.RecordBatch]:
    """Write rows to a new file in `into`, and yield its name and its rows; nothing if there are none."""
    groups = _grouped(batches)
    first = next(groups, None)
    if first is None:
        return
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"{uuid.uuid4().hex}.parquet"
    rows = 0
    # Stored nullable, as Spark writes every column, and as the table's own schema says.
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
