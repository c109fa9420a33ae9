"""A collector in a process of its own, as `hanse collect` and the source run it, to be killed at will."""

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hanse.pipeline.collector_settings import CollectorSettings
from hanse.pipeline.schemas.mqtt import conform
from hanse.pipeline.spool import SpoolReader, read_slice

SRC = str(Path(__file__).parents[2] / "src")


class CollectorProcess:
    """`with CollectorProcess(settings) as collector: ...`; it never outlives the block."""

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
        """End its input, as a dying driver does; the exit code and what it said."""
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


def spooled(root: str | Path, producer: str) -> list[dict[str, Any]]:
    """All rows of a producer, in order, as the contract has them."""
    reader = SpoolReader(root, producer)
    parts = reader.slices(reader.head(), reader.tail())
    return [row for part in parts for batch in read_slice(part) for row in conform(batch).to_pylist()]
