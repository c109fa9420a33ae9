"""Progress of the silver job, in one small file, so that a kill at any moment neither loses nor duplicates a row.

The file is a write-ahead log with one entry. A batch's range is on disk before any table is written, and the batch is
marked done after all tables are. A run that finds an unfinished batch repeats it; tables that already have the batch
skip it by its number. Bronze rows within a range never change (a row is identified by its producer and a gapless
number), so the second attempt reads the same rows as the first.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hanse.errors import LocalError


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows from `since` (inclusive) to `until` (exclusive) of each producer."""

    batch_id: int
    since: dict[str, int] = field(default_factory=dict)
    until: dict[str, int] = field(default_factory=dict)
    is_done: bool = False


def load(path: Path) -> Batch | None:
    """Load the last batch, finished or not; return None before the first.

    Raises:
        LocalError: The file has another format or is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        said = json.loads(text)
        batch = Batch(int(said["batch_id"]), _marks(said["since"]), _marks(said["until"]), bool(said["is_done"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LocalError(
            f"{path} is no valid record of the silver job's progress: {error!r}. Without it rows would be lost or "
            "duplicated; restore it, or move it and the silver tables away to rebuild them from bronze."
        ) from error
    return batch


def save(path: Path, batch: Batch) -> None:
    """Replace the file with `batch`; after a crash it holds either the old or the new batch completely."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    with beside.open("w", encoding="utf-8") as file:
        json.dump(asdict(batch), file, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def following(last: Batch | None, ends: dict[str, int]) -> Batch | None:
    """Return the next batch if bronze reaches to `ends`: the unfinished one, else the new rows, else None."""
    if last is not None and not last.is_done:
        return last
    reached = last.until if last else {}
    new = {producer: end for producer, end in ends.items() if end > reached.get(producer, 0)}
    if not new:
        return None
    since = {producer: reached.get(producer, 0) for producer in new}
    return Batch(last.batch_id + 1 if last else 0, since, reached | new)


def _marks(said: dict[str, int]) -> dict[str, int]:
    return {str(producer): int(row) for producer, row in said.items()}
