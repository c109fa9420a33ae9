"""Watching processes from outside while a drill runs: their memory, their disks, their gauges, at regular moments."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from hanse.errors import Unavailable
from hanse.lab.chaos import pages
from hanse.lab.chaos.ground import Ground
from hanse.local.http import get

MB = 1e6
# A drill of ten minutes has some hundreds of samples; the columns stay small whatever is asked for.
_SAMPLES_MAX = 100_000


@dataclass(slots=True)
class Samples:
    """One site's columns; a value is None where the process was away."""

    at_s: list[float] = field(default_factory=list)
    resident_mb: list[float | None] = field(default_factory=list)
    disk_mb: list[float] = field(default_factory=list)
    outbox: list[float | None] = field(default_factory=list)

    def highest_mb(self, from_s: float, to_s: float) -> float:
        """The most memory in a time; 0 where it never ran."""
        pairs = zip(self.at_s, self.resident_mb, strict=True)
        return max((mb for at_s, mb in pairs if mb is not None and from_s <= at_s <= to_s), default=0.0)


class Watch:
    """`async with Watch(ground, directories) as watch`: samples every site's federator until the end of the block.

    Args:
        directories: of each site, where its federator keeps its state.
    """

    def __init__(self, ground: Ground, directories: Sequence[Path], every_s: float = 0.5) -> None:
        self.sites = [Samples() for _ in ground.places]
        self._ground = ground
        self._directories = directories
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="watch federators")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while len(self.sites[0].at_s) < _SAMPLES_MAX:
            for site, samples in enumerate(self.sites):
                pid = self._ground.pid("federator", site)
                resident = None if pid is None else pages.resident_bytes(pid)
                samples.at_s.append(time.monotonic())
                samples.resident_mb.append(None if resident is None else round(resident / MB, 1))
                samples.disk_mb.append(round(disk_bytes(self._directories[site]) / MB, 3))
                samples.outbox.append(await self._outbox(site))
            await asyncio.sleep(self._every_s)

    async def _outbox(self, site: int) -> float | None:
        """What the federator says waits on its disk; None while it does not answer or has no such gauge."""
        try:
            found = pages.parse(await get(f"{self._ground.places[site].metrics_url}/metrics"))
        except Unavailable:
            return None
        waiting = [value for name, value in found.items() if "outbox" in name and "total" not in name]
        return max(waiting) if waiting else None


def disk_bytes(directory: Path) -> int:
    """What the files below a directory occupy, without what the process printed."""
    total = 0
    for path in directory.rglob("*"):
        try:
            if path.is_file() and path.name != "output.log":
                total += path.stat().st_blocks * 512
        except OSError:
            continue  # gone between listing and looking
    return total
