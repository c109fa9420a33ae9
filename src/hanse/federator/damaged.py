"""Treatment of a state file that cannot be parsed: it never stops a start, and it is never thrown away."""

import contextlib
import logging
import shutil
from pathlib import Path

# Copies of damaged files in one directory; the oldest are deleted first. A segment of the outbox has up to 8 MiB.
COPIES_MAX = 8
SUFFIX = ".damaged"
_log = logging.getLogger(__name__)


def put_aside(path: Path, why: str) -> None:
    """Move a file to `<name>.damaged`, over a former one, with a warning; its replacement starts empty."""
    # A file that cannot be moved either is overwritten by the next write, or refused there.
    with contextlib.suppress(OSError):
        path.replace(path.with_name(path.name + SUFFIX))
    _log.warning("state file is damaged, starting without it", extra={"path": str(path), "why": why})


def keep_copy(path: Path) -> None:
    """Copy a file that stays in use to `<name>.damaged` unless there is one. A disk that refuses is logged."""
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
