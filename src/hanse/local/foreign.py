"""Brokers other than Mosquitto on this machine for a `with` block: the common part of RabbitMQ and NATS.

Rules:
1. Everything is private: a directory of its own, removed at the end if this class created it; free ports on the
   loopback.
2. Ready means that the broker answers MQTT, within a deadline.
3. `stop` sends SIGTERM and, after a grace period, SIGKILL to the whole process group. `kill` sends SIGKILL, like a
   crash. After both, `start` can use the ports and the directory again.
4. If this process is killed, the kernel ends the brokers (as in `processes`).
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from hanse.errors import LocalError, Unavailable
from hanse.local.ports import LOOPBACK
from hanse.local.processes import die_with_parent
from hanse.mqtt import v311

# RabbitMQ takes four seconds on an idle machine, and many times that where eight people share two cores.
READY_S = 120.0
GRACE_S = 20.0
_TAIL_BYTES = 2_000
_OTHER_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/sbin")


def find(program: str, package: str) -> str:
    """Return the path of a program.

    Raises:
        LocalError: it was not found; the message says how to install it.
    """
    found = shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *_OTHER_PLACES]))
    if found is None:
        raise LocalError(
            f"The program {program} was not found in PATH or the usual places; install it (Debian and Ubuntu: "
            f"`apt install {package}`)."
        )
    return found


class ForeignBroker:
    """One broker; `with` starts and ends it.

    Attributes:
        port: the MQTT port.
        list_url: the URL that lists its subscriptions.
        ready_s: longest time to become ready.
    """

    name = "broker"
    ready_s = READY_S
    port: int
    list_url: str

    def __init__(self, directory: Path | None = None) -> None:
        self._own_directory = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix=f"hanse-{self.name}-")) if directory is None else directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self._processes: list[subprocess.Popen[bytes]] = []

    def commands(self) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        """Return the commands to start, in order, the broker last; each with its additions to the environment."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Return whether the broker is ready."""
        return answers(self.port)

    @property
    def url(self) -> str:
        """Address in the form of Hanse's settings."""
        return f"mqtt://{LOOPBACK}:{self.port}"

    @property
    def log_path(self) -> Path:
        """File with all of its output, over restarts."""
        return self.directory / f"{self.name}.log"

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that were started."""
        return [process.pid for process in self._processes]

    def start(self) -> None:
        """Start the broker, and return when it answers.

        Raises:
            LocalError: a program is missing.
            Unavailable: it did not start.
        """
        if self._processes:
            raise LocalError(f"{self.name} is already running; stop it first.")
        parent_pid = os.getpid()
        for words, environment in self.commands():
            with self.log_path.open("ab") as log:
                self._processes.append(
                    subprocess.Popen(  # noqa: S603 - our own arguments
                        words,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        cwd=self.directory,
                        env={**os.environ, **environment},
                        start_new_session=True,
                        preexec_fn=lambda: die_with_parent(parent_pid),  # noqa: PLW1509 - little more than a system call
                    )
                )
        until = time.monotonic() + self.ready_s
        while not self.is_ready():
            ended = self._processes[-1].poll()
            if ended is not None or time.monotonic() > until:
                said = self.log_path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
                self.kill()
                why = "was not ready in time" if ended is None else f"ended with code {ended}"
                raise Unavailable(f"{self.name} {why}. Its last output:\n{said}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it as an operator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        # The broker first, because it may need the others for an orderly shutdown.
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
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


def answers(port: int) -> bool:
    """Return whether an MQTT 3.1.1 broker accepts a client on the port."""
    hello = v311.connect(f"is-it-up-{os.getpid()}", clean_session=True, keep_alive_s=10)
    try:
        with socket.create_connection((LOOPBACK, port), timeout=5.0) as wire:
            wire.sendall(hello)
            answer = wire.recv(4)
            wire.sendall(v311.DISCONNECT)
    except OSError:
        return False
    return answer == b"\x20\x02\x00\x00"
