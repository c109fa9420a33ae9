"""What is done with a state file that cannot be understood: it never stops a start, and it is never thrown away."""

import contextlib
import logging
from pathlib import Path

_log = logging.getLogger(__name__)


def put_aside(path: Path, why: str) -> None:
    """Move it to `<name>.damaged`, over a former one, with a warning; what replaces it begins anew."""
    # What cannot be moved either is overwritten by the next write, or refused there.
    with contextlib.suppress(OSError):
        path.replace(path.with_name(path.name + ".damaged"))
    _log.warning("state file is damaged, starting anew without it", extra={"path": str(path), "why": why})
