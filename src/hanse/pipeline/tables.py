"""Tables: Spark writes the Parquet files, delta-rs commits them. ACID and exactly once, without a jar.

Rules:

1. A batch is committed with `Transaction(app_id, batch_id)`. A batch whose id the table has recorded is not written
   again, so a replay adds nothing, wherever the crash happened.
2. Files that a crash left between write and commit are never read, because readers use only files named in the log.
   `vacuum` removes them.
3. `app_id` belongs to the checkpoint (`checkpoint_id`): a new checkpoint counts batches from 0 again, and under the old
   id they would be skipped for ever.
4. Deletion vectors and column mapping are never enabled, so that Spark can read a version by its list of files.
5. The driver and the executors must see a table under the same path.
6. A frame whose columns differ from the schema in name or type is refused before anything is written. A file with a
   null in a required column is refused before it is committed.
7. The log holds each file's statistics, so that `read(where=...)` opens only files that may have matching rows.
8. A schema may grow: columns that the table on disk lacks are added, and read as null in older rows, so a new column
   must be nullable. No column is ever removed, renamed or retyped.

This guarantees exactly once across crashes of processes. After a power failure, the result depends on how the file
system treats Spark's writes; the spool is synced, and a batch can be replayed from it.
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
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from hanse.errors import LocalError
from hanse.pipeline.file_statistics import FileStatistics, file_statistics
from hanse.pipeline.schemas import mqtt

_log = logging.getLogger(__name__)

# Delta's minimum for a vacuum that cannot delete the files of a running reader or writer.
VACUUM_KEEP_S_MIN = 3600.0
COMPACT_TARGET_BYTES = 128 * 1024 * 1024

_DATA = "data"


@dataclass(frozen=True, slots=True)
class Committed:
    """Result of a write."""

    version: int
    files: int
    rows: int
    skipped: bool = False
    """The table had this batch already."""


class StoredTable:
    """One table on disk.

    Args:
        path: its directory; created by the first write.
        schema: its schema. Delta stores it. A table on disk may lack nullable columns of it, which are then added; one
            that differs otherwise is refused.
    """

    def __init__(self, path: str | Path, schema: pa.Schema) -> None:
        self.path = Path(path)
        self.schema = schema

    @property
    def data(self) -> Path:
        """Directory of its Parquet files."""
        return self.path / _DATA

    def append(self, frame: DataFrame, *, app_id: str, batch_id: int) -> Committed:
        """Add the rows of `frame`, once per `(app_id, batch_id)`.

        Raises:
            LocalError: The frame's columns differ from the schema, or a required column has a null.
        """
        return self._write(lambda: self._write_parquet(frame, batch_id), "append", app_id, batch_id)

    def add(self, files: Callable[[], Iterable[Path]], *, app_id: str, batch_id: int) -> Committed:
        """Add Parquet files that are already in the table's directory, once per `(app_id, batch_id)`.

        Args:
            files: returns the files; not called if the table has this batch.
            app_id: the application that counts the batches.
            batch_id: the number of the batch.
        """
        return self._write(lambda: self._seen(files()), "append", app_id, batch_id)

    def replace(self, frame: DataFrame, *, app_id: str, batch_id: int) -> Committed:
        """Replace all rows with those of `frame`; a reader sees either the old rows or the new ones."""
        return self._write(lambda: self._write_parquet(frame, batch_id), "overwrite", app_id, batch_id)

    def read(self, spark: SparkSession, version: int | None = None, *, where: str | None = None) -> DataFrame:
        """Return the table at a version, by default the newest; an empty frame if there is no table yet.

        Args:
            spark: the session.
            version: the version of the table.
            where: an SQL condition on the table's columns. Only matching rows are returned, and files whose statistics
                rule the condition out are not opened.
        """
        struct = from_arrow_schema(self.schema)
        files = self.files(version, where=where)
        frame = spark.read.schema(struct).parquet(*files) if files else spark.createDataFrame([], struct)
        return frame if where is None else frame.where(where)

    def files(self, version: int | None = None, *, where: str | None = None) -> list[str]:
        """Return the Parquet files of a version, without those that cannot have a row that matches `where`."""
        table = self._open(version)
        if table is None:
            return []
        uris = table.file_uris() if where is None else table.file_uris(file_pruning_predicate=where)
        # The log stores paths URL-encoded.
        return [unquote(uri) for uri in uris]

    def rows(self) -> int:
        """Return the number of rows of the newest version, from the log alone."""
        table = self._open()
        return sum(pa.table(table.get_add_actions()).column("num_records").to_pylist()) if table else 0

    def last_batch(self, app_id: str) -> int | None:
        """Return the newest batch of an application that the table has."""
        table = self._open()
        return table.transaction_version(app_id) if table else None

    def compact(self, target_bytes: int = COMPACT_TARGET_BYTES) -> dict[str, Any]:
        """Join small files. Readers and writers may continue meanwhile."""
        table = self._open()
        if table is None:
            return {"numFilesAdded": 0, "numFilesRemoved": 0}
        result: dict[str, Any] = table.optimize.compact(target_size=target_bytes)
        table.create_checkpoint()
        return result

    def vacuum(self, keep_s: float = 7 * 86400.0, *, now: bool = False) -> int:
        """Delete files that no version of the last `keep_s` needs, including orphans of crashes; return their number.

        Args:
            keep_s: at least an hour, so that no running reader or writer loses its files.
            now: the caller guarantees that there is no reader and no writer.
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
        # All columns are nullable, as in files that Spark writes, so that a reader may trust the file's own footer.
        stored = pa.schema([field.with_nullable(True) for field in self.schema])
        table = DeltaTable.create(str(self.path), schema=stored, mode="ignore", name=self.path.name)
        there = pa.schema(table.schema().to_arrow())
        missing = pa.schema([field for field in stored if field.name not in there.names])
        differ = any(one.name not in stored.names or stored.field(one.name).type != one.type for one in there)
        if differ or any(not self.schema.field(name).nullable for name in missing.names):
            raise LocalError(
                f"The table {self.path} has the columns {_shown(there)}, but {_shown(self.schema)} were expected. Only "
                "nullable columns can be added to a table: move the table away, or write to another directory."
            )
        return self._grown(table, missing) if missing.names else table

    def _grown(self, table: DeltaTable, missing: pa.Schema) -> DeltaTable:
        """Add columns to the table on disk; another process may do so at the same time."""
        try:
            table.alter.add_columns(list(Schema.from_arrow(missing).fields))
        except (CommitFailedError, DeltaError):
            there = {field.name for field in DeltaTable(str(self.path)).schema().fields}
            if not there.issuperset(missing.names):
                raise
        return DeltaTable(str(self.path))

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
            # Another process has committed this batch meanwhile: a second driver on the checkpoint, or an earlier
            # attempt.
            table = self._create()
            known = table.transaction_version(app_id)
            if known is not None and known >= batch_id:
                return Committed(table.version(), 0, 0, skipped=True)
            raise
        table.update_incremental()
        return Committed(table.version(), len(actions), rows)

    def _write_parquet(self, frame: DataFrame, batch_id: int) -> list[Path]:
        frame = self._checked(frame)
        # Each attempt has a fresh directory, so files left by a crash can never be taken for this batch's files.
        directory = self.data / f"{batch_id}-{uuid.uuid4().hex[:12]}"
        # Delta's timestamps are microseconds; Spark's default is another type.
        frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        (
            frame.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            # Tasks move their files into place at once: nobody reads them before the log names them.
            .option("mapreduce.fileoutputcommitter.algorithm.version", "2")
            .parquet(str(directory))
        )
        if not directory.is_dir():
            raise _unseen(directory)
        return sorted(directory.glob("*.parquet"))

    def _checked(self, frame: DataFrame) -> DataFrame:
        """Return the frame with its columns in the table's order; refuse one with other names or types."""
        expected = {field.name: field.dataType.simpleString() for field in from_arrow_schema(self.schema)}
        seen = [(field.name, field.dataType.simpleString()) for field in frame.schema]
        wrong = [f"{name} {kind}" for name, kind in seen if expected.get(name) != kind]
        names = [name for name, _ in seen]
        wrong += [f"{name} twice" for name in sorted(set(names)) if names.count(name) > 1]
        lacking = [f"{name} {kind}" for name, kind in expected.items() if name not in names]
        if wrong or lacking:
            raise LocalError(
                f"The frame for the table {self.path.name} does not have the table's columns: unexpected "
                f"{', '.join(wrong) or 'none'}; missing {', '.join(lacking) or 'none'}. Select and cast them first."
            )
        return frame.select(*[frame[f"`{name}`"] for name in expected])

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
            statistics = file_statistics(footer)
            self._check_file(file, footer, statistics, files)
            actions.append(
                AddAction(
                    path=file.relative_to(self.path).as_posix(),
                    size=file.stat().st_size,
                    partition_values={},
                    modification_time=time.time_ns() // 1_000_000,
                    data_change=True,
                    stats=statistics.to_json(),
                )
            )
        return actions, total

    def _check_file(self, file: Path, footer: pq.FileMetaData, seen: FileStatistics, files: list[Path]) -> None:
        """Refuse a file with other columns or with a null in a required one, and remove all files of its batch."""
        names = footer.schema.to_arrow_schema().names
        empty = [f.name for f in self.schema if not f.nullable and seen.nulls.get(f.name)]
        if names == self.schema.names and not empty:
            return
        for one in files:
            one.unlink(missing_ok=True)
        if empty:
            raise LocalError(
                f"{seen.nulls[empty[0]]} of {seen.rows} rows for the table {self.path.name} have a null in "
                f"{empty[0]}, which every row needs. Nothing was committed: filter these rows, or fill them."
            )
        raise LocalError(
            f"The file {file} for the table {self.path.name} has the columns {', '.join(names)}; expected "
            f"{', '.join(self.schema.names)}. Nothing was committed."
        )

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


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _unseen(path: Path) -> LocalError:
    return LocalError(
        f"Spark wrote {path}, but this process does not see it. Driver and executors must see the tables under the "
        "same path: use a shared file system."
    )


def _remove_empty_directories(root: Path) -> None:
    for directory, _, _ in os.walk(root, topdown=False):
        left = os.listdir(directory)  # noqa: PTH208 - os.walk gives strings
        # Hadoop leaves a checksum file beside each file that it wrote.
        if all(name.endswith(".crc") for name in left):
            for name in left:
                (Path(directory) / name).unlink()
            if Path(directory) != root:
                Path(directory).rmdir()


def bronze(warehouse: str | Path) -> StoredTable:
    """Return the table of raw messages."""
    return StoredTable(Path(warehouse) / "bronze_mqtt", mqtt.ROW)


def checkpoint_id(checkpoint: str | Path) -> str:
    """Return the id of the query that owns a checkpoint, as Spark stores it there."""
    path = Path(checkpoint) / "metadata"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalError(
            f"Cannot read the query's id in {path}. {checkpoint} must be a checkpoint that this process can read."
        ) from error
    return str(found)


@dataclass(frozen=True, slots=True)
class BatchSink:
    """Sink for `foreachBatch`: adds each micro-batch to a table exactly once. Picklable, as Connect requires."""

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
    """Sink for `foreachBatch` over `mqtt_files`: commits the files that a micro-batch's tasks wrote, exactly once."""

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
