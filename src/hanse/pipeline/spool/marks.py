"""Marks of consumers: how far each has read, so that the janitor knows which segments are no longer needed.

A mark is `root/.consumers/<consumer>.json`. It is replaced as a whole (written to a temporary file, synced, renamed),
so a reader sees either the old or the new mark. A mark may be late, because Spark commits one batch late; it is never
early.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from hanse.errors import LocalError
from hanse.pipeline.spool.format import Position, check_name

_DIRECTORY = ".consumers"


def save_mark(root: str | Path, consumer: str, offset: Mapping[str, Position]) -> None:
    """Save the mark of `consumer`: it has read everything before `offset`."""
    directory = Path(root) / _DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{check_name('consumer', consumer)}.json"
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    text = json.dumps({producer: position.to_json() for producer, position in sorted(offset.items())})
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def load_marks(root: str | Path) -> dict[str, dict[str, Position]]:
    """Load the marks of all consumers. An unreadable mark is an error, because a guess could delete data."""
    marks: dict[str, dict[str, Position]] = {}
    for path in sorted((Path(root) / _DIRECTORY).glob("*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            marks[path.stem] = {producer: Position.from_json(position) for producer, position in value.items()}
        except (ValueError, AttributeError, LocalError) as error:
            raise LocalError(
                f"The mark {path} cannot be read; expected a JSON object from producer to offset. Delete the file if "
                "that consumer is gone, or run it once to write a new mark."
            ) from error
    return marks


def forget_mark(root: str | Path, consumer: str) -> bool:
    """Remove the mark of a consumer that will not come back; return whether there was one."""
    path = Path(root) / _DIRECTORY / f"{check_name('consumer', consumer)}.json"
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
