"""Consumers' marks: how far each has come, so that the janitor knows what nobody needs any more.

A mark is `root/.consumers/<consumer>.json`, replaced whole (written beside, synced, renamed): a reader sees the old
one or the new one. A mark may be late (Spark commits one batch late); it is never early.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from hanse.errors import LocalError
from hanse.pipeline.spool.format import Position, check_name

_DIRECTORY = ".consumers"


def save_mark(root: str | Path, consumer: str, offset: Mapping[str, Position]) -> None:
    """Leave the mark: everything before `offset` has been consumed by `consumer`."""
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
    """Every consumer's mark. A mark that cannot be read is an error: guessing would delete data."""
    marks: dict[str, dict[str, Position]] = {}
    for path in sorted((Path(root) / _DIRECTORY).glob("*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            marks[path.stem] = {producer: Position.from_json(position) for producer, position in value.items()}
        except (ValueError, AttributeError, LocalError) as error:
            raise LocalError(
                f"The mark {path} cannot be read; expected a JSON object of producer to offset. Delete the file if "
                "that consumer is gone, or run it once to write the mark anew."
            ) from error
    return marks


def forget_mark(root: str | Path, consumer: str) -> bool:
    """Remove a consumer that will not come back; whether there was one."""
    path = Path(root) / _DIRECTORY / f"{check_name('consumer', consumer)}.json"
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
