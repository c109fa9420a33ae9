"""A gateway started from its command line, in front of brokers that the test runs."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.federation import environment

DEADLINE_S = 30.0


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition."""
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, f"not within {deadline_s} s: {what}"
        time.sleep(0.02)


class Gateway:
    """One `hanse gateway` process: `with Gateway(tmp_path, a.url, b.url) as gateway: connect(gateway.port)`.

    Args:
        brokers: as `--broker` takes them; a URL alone gets the id `b0`, `b1`, ...
        words: further flags.
    """

    def __init__(
        self,
        directory: Path,
        *brokers: str,
        words: tuple[str, ...] = (),
        listen: tuple[str, ...] = ("mqtt://127.0.0.1:0",),
    ) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.state_dir = directory / "state"
        named = [one if "=" in one.partition("://")[0] else f"b{k}={one}" for k, one in enumerate(brokers)]
        self.words = [sys.executable, "-m", "hanse", "gateway", "--metrics", "127.0.0.1:0"]
        self.words += ["--state-dir", str(self.state_dir), "--shutdown-grace", "0s", "--health-interval", "100ms"]
        self.words += [word for one in listen for word in ("--listen", one)]
        self.words += [word for one in named for word in ("--broker", one)]
        self.words += words
        self.process: subprocess.Popen[bytes] | None = None
        self._running: dict[str, Any] = {}

    def start(self) -> None:
        """Start it, and wait until clients may connect."""
        (self.state_dir / "gateway.json").unlink(missing_ok=True)
        with (self.directory / "gateway.log").open("ab") as log:
            self.process = subprocess.Popen(self.words, stdout=log, stderr=log, env=environment())
        wait_until(self._is_ready, f"the gateway runs; its log: {self.log}")

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the gateway ended with {self.process.returncode}:\n{self.log}"
        path = self.state_dir / "gateway.json"
        if path.exists():
            self._running = json.loads(path.read_text())
        return bool(self._running) and self._running["pid"] == self.process.pid

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it with a signal; return its exit code."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(how)
        try:
            return process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        assert "Traceback" not in self.log, self.log

    @property
    def log(self) -> str:
        """All of its log."""
        path = self.directory / "gateway.log"
        return path.read_text() if path.exists() else ""

    @property
    def pid(self) -> int:
        """Its process."""
        assert self.process is not None
        return self.process.pid

    @property
    def urls(self) -> list[str]:
        """URLs of its listeners."""
        return list(self._running["listeners"])

    @property
    def port(self) -> int:
        """The port of its first listener."""
        return self.port_of(0)

    def port_of(self, k: int) -> int:
        """Return the port of a listener."""
        return int(self.urls[k].rpartition(":")[2].partition("/")[0])

    @property
    def pages(self) -> str:
        """The URL of its pages."""
        return str(self._running["metrics"])

    def page(self, path: str) -> tuple[int, str]:
        """Return status and text of a page."""
        try:
            with urllib.request.urlopen(self.pages + path, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def health(self) -> dict[str, Any]:
        """Return its health document."""
        found: dict[str, Any] = json.loads(self.page("/healthz")[1])
        return found

    def metric(self, line: str) -> float:
        """Return one figure of its metrics; 0 if it is not there."""
        for shown in self.page("/metrics")[1].splitlines():
            if shown.rpartition(" ")[0] == line:
                return float(shown.rpartition(" ")[2])
        return 0.0

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `hanse gateway ...` against it."""
        return subprocess.run(
            [sys.executable, "-m", "hanse", "gateway", *words, "--state-dir", str(self.state_dir)],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=30,
            check=False,
        )


class RawClient:
    """A socket that speaks MQTT by hand."""

    def __init__(self, port: int, timeout_s: float = 20.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._have = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def packet(self) -> bytes:
        """Return the next packet; nothing at the end of the stream."""
        while True:
            have = self._have
            if len(have) >= 2:
                length = shift = 0
                for i in range(1, min(5, len(have))):
                    length |= (have[i] & 0x7F) << shift
                    shift += 7
                    if have[i] < 128:
                        end = i + 1 + length
                        if len(have) >= end:
                            self._have = have[end:]
                            return have[:end]
                        break
            try:
                more = self.socket.recv(65536)
            except ConnectionResetError:
                more = b""
            if not more:
                return b""
            self._have += more

    def is_closed(self) -> bool:
        """Return whether the other side has closed; waits for that."""
        return self.packet() == b""
