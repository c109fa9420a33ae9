"""Spool reader: finds the end of a spool and of the next batch, and reads slices.

Rules:

1. Only indexed data is read. A last record without a matching checksum counts as not written yet.
2. Positions are block boundaries. The end of a segment and the start of the next one are equivalent.
3. A slice is immutable: reading it twice gives the same rows in the same order.
4. If a checksum below the end of the index does not match, the reader raises an error; it skips the block only if the
   caller asks for that.
"""

import os
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

from hanse.errors import LocalError
from hanse.pipeline.spool.format import (
    HEADER_BYTES,
    RECORD_BYTES,
    START,
    Header,
    Position,
    Record,
    SegmentName,
    SpoolCorruptError,
    SpoolGoneError,
    check_name,
)

# Bytes read from a segment in one call: large enough to amortise the call, small compared with an executor's memory.
SLICE_BYTES_DEFAULT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole blocks of one segment; holds everything that a reader in another process needs."""

    root: str
    producer: str
    segment: SegmentName
    start_pos: int
    end_pos: int
    first_row: int
    rows: int

    @property
    def path(self) -> Path:
        """Path of the segment's file."""
        return Path(self.root) / self.producer / self.segment.segment


def list_producers(root: str | Path) -> list[str]:
    """Return the sorted names of the producers that have written to this spool; none if it does not exist yet."""
    try:
        entries = list(os.scandir(root))
    except FileNotFoundError:
        return []
    return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


class _Index:
    """Index of one segment, as far as it has been read, in arrays that need 36 bytes per block."""

    def __init__(self, directory: Path, name: SegmentName) -> None:
        self.name = name
        self._path = directory / name.index
        self.ends = array("Q")
        self.rows = array("Q")
        self.received_us_min = array("q")
        self.received_us_max = array("q")

    def refresh(self) -> None:
        """Read the records that were added since the last call."""
        have = len(self.ends) * RECORD_BYTES
        try:
            with self._path.open("rb") as file:
                file.seek(have)
                data = file.read()
        except FileNotFoundError:
            return
        whole = len(data) // RECORD_BYTES
        for n in range(whole):
            record = Record.unpack(data, n * RECORD_BYTES)
            if record is None:
                if n < whole - 1:
                    raise SpoolCorruptError(
                        f"Record {have // RECORD_BYTES + n} of {self._path} has a checksum that does not match. "
                        "Stop the collector, move the .idx file away and start it: it rebuilds the last segment's "
                        "index."
                    )
                return
            self.ends.append(record.end_pos)
            self.rows.append(record.end_row)
            self.received_us_min.append(record.received_us_min)
            self.received_us_max.append(record.received_us_max)

    @property
    def end(self) -> Position:
        """Position after the last visible block."""
        if not self.ends:
            return Position(self.name.number, 0, self.name.first_row)
        return Position(self.name.number, self.ends[-1], self.rows[-1])

    def blocks_before(self, pos: int) -> int:
        """Return the number of blocks that end at or before `pos`, which must be a block boundary."""
        count = bisect_right(self.ends, pos)
        if pos != (self.ends[count - 1] if count else 0):
            raise LocalError(
                f"Byte {pos} of {self._path} is not a block boundary: the offset belongs to another spool. "
                "Use the spool that the checkpoint began with, or a new checkpoint."
            )
        return count


class SpoolReader:
    """Read-only access to one producer's spool. It caches indexes; `tail` reads new records.

    Args:
        root: the spool's directory.
        producer: the producer whose rows to read.
    """

    def __init__(self, root: str | Path, producer: str) -> None:
        self.root = str(root)
        self.producer = check_name("producer", producer)
        self._directory = Path(root) / producer
        self._names: list[SegmentName] = []
        self._indexes: dict[int, _Index] = {}

    def _list(self) -> list[SegmentName]:
        try:
            found = (SegmentName.parse(entry.name) for entry in os.scandir(self._directory))
            self._names = sorted(filter(None, found))
        except FileNotFoundError:
            self._names = []
        # Drop the indexes of segments that the janitor has deleted.
        alive = {name.number for name in self._names}
        self._indexes = {number: index for number, index in self._indexes.items() if number in alive}
        return self._names

    def _index(self, name: SegmentName) -> _Index:
        index = self._indexes.get(name.number)
        if index is None:
            index = self._indexes[name.number] = _Index(self._directory, name)
            index.refresh()
        elif name is self._names[-1] or not index.ends or index.rows[-1] != self._first_row_after(name):
            index.refresh()
        return index

    def _first_row_after(self, name: SegmentName) -> int | None:
        at = bisect_right(self._names, name)
        return self._names[at].first_row if at < len(self._names) else None

    def head(self) -> Position:
        """Return the oldest position that still exists."""
        names = self._list()
        return Position(names[0].number, 0, names[0].first_row) if names else START

    def tail(self) -> Position:
        """Return the position after the last visible row."""
        names = self._list()
        return self._index(names[-1]).end if names else START

    def starts(self) -> list[Position]:
        """Return the first position of each segment, oldest first."""
        return [Position(name.number, 0, name.first_row) for name in self._list()]

    def advance(
        self, start: Position, *, end: Position, rows_max: int | None = None, bytes_max: int | None = None
    ) -> Position:
        """Return the furthest block boundary after `start`, up to `end`, within both limits but at least one block on.

        Raises:
            SpoolGoneError: `start` lies before the oldest segment.
        """
        at, rows_left, bytes_left = start, rows_max, bytes_max
        for index, first in self._walk(start):
            if index.name.number > end.seg:
                break
            last = index.blocks_before(end.pos) if index.name.number == end.seg else len(index.ends)
            if last <= first:
                continue
            start_pos = index.ends[first - 1] if first else 0
            start_row = index.rows[first - 1] if first else index.name.first_row
            stop = last
            if rows_left is not None:
                stop = min(stop, bisect_right(index.rows, start_row + rows_left, first, last))
            if bytes_left is not None:
                stop = min(stop, bisect_right(index.ends, start_pos + bytes_left, first, last))
            if stop == first and at == start:
                stop = first + 1
            if stop > first:
                at = Position(index.name.number, index.ends[stop - 1], index.rows[stop - 1])
                rows_left = None if rows_left is None else rows_left - (at.rows - start_row)
                bytes_left = None if bytes_left is None else bytes_left - (at.pos - start_pos)
            if stop < last:
                break
        return at

    def slices(
        self,
        start: Position,
        end: Position,
        *,
        slice_bytes: int = SLICE_BYTES_DEFAULT,
        received_us_min: int | None = None,
        received_us_max: int | None = None,
    ) -> list[Slice]:
        """Return the blocks from `start` to `end`, cut into slices of about `slice_bytes`.

        Blocks that lie completely outside the requested times of receipt are left out.
        """
        found: list[Slice] = []
        for index, first in self._walk(start):
            number = index.name.number
            if number > end.seg:
                break
            last = index.blocks_before(end.pos) if number == end.seg else len(index.ends)
            begin: int | None = None
            for n in range(first, last):
                wanted = (received_us_min is None or index.received_us_max[n] >= received_us_min) and (
                    received_us_max is None or index.received_us_min[n] <= received_us_max
                )
                if wanted and begin is None:
                    begin = n
                is_full = begin is not None and index.ends[n] - (index.ends[begin - 1] if begin else 0) >= slice_bytes
                if begin is not None and (not wanted or is_full or n == last - 1):
                    stop = n + 1 if wanted else n
                    found.append(self._slice(index, begin, stop))
                    begin = None
        return found

    def position_at(self, received_us: int) -> Position:
        """Return the position of the first block with a row received at `received_us` or later; else the tail."""
        for name in self._list():
            index = self._index(name)
            # A collector's clock may step back, so the search needs the running maximum; a linear scan provides it.
            for n, newest in enumerate(index.received_us_max):
                if newest >= received_us:
                    pos = index.ends[n - 1] if n else 0
                    return Position(name.number, pos, index.rows[n - 1] if n else name.first_row)
        return self.tail()

    def _slice(self, index: _Index, begin: int, stop: int) -> Slice:
        first_row = index.rows[begin - 1] if begin else index.name.first_row
        return Slice(
            root=self.root,
            producer=self.producer,
            segment=index.name,
            start_pos=index.ends[begin - 1] if begin else 0,
            end_pos=index.ends[stop - 1],
            first_row=first_row,
            rows=index.rows[stop - 1] - first_row,
        )

    def _walk(self, start: Position) -> Iterator[tuple[_Index, int]]:
        """Yield the segments from `start` on, each with the number of blocks to skip."""
        names = self._list()
        if not names:
            if start != START:
                raise self._gone(start, None)
            return
        if start.rows < names[0].first_row:
            raise self._gone(start, names[0])
        at = bisect_left([name.number for name in names], start.seg)
        for name in names[at:]:
            index = self._index(name)
            yield index, (index.blocks_before(start.pos) if name.number == start.seg else 0)

    def _gone(self, start: Position, oldest: SegmentName | None) -> SpoolGoneError:
        there = f"begins at row {oldest.first_row}" if oldest else "has no segment at all"
        return SpoolGoneError(
            f"Rows from {start.rows} on were requested from {self._directory}, which {there}: they were deleted before "
            "they were read, or this is another spool. Increase the retention. To continue without these rows set "
            "failOnDataLoss=false."
        )


def read_slice(
    part: Slice, *, on_damage: Callable[[SpoolCorruptError], None] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a slice, one per block, each verified.

    Args:
        part: the slice to read.
        on_damage: called with the error of a damaged block, which is then skipped; without it the error is raised.
    """
    path = part.path
    try:
        with path.open("rb") as file:
            data = os.pread(file.fileno(), part.end_pos - part.start_pos, part.start_pos)
    except FileNotFoundError as error:
        seen = "that directory is not there" if not path.parent.exists() else "the segment was deleted"
        raise SpoolGoneError(
            f"Cannot read {path}: {seen}. On a cluster every executor must see the spool under the same path (a "
            "shared file system); otherwise increase the retention."
        ) from error
    view = memoryview(data)
    pos, row, end = 0, part.first_row, part.end_pos - part.start_pos
    while pos < end:
        header = Header.unpack(view[pos : pos + HEADER_BYTES])
        if isinstance(header, str):
            # Without a header the next block cannot be located, so the rest of the slice is lost.
            lost = part.first_row + part.rows - row
            _damaged(part, pos, f"{header}; {lost} rows from {row} on cannot be read", on_damage)
            return
        body = view[pos + HEADER_BYTES : pos + HEADER_BYTES + header.body_bytes]
        pos += HEADER_BYTES + header.body_bytes
        if header.first_row != row or zlib.crc32(body) != header.body_crc:
            _damaged(
                part, pos, f"a block whose checksum does not match; its {header.rows} rows from {row} on", on_damage
            )
        else:
            yield ipc.open_stream(pa.py_buffer(body)).read_next_batch()
        row += header.rows


def _damaged(part: Slice, pos: int, seen: str, on_damage: Callable[[SpoolCorruptError], None] | None) -> None:
    error = SpoolCorruptError(
        f"{part.path} holds, before byte {part.start_pos + pos}: {seen}. These rows were acknowledged: restore the "
        "file from a copy. To continue without them set failOnDataLoss=false."
    )
    if on_damage is None:
        raise error
    on_damage(error)
