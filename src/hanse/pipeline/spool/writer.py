"""The single writer of a producer's spool.

Rules:

1. `append` returns when the block is durable and visible. If it raises, nothing of the block is visible.
2. Order on disk: block, `fdatasync` of the segment, index record. The record needs no sync of its own, because opening
   the spool rebuilds it from the segment. This saves one of two syncs per commit.
3. Only the last block of the last segment can be torn, because a block is durable before the next one starts. Opening
   indexes whole blocks beyond the index and cuts a torn tail. Damage that does not reach the end of the file is not a
   torn tail; opening then raises an error instead of cutting acknowledged rows.
4. After a failed sync the kernel may have dropped the pages, so the writer is broken and must be reopened.
5. An exclusive `flock`, held while the writer is open, ensures a single writer. The kernel releases it when the process
   ends.
"""

import errno
import fcntl
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import pyarrow as pa
from pyarrow import ipc

from hanse.errors import LocalError
from hanse.pipeline.spool.format import (
    BLOCK_BYTES_MAX,
    BLOCK_MAGIC,
    HEADER_BYTES,
    RECORD_BYTES,
    Header,
    Position,
    Record,
    SegmentName,
    SpoolBrokenError,
    SpoolCorruptError,
    SpoolFullError,
    SpoolLockedError,
    check_name,
)

# Errors that mean "no space": the disk, the user's quota, the file size limit.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_LOCK_FILE = "lock"


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """Limits of a producer's files. Larger segments mean fewer files and coarser retention."""

    segment_bytes_max: int = 64 * 1024 * 1024
    """A segment is closed at this size. Kafka's default is 1 GiB, but the janitor deletes only whole segments."""
    segment_age_s_max: float = 600.0
    """A segment is closed when its first block is this old, so that a quiet topic's data can be deleted too."""
    free_bytes_min: int = 64 * 1024 * 1024
    """Free disk space to preserve: Spark's checkpoint and the tables need it so that consumers can catch up."""
    spool_bytes_max: int | None = None
    """Quota for this producer's segments; None leaves the disk as the only limit."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Repairs at the end of the last segment when it was opened."""

    blocks_indexed: int = 0
    bytes_cut: int = 0


def _now_us() -> int:
    return time.time_ns() // 1000


class SpoolWriter:
    """Appends Arrow batches to `root/producer`. Use it as a context manager, or call `close`.

    Args:
        root: the spool's directory; created if it is missing.
        producer: this writer's name in the spool.
        limits: limits of its files.
        compression: compression of the Arrow buffers; readers detect it.
        now_us: the clock for the age of segments.
    """

    def __init__(
        self,
        root: str | Path,
        producer: str,
        *,
        limits: SpoolLimits | None = None,
        compression: Literal["lz4", "zstd"] | None = None,
        now_us: Callable[[], int] = _now_us,
    ) -> None:
        self.producer = check_name("producer", producer)
        self.directory = Path(root) / producer
        self.limits = limits or SpoolLimits()
        self._ipc_options = ipc.IpcWriteOptions(compression=compression)
        self._now_us = now_us
        self._seg_fd = self._idx_fd = self._lock_fd = -1
        self._broken: str | None = None
        self._segment = SegmentName(1, 0)
        self._records = self._end_pos = self._end_row = 0
        self._first_us: int | None = None
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LocalError(f"Cannot create the spool {self.directory}: {error.strerror}.") from error
        self._lock_fd = self._take_lock()
        try:
            self.recovery = self._recover()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def position(self) -> Position:
        """Position where the next block will begin."""
        return Position(self._segment.number, self._end_pos, self._end_row)

    def close(self) -> None:
        """Release the files and the lock. Appended batches are already durable."""
        for fd in (self._seg_fd, self._idx_fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._seg_fd = self._idx_fd = self._lock_fd = -1

    def append(self, batch: pa.RecordBatch, *, received_us_min: int, received_us_max: int) -> Position:
        """Make `batch` durable and visible; return the position after it.

        Raises:
            SpoolFullError: there is no space; retry the same batch later.
            SpoolBrokenError: open a new writer, then append again.
        """
        if self._broken:
            raise SpoolBrokenError(self._broken)
        if self._seg_fd < 0:
            raise LocalError(f"The spool {self.directory} is closed; open a new writer.")
        if batch.num_rows == 0:
            return self.position
        body = self._encode(batch)
        if body.size > BLOCK_BYTES_MAX:
            raise LocalError(
                f"A block of {body.size} bytes for {self.directory}; the limit is {BLOCK_BYTES_MAX}: split it."
            )
        self._check_room(HEADER_BYTES + body.size + RECORD_BYTES)
        if self._is_segment_done():
            self._roll()
        body_crc = zlib.crc32(body)
        rows = batch.num_rows
        header = Header(body.size, rows, self._end_row, received_us_min, received_us_max, body_crc)
        record = Record(
            end_pos=self._end_pos + HEADER_BYTES + body.size,
            end_row=self._end_row + rows,
            received_us_min=received_us_min,
            received_us_max=received_us_max,
            body_crc=body_crc,
            rows=rows,
        )
        self._write(self._seg_fd, [header.pack(), body])
        self._sync(self._seg_fd)
        self._write(self._idx_fd, [record.pack()])
        self._end_pos, self._end_row = record.end_pos, record.end_row
        self._records += 1
        if self._first_us is None:
            self._first_us = self._now_us()
        return self.position

    def _encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, batch.schema, options=self._ipc_options) as stream:
            stream.write_batch(batch)
        return sink.getvalue()

    # The lock.

    def _take_lock(self) -> int:
        path = self.directory / _LOCK_FILE
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise SpoolLockedError(
                f"The spool {self.directory} has a writer already (process {holder}); a producer has one writer. "
                "Stop it, or give this one another producer name (its client id)."
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    # Free space.

    def _check_room(self, bytes_needed: int) -> None:
        room = os.fstatvfs(self._lock_fd)
        free = room.f_bavail * room.f_frsize
        if free - bytes_needed < self.limits.free_bytes_min:
            raise SpoolFullError(
                f"The disk of the spool {self.directory} has {free} bytes free; {self.limits.free_bytes_min} must "
                "stay free. Free some space, or let the consumers catch up and the janitor sweep."
            )
        quota = self.limits.spool_bytes_max
        if quota is not None:
            used = sum(entry.stat().st_size for entry in os.scandir(self.directory) if entry.name.endswith(".seg"))
            if used + bytes_needed > quota:
                raise SpoolFullError(
                    f"The spool {self.directory} holds {used} bytes of its quota of {quota}. Raise the quota, or "
                    "let the consumers catch up and the janitor sweep."
                )

    # Bytes.

    def _write(self, fd: int, parts: list[bytes | pa.Buffer]) -> None:
        """Write all parts at the end of the file, or none."""
        views = [memoryview(part) for part in parts]
        try:
            while views:
                written = os.writev(fd, views)
                while views and written >= len(views[0]):
                    written -= len(views.pop(0))
                if views:
                    views[0] = views[0][written:]
        except OSError as error:
            self._undo()
            if error.errno in _NO_ROOM:
                raise SpoolFullError(
                    f"Writing to the spool {self.directory} failed: {error.strerror}. Free space; nothing was lost, "
                    "and nothing is acknowledged until then."
                ) from error
            self._broken = f"Writing to the spool {self.directory} failed: {error.strerror}. Check the disk."
            raise SpoolBrokenError(self._broken) from error

    def _undo(self) -> None:
        """Truncate both files to the last visible block."""
        try:
            os.ftruncate(self._idx_fd, self._records * RECORD_BYTES)
            os.ftruncate(self._seg_fd, self._end_pos)
        except OSError as error:
            self._broken = f"Cannot undo a failed write in the spool {self.directory}: {error.strerror}."

    def _sync(self, fd: int) -> None:
        try:
            os.fdatasync(fd)
        except OSError as error:
            self._broken = (
                f"The kernel could not make the spool {self.directory} durable: {error.strerror}. Check the disk."
            )
            raise SpoolBrokenError(self._broken) from error

    def _sync_directory(self) -> None:
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # Segments.

    def _is_segment_done(self) -> bool:
        if self._records == 0:
            return False
        is_old = (
            self._first_us is not None and self._now_us() - self._first_us >= self.limits.segment_age_s_max * 1_000_000
        )
        return is_old or self._end_pos >= self.limits.segment_bytes_max

    def _roll(self) -> None:
        # The index of a closed segment is durable, so that only the last segment ever needs recovery.
        self._sync(self._idx_fd)
        old_fds = (self._seg_fd, self._idx_fd)
        self._open_segment(SegmentName(self._segment.number + 1, self._end_row))
        for fd in old_fds:
            os.close(fd)

    def _open_segment(self, name: SegmentName) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        opened: list[int] = []
        try:
            opened.extend(os.open(self.directory / file, flags, 0o644) for file in (name.index, name.segment))
            self._sync_directory()
        except OSError as error:
            for fd in opened:
                os.close(fd)
            kind = SpoolFullError if error.errno in _NO_ROOM else SpoolBrokenError
            raise kind(f"Cannot open segment {name.number} of the spool {self.directory}: {error.strerror}.") from error
        self._idx_fd, self._seg_fd = opened
        self._segment = name
        self._records, self._end_pos, self._end_row, self._first_us = 0, 0, name.first_row, None

    # Recovery.

    def _recover(self) -> Recovery:
        names = sorted(filter(None, (SegmentName.parse(entry.name) for entry in os.scandir(self.directory))))
        self._open_segment(names[-1] if names else SegmentName(1, 0))
        size = os.fstat(self._seg_fd).st_size
        records = self._valid_records()
        if records:
            last = records[-1]
            if last.end_pos > size:
                raise SpoolCorruptError(
                    f"{self.directory / self._segment.segment} has {size} bytes, but its index names "
                    f"{last.end_pos}: acknowledged rows are gone. Restore the file from a copy, or move the whole "
                    "producer away."
                )
            self._records, self._end_pos, self._end_row = len(records), last.end_pos, last.end_row
            self._first_us = records[0].received_us_min
        os.ftruncate(self._idx_fd, self._records * RECORD_BYTES)
        found = self._blocks_beyond_index(size)
        if found:
            # A process may have died before its sync and left these blocks only in the page cache.
            self._sync(self._seg_fd)
            self._write(self._idx_fd, [record.pack() for record in found])
            self._records += len(found)
            self._end_pos, self._end_row = found[-1].end_pos, found[-1].end_row
            self._first_us = self._first_us or found[0].received_us_min
        cut = size - self._end_pos
        if cut:
            os.ftruncate(self._seg_fd, self._end_pos)
            self._sync(self._seg_fd)
        return Recovery(blocks_indexed=len(found), bytes_cut=cut)

    def _valid_records(self) -> list[Record]:
        """Read the index up to its first bad record; the segment supplies the rest."""
        data = os.pread(self._idx_fd, os.fstat(self._idx_fd).st_size, 0)
        records: list[Record] = []
        for offset in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
            record = Record.unpack(data, offset)
            if record is None:
                break
            records.append(record)
        return records

    def _blocks_beyond_index(self, size: int) -> list[Record]:
        found: list[Record] = []
        pos, row = self._end_pos, self._end_row
        while pos < size:
            header = Header.unpack(os.pread(self._seg_fd, HEADER_BYTES, pos))
            if isinstance(header, str):
                self._refuse_if_data_follows(pos, size, header)
                break
            end = pos + HEADER_BYTES + header.body_bytes
            body = os.pread(self._seg_fd, header.body_bytes, pos + HEADER_BYTES)
            if len(body) < header.body_bytes:
                break
            if zlib.crc32(body) != header.body_crc or header.first_row != row:
                if end < size:
                    self._refuse_if_data_follows(end, size, "a block whose checksum does not match")
                break
            row += header.rows
            record = Record(end, row, header.received_us_min, header.received_us_max, header.body_crc, header.rows)
            found.append(record)
            pos = end
        return found

    def _refuse_if_data_follows(self, pos: int, size: int, seen: str) -> None:
        """Raise if a whole block follows the damage: then it is not a torn tail, and something else broke."""
        tail = os.pread(self._seg_fd, min(size - pos, BLOCK_BYTES_MAX + HEADER_BYTES), pos)
        at = tail.find(BLOCK_MAGIC)
        while at >= 0:
            if isinstance(Header.unpack(memoryview(tail)[at:]), Header):
                raise SpoolCorruptError(
                    f"{self.directory / self._segment.segment} holds {seen} before byte {pos + at}, and a block "
                    "header after it: not a torn tail. Restore the file from a copy, or move the whole producer "
                    "away."
                )
            at = tail.find(BLOCK_MAGIC, at + 1)
