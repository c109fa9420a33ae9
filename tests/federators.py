"""Federators started one by one from their command line, beside brokers that the test configures."""

import contextlib
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.federation import environment, eventually

from hanse.interest.vendor import MOSQUITTO_LOG_TYPES
from hanse.local import ports

# Configuration that a host broker needs to report its subscriptions.
LOG_LINES = ("log_dest topic", *(f"log_type {kind}" for kind in MOSQUITTO_LOG_TYPES), "connection_messages true")


class Broker(Protocol):
    """Broker of any kind."""

    @property
    def url(self) -> str:
        """Address in the form of Hanse's settings."""


class Federator:
    """One `hanse federator` process."""

    def __init__(self, identity: int, broker: str, directory: Path, *words: str) -> None:
        self.id = identity
        self.directory = directory
        self.link_port, self.metrics_port = ports.free(2)
        self.link_url = f"mqtt://127.0.0.1:{self.link_port}"
        self.words = [sys.executable, "-m", "hanse", "federator", "--id", str(identity), "--broker", broker]
        self.words += ["--state-dir", str(directory / f"federator-{identity}")]
        self.words += ["--metrics", f"127.0.0.1:{self.metrics_port}", *words]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """All of its log output, over restarts."""
        path = self.directory / f"federator-{self.id}.log"
        return path.read_text() if path.exists() else ""

    def start(self) -> None:
        """Start it, without waiting until it answers."""
        assert self.process is None, "it is already running"
        with (self.directory / f"federator-{self.id}.log").open("ab") as log:
            self.process = subprocess.Popen(self.words, stdout=log, stderr=log, env=environment())

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it with a signal; return its exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(how)
        try:
            code = self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process = None
        return code

    def page(self, path: str) -> dict[str, Any]:
        """Return one of its JSON pages."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def metrics(self) -> str:
        """Return its Prometheus page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    def health(self) -> dict[str, Any] | None:
        """Return its health; None if it does not answer or its broker is down."""
        try:
            return self.page("/healthz")
        except (urllib.error.URLError, OSError):
            return None

    def counters(self) -> dict[str, int]:
        """Return its counters."""
        found: dict[str, int] = self.page("/healthz")["counters"]
        return found

    def neighbours(self) -> list[int]:
        """Return the neighbours whose links are up."""
        health = self.health()
        return [] if health is None else list(health["neighbours"])

    def core_of(self, group: str) -> int | None:
        """Return the group's core, as this federator knows it."""
        for row in self.page("/groups")["groups"]:
            if row["group"] == group:
                core: int | None = row["core"]
                return core
        return None

    def knows(self, group: str) -> bool:
        """Return whether it knows the group and a core for it."""
        return self.core_of(group) is not None


def knows_all(federators: Sequence[Federator], group: str) -> bool:
    """Return whether all agree on the core of a group."""
    cores = {federator.core_of(group) for federator in federators}
    return len(cores) == 1 and None not in cores


def is_meshed(federators: Sequence[Federator], group: str) -> bool:
    """Return whether all members of a group agree on its core, and each has a mesh neighbour."""
    rows = [row for one in federators for row in one.page("/groups")["groups"] if row["group"] == group]
    return len(rows) == len(federators) and len({row["core"] for row in rows}) == 1 and all(r["mesh"] for r in rows)


@contextlib.contextmanager
def running(federators: Sequence[Federator]) -> Iterator[Sequence[Federator]]:
    """Run all federators until the end of the block; the block starts when they have converged."""
    try:
        for federator in federators:
            federator.start()
        eventually(lambda: is_converged(federators), f"{len(federators)} federators have converged", 40)
        yield federators
    finally:
        for federator in federators:
            federator.end()


def is_converged(federators: Sequence[Federator]) -> bool:
    """Return whether all are connected to their brokers and agree on the core of the management group."""
    for federator in federators:
        assert federator.process is not None
        assert federator.process.poll() is None, federator.log
    pages = [federator.health() for federator in federators]
    cores = {None if page is None else page["management_core"] for page in pages}
    return len(cores) == 1 and None not in cores


def ring(brokers: Sequence[Broker], directory: Path, words: Sequence[Sequence[str]] | None = None) -> list[Federator]:
    """Return one federator per broker, linked in a ring (two: a line); `words` holds each one's further arguments."""
    made: list[Federator] = []
    for k, broker in enumerate(brokers):
        made.append(Federator(k, broker.url, directory, *(words[k] if words else ())))
        made[k].words += ["--link-listen", made[k].link_url]
        dialled = {k - 1, 0} if k == len(brokers) - 1 else {k - 1}
        for other in sorted(dialled - {-1, k}):
            made[k].words += ["--neighbour", made[other].link_url]
    return made
