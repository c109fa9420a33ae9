"""Watching processes from outside while a drill runs: their memory, their disks, their gauges, at regular moments.

A drill's clients share this event loop, and what holds it up is in their latencies: memory is one read of /proc, but a
walk through a directory and a page of metrics take some 3 ms a site. All five of them twice a second were 2 to 4 % of
the time, which a 99th percentile shows: those are looked at one site after the other, and seldom.
"""

import asyncio
import itertools
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
_MEMORY_EVERY_S = 0.5
# One site's disk and gauges, in turn: each of five has its turn every 10 s, and each turn is 0.15 % of the time.
_TURN_EVERY_S = 2.0


@dataclass(slots=True)
class Samples:
    """One site's columns, memory with its moments; a value is None where the process was away."""

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

    Disks and gauges have a first sample before the block and a last one after it.

    Args:
        directories: of each site, where its federator keeps its state.
    """

    def __init__(self, ground: Ground, directories: Sequence[Path]) -> None:
        self.sites = [Samples() for _ in ground.places]
        self._ground = ground
        self._directories = directories
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._look_at_all()
        self._tasks = [
            asyncio.create_task(self._watch_memory(), name="watch memory"),
            asyncio.create_task(self._watch_disks(), name="watch disks and gauges"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        if error is None:
            for end in ends:
                if isinstance(end, Exception):
                    raise end
            await self._look_at_all()

    async def _watch_memory(self) -> None:
        for _ in range(_SAMPLES_MAX):
            for site, samples in enumerate(self.sites):
                pid = self._ground.pid("federator", site)
                resident = None if pid is None else pages.resident_bytes(pid)
                samples.at_s.append(time.monotonic())
                samples.resident_mb.append(None if resident is None else round(resident / MB, 1))
            await asyncio.sleep(_MEMORY_EVERY_S)

    async def _watch_disks(self) -> None:
        for site in itertools.islice(itertools.cycle(range(len(self.sites))), _SAMPLES_MAX):
            await asyncio.sleep(_TURN_EVERY_S)
            await self._look_at(site)

    async def _look_at_all(self) -> None:
        for site in range(len(self.sites)):
            await self._look_at(site)

    async def _look_at(self, site: int) -> None:
        self.sites[site].disk_mb.append(round(disk_bytes(self._directories[site]) / MB, 3))
        self.sites[site].outbox.append(await self._outbox(site))

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
