"""Janitor: deletes segments that are old enough and that every consumer has read.

Rules:

1. A segment is deleted only if every consumer's mark lies at or beyond its end *and* its newest row is older than the
   minimum age.
2. The last segment of a producer is never deleted: the writer may have it open, and it carries the row numbers on.
3. Deletion runs from the oldest segment and stops at the first segment that must stay, so that the remaining rows are
   contiguous.
4. The segment is removed before its index. A crash between the two leaves an index without data, which no reader lists
   and the next sweep removes.
"""

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hanse.pipeline.spool.format import RECORD_BYTES, Record, SegmentName
from hanse.pipeline.spool.marks import load_marks
from hanse.pipeline.spool.reader import list_producers


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Result of a sweep."""

    segments_deleted: int
    bytes_deleted: int
    rows_deleted: int
    held_back_by: tuple[str, ...]
    """Consumers whose marks kept segments that were old enough to delete."""


def sweep(root: str | Path, *, now_us: int, age_s_min: float, producers: list[str] | None = None) -> SweepReport:
    """Delete the segments of `producers` (by default all of the spool's) that are no longer needed."""
    marks = load_marks(root)
    oldest_to_keep_us = now_us - int(age_s_min * 1_000_000)
    segments = bytes_freed = rows = 0
    holders: set[str] = set()
    for producer in list_producers(root) if producers is None else producers:
        directory = Path(root) / producer
        names = sorted(filter(None, (SegmentName.parse(entry.name) for entry in os.scandir(directory))))
        _remove_stray_indexes(directory, names)
        for name, following in pairwise(names):
            if _newest_us(directory / name.index) >= oldest_to_keep_us:
                break
            behind = [
                consumer
                for consumer, mark in marks.items()
                if producer not in mark or mark[producer].rows < following.first_row
            ]
            if behind:
                holders.update(behind)
                break
            bytes_freed += (directory / name.segment).stat().st_size
            (directory / name.segment).unlink()
            (directory / name.index).unlink()
            segments += 1
            rows += following.first_row - name.first_row
    return SweepReport(segments, bytes_freed, rows, tuple(sorted(holders)))


def _newest_us(index: Path) -> int:
    """Return when the newest row was received; the far future if the index does not say, so that the segment stays."""
    data = index.read_bytes() if index.exists() else b""
    whole = len(data) - len(data) % RECORD_BYTES
    records = [Record.unpack(data, offset) for offset in range(0, whole, RECORD_BYTES)]
    known = [record.received_us_max for record in records if record is not None]
    return max(known) if known and len(known) == len(records) else 2**63 - 1


def _remove_stray_indexes(directory: Path, names: list[SegmentName]) -> None:
    kept = {name.index for name in names}
    for path in directory.glob("*.idx"):
        # A new segment's index is created just before the segment itself, so only older index files are strays.
        if path.name not in kept and names and path.name < names[0].index:
            path.unlink()
