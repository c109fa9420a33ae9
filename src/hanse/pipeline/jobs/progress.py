"""How far the silver job has come, in one small file, so that a kill at any moment neither loses nor doubles a row.

The rule is a write-ahead log of one entry: a batch's range is on disk before any table is written, and is marked
done after all of them are. A run that finds a batch begun does that very batch again; the tables that have it
already skip it by its number. Bronze is never changed below a range (rows are named by producer and gapless
number), so the second try reads what the first did.
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
    """The last batch, done or begun; None before the first.

    Raises:
        LocalError: The file is not ours, or damaged.
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
            f"{path} does not say how far the silver job has come: {error!r}. Without it rows would be lost or "
            "doubled; restore it, or move it and the silver tables away to build them anew from bronze."
        ) from error
    return batch


def save(path: Path, batch: Batch) -> None:
    """Puts `batch` in the file's place: after a crash it is the old one or the new one, whole."""
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
    """The batch to do now, when bronze reaches to `ends`: the one begun, else what is new; None if nothing is."""
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
