"""Collectors in processes of their own, as `hanse collect` and the source run them, for tests that kill them."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from tests.federation import environment

from hanse.pipeline.collector_settings import CollectorSettings
from hanse.pipeline.collector_status import CollectorStatus, read_status
from hanse.pipeline.schemas.mqtt import conform
from hanse.pipeline.spool import SpoolReader, read_slice

SRC = str(Path(__file__).parents[2] / "src")


class Collecting(Protocol):
    """Collector of either kind, in this process."""

    @property
    def status(self) -> CollectorStatus: ...
    async def run(self) -> None: ...
    def stop(self) -> None: ...


_Kind = TypeVar("_Kind", bound=Collecting)


async def until(what: str, is_so: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(30):
            while not is_so():  # noqa: ASYNC110 - the collector signals nothing, so poll it
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(what) from None


@asynccontextmanager
async def collecting(collector: _Kind) -> AsyncIterator[_Kind]:
    """Run a collector for the block: `async with collecting(Collector(settings)) as collector: ...`."""
    task = asyncio.create_task(collector.run())
    try:
        await until("collecting", lambda: collector.status.state == "collecting" or task.done())
        yield collector
    finally:
        collector.stop()
        await task


class CollectorProcess:
    """Collector process: `with CollectorProcess(settings) as collector: ...`; it never outlives the block."""

    def __init__(self, settings: CollectorSettings) -> None:
        self.settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hanse.pipeline.collector"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": SRC},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(self.settings.to_json().encode() + b"\n")
        self._process.stdin.flush()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def stop(self) -> tuple[int, str]:
        """End its input, as a dying driver does; return the exit code and its output."""
        assert self._process is not None
        _, said = self._process.communicate(timeout=30)
        return self._process.returncode, said.decode()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            self.kill()


class LeafProcess:
    """Process of `hanse collect --federation` as users run it, which tests can kill and restart."""

    def __init__(self, identity: int, links: Sequence[str], spool: Path, topics: str, *words: str) -> None:
        self.spool = spool
        self.producer = f"hanse-leaf-{identity}"
        self._words = [sys.executable, "-m", "hanse", "collect", "--id", str(identity), "--topics", topics]
        self._words += ["--spool", str(spool), *words]
        for link in links:
            self._words += ["--federation", link]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._process is None, "it is already running"
        self.spool.mkdir(parents=True, exist_ok=True)
        with (self.spool / "leaf.log").open("ab") as log:
            self._process = subprocess.Popen(self._words, stdout=log, stderr=log, env=environment())

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it with a signal; return its exit code."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(how)
        try:
            return process.wait(20)
        finally:
            process.kill()
            process.wait()

    @property
    def log(self) -> str:
        """All of its output, over restarts."""
        return (self.spool / "leaf.log").read_text()

    @property
    def status(self) -> CollectorStatus | None:
        return read_status(self.spool, self.producer)

    @property
    def is_collecting(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        status = self.status
        return status is not None and status.pid == self._process.pid and status.state == "collecting"

    @property
    def count(self) -> int:
        """Number of rows in the spool."""
        return SpoolReader(self.spool, self.producer).tail().rows

    def rows(self) -> list[dict[str, Any]]:
        return spooled(self.spool, self.producer)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGKILL)


def spooled(root: str | Path, producer: str) -> list[dict[str, Any]]:
    """Return all rows of a producer, in order, in the schema of the source."""
    reader = SpoolReader(root, producer)
    parts = reader.slices(reader.head(), reader.tail())
    return [row for part in parts for batch in read_slice(part) for row in conform(batch).to_pylist()]
