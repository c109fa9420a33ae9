"""Observation of processes from outside during a drill: their memory, disks and gauges, at regular times.

A drill's clients share this event loop, so a delay here is part of their latencies. Memory costs one read of /proc, but
a walk through a directory and a page of metrics take some 3 ms per site. For all five sites twice per second, that was
2 to 4 % of the time, which a 99th percentile shows. Disks and gauges are therefore read for one site at a time, and
seldom.
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
# A drill of ten minutes has some hundreds of samples. This keeps the columns small for any drill.
_SAMPLES_MAX = 100_000
_MEMORY_EVERY_S = 0.5
# Each site's disk and gauges are read in turn: with five sites every 10 s, and each turn takes 0.15 % of the time.
_TURN_EVERY_S = 2.0


@dataclass(slots=True)
class Samples:
    """Columns of one site, memory with its times; a value is None while the process was away."""

    at_s: list[float] = field(default_factory=list)
    resident_mb: list[float | None] = field(default_factory=list)
    disk_mb: list[float] = field(default_factory=list)
    outbox: list[float | None] = field(default_factory=list)

    def highest_mb(self, from_s: float, to_s: float) -> float:
        """Return the highest memory in a time; 0 if the process never ran."""
        pairs = zip(self.at_s, self.resident_mb, strict=True)
        return max((mb for at_s, mb in pairs if mb is not None and from_s <= at_s <= to_s), default=0.0)


class Watch:
    """`async with Watch(ground, directories) as watch`: samples every site's federator until the end of the block.

    Disks and gauges have a first sample before the block and a last one after it.

    Args:
        directories: state directory of each site's federator.
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
        """Return the bytes that the federator reports on its disk; None if it does not answer or has no such gauge."""
        try:
            found = pages.parse(await get(f"{self._ground.places[site].metrics_url}/metrics"))
        except Unavailable:
            return None
        waiting = [value for name, value in found.items() if "outbox" in name and "total" not in name]
        return max(waiting) if waiting else None


def disk_bytes(directory: Path) -> int:
    """Return the bytes of the files below a directory, without the output of the process."""
    total = 0
    for path in directory.rglob("*"):
        try:
            if path.is_file() and not path.name.startswith("output.log"):
                total += path.stat().st_blocks * 512
        except OSError:
            continue  # deleted between listing and reading
    return total
