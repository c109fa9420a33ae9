"""The federation that suffers: one that is started for it (`OwnGround`), or one that runs already (`GivenGround`).

Rules:

1. Faults act through a ground and know nothing of how its processes are kept.
2. What is started here listens on the loopback, keeps its files below one directory, and is taken down.
3. Of a federation of the user's only the processes are touched that its state file names, while the supervisor that
   wrote the file is alive (a process id alone may be somebody else's by now). What is killed there is started again by
   that supervisor, not by us.
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
# What a fault may need of a ground.
FEDERATORS, BROKERS, LINKS = "federators", "brokers", "links"

BROKERS_DEFAULT = 5
# The federators' default.
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
    """What faults act upon.

    Attributes:
        interval_s: the federators' announcement interval.
        links: `(a, b)` to the emulator that `b` dials instead of `a`; none where links are not emulated.
    """

    interval_s: float = INTERVAL_S
    places: Sequence[Place]
    links: Mapping[tuple[int, int], LinkEmulator]

    @property
    @abstractmethod
    def abilities(self) -> frozenset[str]:
        """What can be done here: to FEDERATORS, to BROKERS, to LINKS."""

    @abstractmethod
    def pid(self, kind: Kind, site: int) -> int | None:
        """The process id; None while it does not run."""

    @abstractmethod
    async def crash(self, kind: Kind, site: int) -> None:
        """SIGKILL."""

    @abstractmethod
    async def leave(self, kind: Kind, site: int) -> None:
        """SIGTERM, and wait for the end."""

    @abstractmethod
    async def revive(self, kind: Kind, site: int) -> None:
        """Have what was ended run again; returns when its process is there, ready or not."""

    @abstractmethod
    def unasked_ends(self) -> int:
        """Processes that ended although no fault ended them, since the beginning."""

    def signal(self, kind: Kind, site: int, number: signal.Signals) -> None:
        """Send a signal to a process that runs."""
        pid = self.pid(kind, site)
        if pid is None:
            raise Unavailable(f"The {kind} of site {site} does not run, so it cannot be sent {number.name}.")
        os.kill(pid, number)

    async def is_converged(self, group: str | None = None) -> bool:
        """All federators are at their brokers and agree; about one group too, if named."""
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
        """Seconds until the federation had converged.

        Raises:
            Unavailable: it did not within the deadline.
        """
        began_s = time.monotonic()
        while not await self.is_converged(group):
            if time.monotonic() - began_s > deadline_s:
                raise Unavailable(f"The federation did not converge within {deadline_s:g} s.")
            await asyncio.sleep(_POLL_S)
        return time.monotonic() - began_s

    async def group(self, site: int, group: str) -> dict[str, Any] | None:
        """What one federator knows of a group."""
        rows = (await get_json(f"{self.places[site].metrics_url}/groups"))["groups"]
        found: dict[str, Any] | None = next((row for row in rows if row["group"] == group), None)
        return found

    def _is_linked(self, page: Mapping[str, Any]) -> bool:
        return bool(page["neighbours"]) or len(self.places) == 1


class OwnGround(Ground):
    """Brokers and federators of our own, each link through an emulator; `async with OwnGround(directory) as ground`."""

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
        """`flags` are further words for each federator's command line; broker links cannot be emulated."""
        if link not in LINK_KINDS:
            raise LocalError(f"Links of the kind {link!r} were asked for; expected {' or '.join(LINK_KINDS)}.")
        settings = FederationSettings(
            brokers=brokers,
            directory=directory,
            overlay=overlay,
            emulated_links=emulated_links and link == "direct",
            # What a broker acknowledges is on its disk within two seconds, and no queue of it is ever full.
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
        """All, where links are emulated."""
        own = {FEDERATORS, BROKERS}
        return frozenset(own | {LINKS} if self._federation.settings.emulated_links else own)

    async def __aenter__(self) -> "OwnGround":  # noqa: PYI034 - not meant to be derived from
        await self._federation.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        # A process that a fault left stopped would not hear SIGTERM.
        for site in range(len(self.places)):
            for kind in ("federator", "broker"):
                if (pid := self.pid(kind, site)) is not None:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
        await self._federation.stop()

    def pid(self, kind: Kind, site: int) -> int | None:
        """Of the present process."""
        return self._process(kind, site).pid

    async def crash(self, kind: Kind, site: int) -> None:
        """SIGKILL, and no restart until `revive`."""
        process = self._process(kind, site)
        await process.kill()
        await process.stop()

    async def leave(self, kind: Kind, site: int) -> None:
        """SIGTERM, and no restart until `revive`."""
        await self._process(kind, site).stop()

    async def revive(self, kind: Kind, site: int) -> None:
        """Start it with the same command line, directory and ports."""
        await self._process(kind, site).start()

    def unasked_ends(self) -> int:
        """How often the supervisor had to start something again by itself."""
        return sum(process.restarts for process in [*self._federation.agents, *self._federation.brokers])

    def _process(self, kind: Kind, site: int) -> SupervisedProcess:
        return (self._federation.agents if kind == "federator" else self._federation.brokers)[site]

    def _is_linked(self, page: Mapping[str, Any]) -> bool:
        return len(page["neighbours"]) == self._degrees[int(page["id"])]


class GivenGround(Ground):
    """A federation that `hanse up` runs, known by its state file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found = state_file.read(path)
        self.links = {}
        places: list[Place] = []
        for site, one in enumerate(found.federators):
            if one.metrics is None:
                raise LocalError(f"{path} names no metrics of federator {one.id}, and without them nobody can judge.")
            places.append(Place(site, one.id, one.broker, one.metrics))
        if len(places) < 2:
            raise LocalError(f"{path} tells of {len(places)} brokers; a message needs two to go from one to another.")
        self.places = places
        self._started = (found.supervisor_pid, found.supervisor_started)
        self._has_broker_pids = all(one.broker_pid is not None for one in found.federators)
        self._ended: dict[tuple[Kind, int], int] = {}

    @property
    def abilities(self) -> frozenset[str]:
        """What has process ids; there is no emulator in its links."""
        if not self._is_supervised():
            return frozenset()
        return frozenset({FEDERATORS, BROKERS} if self._has_broker_pids else {FEDERATORS})

    def pid(self, kind: Kind, site: int) -> int | None:
        """As the state file has it now; it follows restarts."""
        if not self._is_supervised():
            raise LocalError(f"The supervisor that wrote {self._path} is gone, so its process ids mean nothing.")
        one = state_file.read(self._path).federators[site]
        return (one.federator_pid if kind == "federator" else one.broker_pid) or None

    async def crash(self, kind: Kind, site: int) -> None:
        """SIGKILL; its supervisor starts it again when it likes."""
        self._end(kind, site, signal.SIGKILL)

    async def leave(self, kind: Kind, site: int) -> None:
        """SIGTERM; likewise."""
        self._end(kind, site, signal.SIGTERM)

    async def revive(self, kind: Kind, site: int) -> None:
        """Wait until the supervisor has started it again."""
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
        """Its supervisor does not tell."""
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
