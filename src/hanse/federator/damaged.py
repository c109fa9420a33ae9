"""What is done with a state file that cannot be understood: it never stops a start, and it is never thrown away."""

import contextlib
import logging
import shutil
from pathlib import Path

# Copies of damaged files in one directory; the oldest are deleted first. A segment of the outbox has up to 8 MiB.
COPIES_MAX = 8
SUFFIX = ".damaged"
_log = logging.getLogger(__name__)


def put_aside(path: Path, why: str) -> None:
    """Move it to `<name>.damaged`, over a former one, with a warning; what replaces it begins anew."""
    # What cannot be moved either is overwritten by the next write, or refused there.
    with contextlib.suppress(OSError):
        path.replace(path.with_name(path.name + SUFFIX))
    _log.warning("state file is damaged, starting anew without it", extra={"path": str(path), "why": why})


def keep_copy(path: Path) -> None:
    """Copy it to `<name>.damaged` unless there is one, as it goes on in use; a disk that refuses is told in the log."""
    copy = path.with_name(path.name + SUFFIX)
    if copy.exists() or not path.exists():
        return
    try:
        former = sorted(path.parent.glob(f"*{SUFFIX}"), key=lambda file: file.stat().st_mtime_ns)
        for file in former[: max(0, len(former) + 1 - COPIES_MAX)]:
            file.unlink()
        shutil.copy2(path, copy)
    except OSError as error:
        _log.warning("no copy of a damaged file can be kept: %s", error, extra={"path": str(path)})
