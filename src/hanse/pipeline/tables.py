"""Tables: Spark writes the Parquet, delta-rs commits it. ACID and exactly once, without a jar.

Rules:

1. A batch is committed with `Transaction(app_id, batch_id)`. A batch whose id the table knows is not written again,
   so a replay after a crash, at whatever point, adds nothing.
2. Files that a crash left between the two are never read: readers see what the log names. `vacuum` removes them.
3. `app_id` belongs to the checkpoint (`checkpoint_id`): a new checkpoint counts batches from 0 again, and under the
   old name they would be skipped for ever.
4. Deletion vectors and column mapping are never enabled, so that Spark reads a version by its list of files.
5. A table lives where driver and executors see the same path.

This promises exactly once over crashes of processes. Over a power failure it is what the file system makes of
Spark's own writes; the spool below is synced, and a batch can be replayed from it.
"""

import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from hanse.errors import LocalError
from hanse.pipeline.schemas import mqtt

_log = logging.getLogger(__name__)

# Delta's own least for a vacuum that cannot take a running reader's or writer's files away.
VACUUM_KEEP_S_MIN = 3600.0
COMPACT_TARGET_BYTES = 128 * 1024 * 1024

_DATA = "data"


@dataclass(frozen=True, slots=True)
class Committed:
    """What a write did."""

    version: int
    files: int
    rows: int
    skipped: bool = False
    """The table had this batch already."""


class StoredTable:
    """One table on disk.

    Args:
        path: its directory; created at the first write.
        schema: its contract. Delta keeps it; a table on disk with another one is refused.
    """

    def __init__(self, path: str | Path, schema: pa.Schema) -> None:
        self.path = Path(path)
        self.schema = schema

    @property
    def data(self) -> Path:
        """Where its Parquet files are."""
        return self.path / _DATA

    def append(self, frame: DataFrame, *, app_id: str, batch_id: int) -> Committed:
        """Add the rows of `frame`, once for `(app_id, batch_id)`."""
        return self._write(lambda: self._write_parquet(frame, batch_id), "append", app_id, batch_id)

    def add(self, files: Callable[[], Iterable[Path]], *, app_id: str, batch_id: int) -> Committed:
        """Add Parquet files that lie in the table's directory already, once for `(app_id, batch_id)`.

        Args:
            files: is asked for them, unless the table has this batch.
            app_id: whose batches these are.
            batch_id: which one.
        """
        return self._write(lambda: self._seen(files()), "append", app_id, batch_id)

    def replace(self, frame: DataFrame, *, app_id: str, batch_id: int) -> Committed:
        """Put the rows of `frame` in place of all others; a reader sees the old ones or the new ones."""
        return self._write(lambda: self._write_parquet(frame, batch_id), "overwrite", app_id, batch_id)

    def read(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        """The table at a version, the newest by default; without a row if there is no table yet."""
        struct = from_arrow_schema(self.schema)
        files = self.files(version)
        return spark.read.schema(struct).parquet(*files) if files else spark.createDataFrame([], struct)

    def files(self, version: int | None = None) -> list[str]:
        """The Parquet files of a version."""
        table = self._open(version)
        # The log holds paths as URLs do.
        return [unquote(uri) for uri in table.file_uris()] if table else []

    def rows(self) -> int:
        """How many rows the newest version has, by the log alone."""
        table = self._open()
        return sum(pa.table(table.get_add_actions()).column("num_records").to_pylist()) if table else 0

    def last_batch(self, app_id: str) -> int | None:
        """The newest batch that the table has of an application."""
        table = self._open()
        return table.transaction_version(app_id) if table else None

    def compact(self, target_bytes: int = COMPACT_TARGET_BYTES) -> dict[str, Any]:
        """Join small files. Readers and writers go on meanwhile."""
        table = self._open()
        if table is None:
            return {"numFilesAdded": 0, "numFilesRemoved": 0}
        result: dict[str, Any] = table.optimize.compact(target_size=target_bytes)
        table.create_checkpoint()
        return result

    def vacuum(self, keep_s: float = 7 * 86400.0, *, now: bool = False) -> int:
        """Delete files that no version of the last `keep_s` needs, orphans of crashes too; how many.

        Args:
            keep_s: at least an hour, so that no running reader or writer loses its files.
            now: the caller knows that there is no reader and no writer.
        """
        if keep_s < VACUUM_KEEP_S_MIN and not now:
            raise LocalError(
                f"A vacuum must keep at least {VACUUM_KEEP_S_MIN:.0f} s, not {keep_s:.0f} s: writers may be busy."
            )
        table = self._open()
        if table is None:
            return 0
        deleted = table.vacuum(
            retention_hours=int(keep_s // 3600), dry_run=False, enforce_retention_duration=False, full=True
        )
        _remove_empty_directories(self.data)
        return len(deleted)

    def _open(self, version: int | None = None) -> DeltaTable | None:
        try:
            return DeltaTable(str(self.path), version=version)
        except TableNotFoundError:
            return None

    def _create(self) -> DeltaTable:
        self.path.mkdir(parents=True, exist_ok=True)
        # Stored nullable: Spark writes every column so, and a reader may then trust the file's own footer.
        stored = pa.schema([field.with_nullable(True) for field in self.schema])
        table = DeltaTable.create(str(self.path), schema=stored, mode="ignore", name=self.path.name)
        names = [field.name for field in table.schema().fields]
        if names != self.schema.names:
            raise LocalError(
                f"The table {self.path} has the columns {names}, where {self.schema.names} are written: it is of "
                "another version. Move it away, or write to another directory."
            )
        return table

    def _write(
        self, write: Callable[[], list[Path]], mode: Literal["append", "overwrite"], app_id: str, batch_id: int
    ) -> Committed:
        table = self._create()
        known = table.transaction_version(app_id)
        if known is not None and known >= batch_id:
            return Committed(table.version(), 0, 0, skipped=True)
        actions, rows = self._actions(write())
        try:
            self._commit(table, actions, mode, app_id, batch_id)
        except CommitFailedError:
            # Someone else has committed this very batch since: two drivers on one checkpoint, or we ourselves.
            table = self._create()
            known = table.transaction_version(app_id)
            if known is not None and known >= batch_id:
                return Committed(table.version(), 0, 0, skipped=True)
            raise
        table.update_incremental()
        return Committed(table.version(), len(actions), rows)

    def _write_parquet(self, frame: DataFrame, batch_id: int) -> list[Path]:
        # A fresh directory a try: what a crash left can never be taken for this batch's files.
        directory = self.data / f"{batch_id}-{uuid.uuid4().hex[:12]}"
        # Delta's timestamps are microseconds; Spark's default is a type of its own.
        frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        (
            frame.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            # Files are moved into place by the tasks at once: nobody sees them before the log names them.
            .option("mapreduce.fileoutputcommitter.algorithm.version", "2")
            .parquet(str(directory))
        )
        if not directory.is_dir():
            raise _unseen(directory)
        return sorted(directory.glob("*.parquet"))

    def _seen(self, files: Iterable[Path]) -> list[Path]:
        found = sorted(files)
        for file in found:
            if not file.is_file():
                raise _unseen(file)
        return found

    def _actions(self, files: list[Path]) -> tuple[list[AddAction], int]:
        actions, total = [], 0
        for file in files:
            footer = pq.read_metadata(file)
            if footer.num_rows == 0:
                continue
            total += footer.num_rows
            actions.append(
                AddAction(
                    path=file.relative_to(self.path).as_posix(),
                    size=file.stat().st_size,
                    partition_values={},
                    modification_time=time.time_ns() // 1_000_000,
                    data_change=True,
                    stats=json.dumps({"numRecords": footer.num_rows}),
                )
            )
        return actions, total

    def _commit(
        self,
        table: DeltaTable,
        actions: Sequence[AddAction],
        mode: Literal["append", "overwrite"],
        app_id: str,
        batch_id: int,
    ) -> None:
        table.create_write_transaction(
            list(actions),
            mode=mode,
            schema=table.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction(app_id, batch_id)]),
        )


def _unseen(path: Path) -> LocalError:
    return LocalError(
        f"Spark wrote {path}, and this process does not see it. Driver and executors must see the tables under the "
        "same path: use a shared file system."
    )


def _remove_empty_directories(root: Path) -> None:
    for directory, _, _ in os.walk(root, topdown=False):
        left = os.listdir(directory)  # noqa: PTH208 - os.walk gives strings
        # Hadoop leaves a checksum beside each file it wrote.
        if all(name.endswith(".crc") for name in left):
            for name in left:
                (Path(directory) / name).unlink()
            if Path(directory) != root:
                Path(directory).rmdir()


def bronze(warehouse: str | Path) -> StoredTable:
    """The table of raw messages."""
    return StoredTable(Path(warehouse) / "bronze_mqtt", mqtt.ROW)


def checkpoint_id(checkpoint: str | Path) -> str:
    """The id of the query that owns a checkpoint, as Spark keeps it there."""
    path = Path(checkpoint) / "metadata"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalError(
            f"Cannot read the query's id in {path}: is {checkpoint} a checkpoint that this process sees?"
        ) from error
    return str(found)


@dataclass(frozen=True, slots=True)
class BatchSink:
    """For `foreachBatch`: adds each micro-batch to a table, exactly once. Picklable, as Connect needs it."""

    path: str
    schema: pa.Schema
    checkpoint: str
    on_committed: Callable[[int, Committed], None] | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch."""
        table = StoredTable(self.path, self.schema)
        done = table.append(frame, app_id=checkpoint_id(self.checkpoint), batch_id=batch_id)
        if self.on_committed is not None:
            self.on_committed(batch_id, done)


@dataclass(frozen=True, slots=True)
class FilesSink:
    """For `foreachBatch` over `mqtt_files`: commits the files that a micro-batch's tasks wrote, exactly once."""

    path: str
    schema: pa.Schema
    checkpoint: str

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Commit one micro-batch."""
        StoredTable(self.path, self.schema).add(
            lambda: [Path(row["path"]) for row in frame.collect()],
            app_id=checkpoint_id(self.checkpoint),
            batch_id=batch_id,
        )
