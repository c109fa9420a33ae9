"""Status of a collector: a small file beside its segments, replaced as a whole a few times per second.

Readers (the source's helper, a dashboard, an operator) need no connection to the collector.
"""

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal, get_args

State = Literal["waiting", "connecting", "collecting", "full", "stopped"]

_FILE = "collector.json"


@dataclass(slots=True)
class CollectorStatus:
    """State, and counters since the process started."""

    pid: int
    state: State = "waiting"
    """waiting: for the spool's lock; connecting; collecting; full: no disk space, nothing is acknowledged; stopped."""
    reason: str = ""
    received: int = 0
    """PUBLISH packets received."""
    spooled: int = 0
    """Rows made durable."""
    acknowledged: int = 0
    """Acknowledgements sent, each after its row was durable."""
    copies: int = 0
    """Redeliveries of rows that were already in the spool: acknowledged and not written again."""
    commits: int = 0
    bytes_spooled: int = 0
    connects: int = 0
    sessions_resumed: int = 0
    full_waits: int = 0
    """Attempts to commit that found no disk space and waited."""
    queue_bytes: int = 0
    """Bytes received and not yet durable."""
    queue_bytes_peak: int = 0
    idle_s: float = 0.0
    """Time since the last message, while nothing waits to be written."""
    segments_swept: int = 0
    broker_dropped: int | None = None
    """Messages that the broker reports as dropped for all its clients since its start; None if it reports none."""
    neighbours: int | None = None
    """Federators whose link is up; None for the client of a broker."""
    dropped: int = 0
    """In a federation: QoS 0 publications dropped because the queue was full."""


def write_status(spool: str | Path, producer: str, status: CollectorStatus) -> None:
    """Replace the status file."""
    path = Path(spool) / producer / _FILE
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(asdict(status)), encoding="utf-8")
    beside.replace(path)


def read_status(spool: str | Path, producer: str) -> CollectorStatus | None:
    """Return the last status of the producer's collector; None if there is none or its process is gone."""
    try:
        value = json.loads((Path(spool) / producer / _FILE).read_text(encoding="utf-8"))
        known = {one.name for one in fields(CollectorStatus)}
        status = CollectorStatus(**{key: found for key, found in value.items() if key in known})
    except (OSError, ValueError, TypeError):
        return None
    if status.state not in get_args(State) or not _is_alive(status.pid):
        return None
    return status


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
