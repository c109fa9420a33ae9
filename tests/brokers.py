"""A real Mosquitto on a free port, for every room's tests, run as the product runs brokers of other makes.

Rules: it listens on 127.0.0.1 only; it never outlives the `with` block, whatever happens inside; `kill` is SIGKILL
(what a crash is), `stop` is SIGTERM (what an operator does); `restart` takes the same port and directory again.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hanse.local import mosquitto, ports
from hanse.local.foreign import ForeignBroker

DEADLINE_S = 20.0


def free_port() -> int:
    """A port that was free a moment ago."""
    return ports.free(1)[0]


class Mosquitto(ForeignBroker):
    """`with Mosquitto("max_inflight_messages 20000") as broker: connect(broker.port)`.

    Args:
        lines: more lines of configuration. They follow the listener, so listener options belong to it.
        port: a port of the caller's choice; a free one otherwise.
        directory: where configuration, log and database live; a temporary one otherwise, removed at the end.
        anonymous: whether clients without a login are let in.
        quiet: log errors only; the log of every packet costs the broker most of its throughput.
    """

    name = "mosquitto"
    ready_s = DEADLINE_S

    def __init__(
        self,
        *lines: str,
        port: int | None = None,
        directory: Path | None = None,
        anonymous: bool = True,
        quiet: bool = False,
    ) -> None:
        super().__init__(directory)
        self.port = port or free_port()
        self.config_path = self.directory / "mosquitto.conf"
        self._lines = [
            f"listener {self.port} 127.0.0.1",
            f"allow_anonymous {'true' if anonymous else 'false'}",
            "log_dest stderr",
            f"log_type {'error' if quiet else 'all'}",
            # As root it would drop to the user `mosquitto`, who may not write its database here.
            *(["user root"] if os.geteuid() == 0 else []),
            f"persistence_location {self.directory}/",
            *lines,
        ]

    def commands(self) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        """The broker."""
        self.config_path.write_text("\n".join(self._lines) + "\n")
        return [([mosquitto.find_program(), "-c", str(self.config_path)], {})]

    def is_ready(self) -> bool:
        """Whether it accepts connections: it may ask for TLS or a login, and there may be an ACL."""
        return ports.answers(self.port)

    @property
    def pid(self) -> int:
        """The process id, while it runs."""
        assert self.pids, "the broker has not been started"
        return self.pids[0]

    @property
    def log(self) -> str:
        """All that it logged, over restarts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def restart(self) -> None:
        """Start it again on the same port with the same directory; it is stopped first if it still runs."""
        self.stop()
        self.start()

    def save(self) -> None:
        """Make it write its database now (SIGUSR1), and wait until it has. Needs the line `persistence true`."""
        database = self.directory / "mosquitto.db"
        before = database.stat().st_mtime_ns if database.exists() else 0
        os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + DEADLINE_S
        # It writes beside and renames, so what is there is whole.
        while not database.exists() or database.stat().st_mtime_ns == before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"mosquitto saved no database within {DEADLINE_S} s:\n{self.log}")
            time.sleep(0.02)
