"""The registry on disk: a restarted federator knows what clients want before they say it again.

A save is atomic: the old file or the new one, never half of one. A file that cannot be understood is an error of
one sentence; the caller decides whether to go on without.
"""

import json
import os
from pathlib import Path
from typing import Any

from hanse.errors import LocalError

# A million filters of 60 bytes. Larger is not ours.
FILE_BYTES_MAX = 512 * 1024 * 1024


def save(path: Path, document: dict[str, Any]) -> None:
    """Write the document, and return when it is on disk.

    Raises:
        LocalError: the disk refuses.
    """
    beside = path.with_name(path.name + ".new")
    try:
        with beside.open("w", encoding="utf-8") as file:
            json.dump(document, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise LocalError(f"Interest could not be saved to {path}: {error.strerror}; check space and rights.") from error


def read(path: Path) -> dict[str, Any] | None:
    """The document, or None where there is none yet.

    Raises:
        LocalError: there is a file, and it cannot be used.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise LocalError(f"{path} has more than {FILE_BYTES_MAX} bytes; move it away to begin with none.")
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalError(f"Interest could not be read from {path}: {error.strerror}; check its rights.") from error
    except (ValueError, RecursionError) as error:
        raise LocalError(f"{path} is not JSON; move it away to begin with no interest known.") from error
    if not isinstance(document, dict):
        raise LocalError(f"{path} holds no JSON object; move it away to begin with no interest known.")
    return document
