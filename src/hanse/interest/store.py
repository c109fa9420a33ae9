"""The registry on disk: a restarted federator knows the interest of clients before they subscribe again.

A save is atomic: it leaves the old file or the new one, never half of one. An unusable file raises an error of one
sentence, and the caller decides whether to go on without it.
"""

import json
import os
from pathlib import Path
from typing import Any

from hanse.errors import LocalError

# A million filters of 60 bytes. A larger file is not from this registry.
FILE_BYTES_MAX = 512 * 1024 * 1024


def save(path: Path, document: dict[str, Any]) -> None:
    """Write the document, and return when it is on disk.

    Raises:
        LocalError: the disk refuses the write.
    """
    beside = path.with_name(path.name + ".new")
    try:
        with beside.open("w", encoding="utf-8") as file:
            # One call of the C encoder: `json.dump` would take ten times as long.
            file.write(json.dumps(document, separators=(",", ":")))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise LocalError(f"Interest could not be saved to {path}: {error.strerror}; check space and rights.") from error


def read(path: Path) -> dict[str, Any] | None:
    """Return the document, or None if there is none yet.

    Raises:
        LocalError: the file exists but is unusable.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise LocalError(
                f"{path} has more than {FILE_BYTES_MAX} bytes; move it away to begin without stored interest."
            )
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalError(f"Interest could not be read from {path}: {error.strerror}; check its rights.") from error
    except (ValueError, RecursionError) as error:
        raise LocalError(f"{path} is not JSON; move it away to begin without stored interest.") from error
    if not isinstance(document, dict):
        raise LocalError(f"{path} does not hold a JSON object; move it away to begin without stored interest.")
    return document
