"""The federation under test: one that is started for it (`OwnGround`), or one that already runs (`GivenGround`).

Rules:

1. Faults act through a ground, and do not know how it manages its processes.
2. A federation started here listens on loopback, keeps its files below one directory, and is stopped at the end.
3. In the user's federation, only the processes named in its state file are touched, and only while the supervisor that
   wrote the file runs (otherwise a process id may belong to another process by now). That supervisor restarts the
   killed processes.
"""

import asyncio
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hanse.errors import LocalError, Unavailable
from hanse.local import state as state_file
from hanse.local.agents import LINKS as LINK_KINDS
from hanse.local.agents import agent_command, is_converged
from hanse.local.emulator import LinkEmulator
from hanse.local.http import get_json
from hanse.local.processes import SupervisedProcess
from hanse.local.supervise import Federation, FederationSettings
from hanse.settings import format_duration

Kind = Literal["federator", "broker"]
# Abilities of a ground that a fault may need.
FEDERATORS, BROKERS, LINKS = "federators", "brokers", "links"

BROKERS_DEFAULT = 5
# Default announcement interval of the federators.
INTERVAL_S = 1.0
CONVERGED_S = 60.0
_REVIVED_S = 30.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Place:
    """One broker and its federator, as a client sees them."""

    site: int
    id: int
    broker_url: str
    metrics_url: str


class Ground(ABC):
    """Target of faults.

    Attributes:
        interval_s: announcement interval of the federators.
        links: `(a, b)` to the emulator that `b` dials instead of `a`; empty if links are not emulated.
    """

    interval_s: float = INTERVAL_S
    places: Sequence[Place]
    links: Mapping[tuple[int, int], LinkEmulator]

    @property
    @abstractmethod
    def abilities(self) -> frozenset[str]:
        """Kinds of targets that faults can act on: FEDERATORS, BROKERS, LINKS."""

    @abstractmethod
    def pid(self, kind: Kind, site: int) -> int | None:
        """Return the process id; None while the process does not run."""

    @abstractmethod
    async def crash(self, kind: Kind, site: int) -> None:
        """Send SIGKILL."""

    @abstractmethod
    async def leave(self, kind: Kind, site: int) -> None:
        """Send SIGTERM, and wait for the end."""

    @abstractmethod
    async def revive(self, kind: Kind, site: int) -> None:
        """Let an ended process run again; return when the process exists, ready or not."""

    @abstractmethod
    def unasked_ends(self) -> int:
        """Return how many processes ended without a fault, since the beginning."""

    def signal(self, kind: Kind, site: int, number: signal.Signals) -> None:
        """Send a signal to a running process."""
        pid = self.pid(kind, site)
        if pid is None:
            raise Unavailable(f"The {kind} of site {site} does not run, so it cannot be sent {number.name}.")
        os.kill(pid, number)

    async def is_converged(self, group: str | None = None) -> bool:
        """Return whether all federators are connected to their brokers and agree, also about a given group."""
        try:
            pages = await asyncio.gather(*(get_json(f"{place.metrics_url}/healthz") for place in self.places))
            rows = await asyncio.gather(*(self.group(place.site, group) for place in self.places)) if group else []
        except Unavailable:
            return False
        cores = {page["management_core"] for page in pages}
        anchors = {None if row is None else row["core"] for row in rows}
        return (
            all(page["broker"] == "connected" for page in pages)
            and all(self._is_linked(page) for page in pages)
            and len(cores) == 1
            and None not in cores
            and (not group or (len(anchors) == 1 and None not in anchors))
        )

    async def wait_converged(self, deadline_s: float = CONVERGED_S, group: str | None = None) -> float:
        """Return the seconds until the federation converged.

        Raises:
            Unavailable: it did not converge within the deadline.
        """
        began_s = time.monotonic()
        while not await self.is_converged(group):
            if time.monotonic() - began_s > deadline_s:
                raise Unavailable(f"The federation did not converge within {deadline_s:g} s.")
            await asyncio.sleep(_POLL_S)
        return time.monotonic() - began_s

    async def group(self, site: int, group: str) -> dict[str, Any] | None:
        """Return one federator's knowledge of a group."""
        rows = (await get_json(f"{self.places[site].metrics_url}/groups"))["groups"]
        found: dict[str, Any] | None = next((row for row in rows if row["group"] == group), None)
        return found

    def _is_linked(self, page: Mapping[str, Any]) -> bool:
        return bool(page["neighbours"]) or len(self.places) == 1


class OwnGround(Ground):
    """Brokers and federators started here, each link through an emulator. Use it with `async with`."""

    def __init__(
        self,
        directory: Path,
        brokers: int = BROKERS_DEFAULT,
        overlay: str = "ring",
        *,
        link: str = "direct",
        emulated_links: bool = True,
        interval_s: float = INTERVAL_S,
        flags: Sequence[str] = (),
    ) -> None:
        """Prepare the federation. `flags` go to each federator's command line; broker links cannot be emulated."""
        if link not in LINK_KINDS:
            raise LocalError(f"Links of the kind {link!r} were requested; expected {' or '.join(LINK_KINDS)}.")
        settings = FederationSettings(
            brokers=brokers,
            directory=directory,
            overlay=overlay,
            emulated_links=emulated_links and link == "direct",
            # A broker has everything that it acknowledged on disk within two seconds, and none of its queues is ever
            # full.
            autosave_s=1,
            queued_max=0,
        )
        self.interval_s = interval_s
        words = ["--announcement-interval", format_duration(interval_s), *flags]
        self._federation = Federation(settings, lambda site: [*agent_command(site, link), *words], is_converged)
        sites = self._federation.sites
        self.places = [Place(site.k, site.k, site.broker_url, site.metrics_url) for site in sites]
        self._degrees = {site.k: len(site.neighbours_all) for site in sites}
        self.links = self._federation.links

    @property
    def abilities(self) -> frozenset[str]:
        """All kinds; links only if they are emulated."""
        own = {FEDERATORS, BROKERS}
        return frozenset(own | {LINKS} if self._federation.settings.emulated_links else own)

    async def __aenter__(self) -> "OwnGround":  # noqa: PYI034 - not meant to be derived from
        await self._federation.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        # A process that a fault left stopped would not handle SIGTERM.
        for site in range(len(self.places)):
            for kind in ("federator", "broker"):
                if (pid := self.pid(kind, site)) is not None:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
        await self._federation.stop()

    def broker_directory(self, site: int) -> Path:
        """Return where a broker keeps its files."""
        return self._federation.sites[site].broker_directory

    def pid(self, kind: Kind, site: int) -> int | None:
        """Return the id of the current process."""
        return self._process(kind, site).pid

    async def crash(self, kind: Kind, site: int) -> None:
        """Send SIGKILL, without a restart until `revive`."""
        process = self._process(kind, site)
        await process.kill()
        await process.stop()

    async def leave(self, kind: Kind, site: int) -> None:
        """Send SIGTERM, without a restart until `revive`."""
        await self._process(kind, site).stop()

    async def revive(self, kind: Kind, site: int) -> None:
        """Start the process with the same command line, directory and ports."""
        await self._process(kind, site).start()

    def unasked_ends(self) -> int:
        """Return how often the supervisor had to restart a process by itself."""
        return sum(process.restarts for process in [*self._federation.agents, *self._federation.brokers])

    def _process(self, kind: Kind, site: int) -> SupervisedProcess:
        return (self._federation.agents if kind == "federator" else self._federation.brokers)[site]

    def _is_linked(self, page: Mapping[str, Any]) -> bool:
        return len(page["neighbours"]) == self._degrees[int(page["id"])]


class GivenGround(Ground):
    """Federation that `hanse up` runs, known by its state file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found = state_file.read(path)
        self.links = {}
        places: list[Place] = []
        for site, one in enumerate(found.federators):
            if one.metrics is None:
                raise LocalError(
                    f"{path} names no metrics address of federator {one.id}, which is needed to judge the run."
                )
            places.append(Place(site, one.id, one.broker, one.metrics))
        if len(places) < 2:
            raise LocalError(f"{path} names {len(places)} brokers; a message needs at least two.")
        self.places = places
        self._started = (found.supervisor_pid, found.supervisor_started)
        self._has_broker_pids = all(one.broker_pid is not None for one in found.federators)
        self._ended: dict[tuple[Kind, int], int] = {}

    @property
    def abilities(self) -> frozenset[str]:
        """Kinds that have process ids; the links have no emulator."""
        if not self._is_supervised():
            return frozenset()
        return frozenset({FEDERATORS, BROKERS} if self._has_broker_pids else {FEDERATORS})

    def pid(self, kind: Kind, site: int) -> int | None:
        """Return the id from the current state file, which follows restarts."""
        if not self._is_supervised():
            raise LocalError(f"The supervisor that wrote {self._path} is gone, so its process ids mean nothing.")
        one = state_file.read(self._path).federators[site]
        return (one.federator_pid if kind == "federator" else one.broker_pid) or None

    async def crash(self, kind: Kind, site: int) -> None:
        """Send SIGKILL. The supervisor restarts the process."""
        self._end(kind, site, signal.SIGKILL)

    async def leave(self, kind: Kind, site: int) -> None:
        """Send SIGTERM. The supervisor restarts the process."""
        self._end(kind, site, signal.SIGTERM)

    async def revive(self, kind: Kind, site: int) -> None:
        """Wait until the supervisor has restarted the process."""
        old = self._ended.pop((kind, site), None)
        until_s = time.monotonic() + _REVIVED_S
        while (now := self.pid(kind, site)) is None or now == old:
            if time.monotonic() > until_s:
                raise Unavailable(
                    f"The {kind} of site {site} was ended and not started again within {_REVIVED_S:g} s; "
                    "was the federation started with --no-restart?"
                )
            await asyncio.sleep(_POLL_S)

    def unasked_ends(self) -> int:
        """Return 0, because the supervisor does not tell."""
        return 0

    def _end(self, kind: Kind, site: int, number: signal.Signals) -> None:
        pid = self.pid(kind, site)
        if pid is not None:
            self._ended[kind, site] = pid
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _is_supervised(self) -> bool:
        pid, started = self._started
        return pid is not None and started is not None and state_file.process_start(pid) == started
