"""A real Mosquitto on a free port, for every room's tests.

Rules: it listens on 127.0.0.1 only; it never outlives the `with` block, whatever happens inside; `kill` is SIGKILL
(what a crash is), `stop` is SIGTERM (what an operator does); `restart` takes the same port and directory again.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from hanse.local import ports

DEADLINE_S = 20.0


def free_port() -> int:
    """A port that was free a moment ago."""
    return ports.free(1)[0]


def mosquitto_path() -> str:
    """Where the broker is; Debian keeps it in /usr/sbin, which is not in everyone's PATH."""
    path = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    if path is None:
        raise FileNotFoundError("mosquitto is not installed, and these tests need it; run `make setup`.")
    return path


class Mosquitto:
    """`with Mosquitto("max_inflight_messages 20000") as broker: connect(broker.port)`.

    Args:
        lines: more lines of configuration. They follow the listener, so listener options belong to it.
        port: a port of the caller's choice; a free one otherwise.
        directory: where configuration, log and database live; a temporary one otherwise, removed at the end.
        anonymous: whether clients without a login are let in.
        quiet: log errors only; the log of every packet costs the broker most of its throughput.
    """

    def __init__(
        self,
        *lines: str,
        port: int | None = None,
        directory: Path | None = None,
        anonymous: bool = True,
        quiet: bool = False,
    ) -> None:
        self.port = port or free_port()
        self._own_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="hanse-mosquitto-"))
        self.log_path = self.directory / "mosquitto.log"
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
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def url(self) -> str:
        """The address as Hanse's settings take it."""
        return f"mqtt://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id, while it runs."""
        assert self._process is not None, "the broker has not been started"
        return self._process.pid

    @property
    def log(self) -> str:
        """All that it logged, over restarts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        assert self._process is None, "the broker runs already"
        self.config_path.write_text("\n".join(self._lines) + "\n")
        self._log = self.log_path.open("ab")
        self._process = subprocess.Popen(
            [mosquitto_path(), "-c", str(self.config_path)], stdout=self._log, stderr=self._log, cwd=self.directory
        )
        deadline = time.monotonic() + DEADLINE_S
        while True:
            if self._process.poll() is not None:
                code = self._process.returncode
                self._forget()
                raise RuntimeError(f"mosquitto ended at once with code {code}:\n{self.log}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"mosquitto did not listen on {self.port} within {DEADLINE_S} s:\n{self.log}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it as an operator would: it saves its database, where persistence is on."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start it again on the same port with the same directory; it is stopped first if it still runs."""
        self.stop()
        self.start()

    def save(self) -> None:
        """Make it write its database now (SIGUSR1), and wait until it has. Needs the line `persistence true`."""
        assert self._process is not None, "the broker has not been started"
        database = self.directory / "mosquitto.db"
        before = database.stat().st_mtime_ns if database.exists() else 0
        self._process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + DEADLINE_S
        # It writes beside and renames, so what is there is whole.
        while not database.exists() or database.stat().st_mtime_ns == before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"mosquitto saved no database within {DEADLINE_S} s:\n{self.log}")
            time.sleep(0.02)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._forget()

    def _forget(self) -> None:
        self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            # Python calls no __exit__ for a block that was never entered.
            self._clear()
            raise
        return self

    def _clear(self) -> None:
        self.kill()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()
