"""A real Mosquitto on a free port for tests, run in the same way as the product runs other brokers.

Rules: it listens on 127.0.0.1 only. It never outlives the `with` block, whatever happens inside. `kill` is SIGKILL
(like a crash), `stop` is SIGTERM (like an operator). `restart` uses the same port and directory again.
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
    """Return a port that was free a moment ago."""
    return ports.free(1)[0]


class Mosquitto(ForeignBroker):
    """A Mosquitto: `with Mosquitto("max_inflight_messages 20000") as broker: connect(broker.port)`.

    Args:
        lines: further lines of configuration. They follow the listener, so listener options apply to it.
        port: the port; by default a free one.
        directory: directory of configuration, log and database; by default a temporary one, removed at the end.
        anonymous: admit clients without a login.
        quiet: log errors only; logging every packet costs the broker most of its throughput.
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
            # Started by root it would change to the user `mosquitto`, who cannot write its database here.
            *(["user root"] if os.geteuid() == 0 else []),
            f"persistence_location {self.directory}/",
            *lines,
        ]

    def commands(self) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        """Return the command of the broker."""
        self.config_path.write_text("\n".join(self._lines) + "\n")
        return [([mosquitto.find_program(), "-c", str(self.config_path)], {})]

    def is_ready(self) -> bool:
        """Return whether it accepts connections; it may require TLS or a login, and there may be an ACL."""
        return ports.answers(self.port)

    @property
    def pid(self) -> int:
        """Process id, while it runs."""
        assert self.pids, "the broker has not been started"
        return self.pids[0]

    @property
    def log(self) -> str:
        """All of its log output, over restarts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def restart(self) -> None:
        """Restart it on the same port with the same directory; stop it first if it still runs."""
        self.stop()
        self.start()

    def save(self) -> None:
        """Make it write its database now (SIGUSR1), and wait for that; needs the line `persistence true`."""
        database = self.directory / "mosquitto.db"
        before = database.stat().st_mtime_ns if database.exists() else 0
        os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + DEADLINE_S
        # It writes a temporary file and renames it, so an existing file is complete.
        while not database.exists() or database.stat().st_mtime_ns == before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"mosquitto saved no database within {DEADLINE_S} s:\n{self.log}")
            time.sleep(0.02)
