"""State file: describes the running federation for `hanse down`, `hanse pub`, `hanse sub` and scripts.

It is written when the federation has converged, atomically, so a reader may use its contents as soon as it appears. It
is removed when the federation is taken down.

    {"manager": URL or null, "dashboard": URL or null, "gateway": URL or null,
     "federators": [{"id", "broker", "link", "metrics", "broker_pid", "federator_pid"}]}

`broker_pid` is null for a broker that was already running and continues afterwards (`hanse up --broker-url`).
`supervisor_pid` and its start time are recorded too. `hanse down` ends the supervisor, which ends the rest; a process
id alone could belong to another process by then.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hanse.errors import LocalError

DEFAULT_PATH = Path(".hanse/state.json")


@dataclass(frozen=True, slots=True)
class FederatorState:
    """One running broker and its federator."""

    id: int
    broker: str
    link: str | None
    metrics: str | None
    broker_pid: int | None
    federator_pid: int


@dataclass(frozen=True, slots=True)
class State:
    """All running parts of the federation."""

    federators: tuple[FederatorState, ...]
    manager: str | None = None
    dashboard: str | None = None
    gateway: str | None = None
    supervisor_pid: int | None = None
    supervisor_started: str | None = None

    def broker_at(self, k: int) -> str:
        """Return the URL of broker number `k`, as in `--at k`.

        Raises:
            LocalError: there is no such broker.
        """
        return self._at(k).broker

    def metrics_at(self, k: int) -> str:
        """Return the URL of the metrics of federator number `k`.

        Raises:
            LocalError: there is no such federator, or it serves no metrics.
        """
        metrics = self._at(k).metrics
        if metrics is None:
            raise LocalError(f"Federator {k} serves no metrics page, so it cannot be queried; start it with --metrics.")
        return metrics

    def _at(self, k: int) -> FederatorState:
        if not 0 <= k < len(self.federators):
            raise LocalError(
                f"There is no broker {k}; this federation has {len(self.federators)}, "
                f"numbered 0 to {len(self.federators) - 1}."
            )
        return self.federators[k]


def write(path: Path, state: State) -> None:
    """Write the state file atomically.

    Raises:
        LocalError: the file cannot be written.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise LocalError(
            f"The state file {path} could not be written ({error.strerror}); name another with --state."
        ) from error


def read(path: Path) -> State:
    """Return the state of a running federation.

    Raises:
        LocalError: there is no state file, or it has another format.
    """
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise LocalError(
            f"There is no state file {path}, so no running federation is known; "
            "start one with `hanse up`, or name its file with --state."
        ) from error
    except (OSError, ValueError) as error:
        raise LocalError(f"The state file {path} cannot be read ({error}); end the federation by hand.") from error
    try:
        return _parse(document)
    except (KeyError, TypeError, ValueError) as error:
        raise LocalError(f"{path} is not a state file of `hanse up`; name the right one with --state.") from error


def remove(path: Path) -> None:
    """Remove the state file, because the federation is gone."""
    path.unlink(missing_ok=True)


def process_start(pid: int) -> str | None:
    """Return when a process started, in kernel ticks: with its id, this identifies it for good. None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    # The name in parentheses may itself contain spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else fields[19]


def _parse(document: Any) -> State:  # noqa: ANN401 - any JSON value
    rows = document["federators"]
    federators = tuple(
        FederatorState(
            id=int(row["id"]),
            broker=_text(row["broker"]),
            link=_text_or_none(row.get("link")),
            metrics=_text_or_none(row.get("metrics")),
            broker_pid=None if row["broker_pid"] is None else int(row["broker_pid"]),
            federator_pid=int(row["federator_pid"]),
        )
        for row in rows
    )
    pid = document.get("supervisor_pid")
    return State(
        federators,
        _text_or_none(document.get("manager")),
        _text_or_none(document.get("dashboard")),
        _text_or_none(document.get("gateway")),
        None if pid is None else int(pid),
        _text_or_none(document.get("supervisor_started")),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)
