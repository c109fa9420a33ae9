"""The faults: each is a small class that chooses its target from a seed, begins, and ends.

Rules:

1. A fault undoes itself: after `end`, every process runs and every link is open again, whatever the federation does.
2. If the target has a role (origin, transit, last, core), the fault asks the federation for it at that moment: `Flow`.
3. `span_s` is the time from its beginning to its end. If the protocol's clock matters, it is a multiple of the
   federators' announcement interval A and expiry factor K.
"""

import asyncio
import random
import resource
import signal
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Literal

from hanse.errors import LocalError, Unavailable
from hanse.lab.chaos.ground import BROKERS, FEDERATORS, LINKS, Ground, Kind
from hanse.local.emulator import Direction, LinkEmulator

# The federators' defaults: expiry factor, beacon interval.
K = 3
B_S = 2.0
# Downtime of a killed process: longer than a supervisor's back-off, by default shorter than K x A.
_AWAY_S = 1.2
# Links ping each other and give up after 4.5 s of silence, for any A.
_NOTICED_S = 6.0
# Start-up time of a Python process on a busy machine, in addition to the bounds of the protocol.
_COMING_UP_S = 10.0

Role = Literal["origin", "transit", "last", "core"]


@dataclass(frozen=True, slots=True)
class Flow:
    """Sites of the workload by role. Without a transit of its own, the core takes that role."""

    origin: int
    transit: int
    last: int
    core: int

    def site(self, role: Role) -> int:
        """Return the site of a role."""
        return {"origin": self.origin, "transit": self.transit, "last": self.last, "core": self.core}[role]


class Fault(ABC):
    """One kind of fault.

    Attributes:
        name: name for `--fault`.
        words: description in one sentence.
        needs: required abilities of a ground.
        brokers_killed: site to the time at which its broker was killed.
        target: chosen target, once there is one.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    needs: ClassVar[frozenset[str]]

    def __init__(self, interval_s: float) -> None:
        """Prepare the fault. `interval_s` is the federators' announcement interval, A."""
        self.interval_s = interval_s
        self.brokers_killed: dict[int, float] = {}
        self.target = "nothing"

    @property
    def span_s(self) -> float:
        """Time from the beginning of the fault to its end."""
        return _AWAY_S

    @property
    def converged_bound_s(self) -> float:
        """Time after the end within which the federation must agree again: as after the death of a core."""
        return (K + 1) * self.interval_s + B_S + _COMING_UP_S

    @property
    def kills_brokers(self) -> bool:
        """Return whether a broker loses unsaved state."""
        return False

    @abstractmethod
    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:
        """Begin the fault."""

    @abstractmethod
    async def end(self, ground: Ground) -> None:
        """Undo the fault."""


class KillFederator(Fault):
    """SIGKILL of one federator, and a restart."""

    needs = frozenset({FEDERATORS})
    role: ClassVar[Role]

    def __init__(self, interval_s: float) -> None:
        super().__init__(interval_s)
        self._site = -1

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:  # noqa: ARG002 - the flow tells
        """Kill the federator."""
        self._site = flow.site(self.role)
        self.target = f"federator {self._site}"
        await ground.crash("federator", self._site)

    async def end(self, ground: Ground) -> None:
        """Start the federator again."""
        await ground.revive("federator", self._site)


class KillOrigin(KillFederator):
    """SIGKILL of a publisher's federator."""

    name, role = "kill-origin", "origin"
    words = "SIGKILL of the federator beside a publisher's broker, started again"


class KillTransit(KillFederator):
    """SIGKILL of a federator between publisher and subscriber."""

    name, role = "kill-transit", "transit"
    words = "SIGKILL of a federator that only forwards, started again"


class KillLast(KillFederator):
    """SIGKILL of a subscriber's federator."""

    name, role = "kill-last", "last"
    words = "SIGKILL of the federator beside a subscriber's broker, started again"


class KillCore(KillFederator):
    """SIGKILL of the group's core."""

    name, role = "kill-core", "core"
    words = "SIGKILL of the federator that is the group's core, started again"


class KillBroker(Fault):
    """SIGKILL of a broker that saves its state every other second, and a restart."""

    needs = frozenset({BROKERS})
    role: ClassVar[Role]

    def __init__(self, interval_s: float) -> None:
        super().__init__(interval_s)
        self._site = -1

    @property
    def kills_brokers(self) -> bool:
        """True: the killed broker loses unsaved state."""
        return True

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:  # noqa: ARG002 - the flow tells
        """Kill the broker."""
        self._site = flow.site(self.role)
        self.target = f"broker {self._site}"
        await ground.crash("broker", self._site)
        self.brokers_killed[self._site] = time.monotonic()

    async def end(self, ground: Ground) -> None:
        """Start the broker again."""
        await ground.revive("broker", self._site)


class KillBrokerOrigin(KillBroker):
    """SIGKILL of a publisher's broker."""

    name, role = "kill-broker-origin", "origin"
    words = "SIGKILL of a publisher's broker, started again"


class KillBrokerTransit(KillBroker):
    """SIGKILL of a broker without clients of the workload."""

    name, role = "kill-broker-transit", "transit"
    words = "SIGKILL of the broker of a federator that only forwards, started again"


class KillBrokerLast(KillBroker):
    """SIGKILL of a subscriber's broker."""

    name, role = "kill-broker-last", "last"
    words = "SIGKILL of a subscriber's broker, started again"


class RestartAll(Fault):
    """SIGKILL of everything at once, as by a power cut."""

    name = "restart-all"
    words = "SIGKILL of all brokers and all federators at once, started again at once"
    needs = frozenset({FEDERATORS, BROKERS})

    @property
    def span_s(self) -> float:
        """Zero: the restart follows at once, as fast as a supervisor's would."""
        return 1.0

    @property
    def kills_brokers(self) -> bool:
        """True: all brokers are killed."""
        return True

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:  # noqa: ARG002 - all of them
        """Kill all processes."""
        self.target = "all brokers and federators"
        for place in ground.places:
            await ground.crash("federator", place.site)
            await ground.crash("broker", place.site)
            self.brokers_killed[place.site] = time.monotonic()

    async def end(self, ground: Ground) -> None:
        """Start all processes, brokers first, as an init system would."""
        for place in ground.places:
            await ground.revive("broker", place.site)
        for place in ground.places:
            await ground.revive("federator", place.site)


class GracefulRestart(Fault):
    """SIGTERM, as during an upgrade."""

    name = "graceful-restart"
    words = "SIGTERM of a federator chosen by the seed, started again"
    needs = frozenset({FEDERATORS})

    @property
    def span_s(self) -> float:
        """Zero: the restart follows at once."""
        return 0.5

    def __init__(self, interval_s: float) -> None:
        super().__init__(interval_s)
        self._site = -1

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:
        """End the federator in order."""
        self._site = _any(flow, chance)
        self.target = f"federator {self._site}"
        await ground.leave("federator", self._site)

    async def end(self, ground: Ground) -> None:
        """Start the federator again."""
        await ground.revive("federator", self._site)


class StopContinue(Fault):
    """Process that stands still, like a paused virtual machine or a swapping host."""

    name = "stop-continue"
    words = "SIGSTOP of a federator for 2KA, then SIGCONT"
    needs = frozenset({FEDERATORS})
    kind: ClassVar[Kind] = "federator"

    @property
    def span_s(self) -> float:
        """2KA, but at least long enough for a link's keep-alive to notice."""
        return max(2 * K * self.interval_s, _NOTICED_S)

    def __init__(self, interval_s: float) -> None:
        super().__init__(interval_s)
        self._site = -1

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:
        """Stop the process."""
        self._site = self.choose(flow, chance)
        self.target = f"{self.kind} {self._site}"
        ground.signal(self.kind, self._site, signal.SIGSTOP)

    def choose(self, flow: Flow, chance: random.Random) -> int:
        """Return any site with a role."""
        return _any(flow, chance)

    async def end(self, ground: Ground) -> None:
        """Continue the process."""
        ground.signal(self.kind, self._site, signal.SIGCONT)


class StopBroker(StopContinue):
    """Broker that hangs: connections stay open, nothing answers."""

    name = "stop-broker"
    words = "SIGSTOP of a subscriber's broker for 2KA, then SIGCONT"
    needs = frozenset({BROKERS})
    kind: ClassVar[Kind] = "broker"

    def choose(self, flow: Flow, chance: random.Random) -> int:  # noqa: ARG002 - the flow tells
        """Return the site of a subscriber."""
        return flow.last


class LinkFault(Fault):
    """Disturbance of one link, by default one on the route from the origin to the core."""

    needs = frozenset({LINKS})

    @property
    def span_s(self) -> float:
        """2KA, but at least long enough for a link's keep-alive to notice."""
        return max(2 * K * self.interval_s, _NOTICED_S)

    def __init__(self, interval_s: float) -> None:
        super().__init__(interval_s)
        self._links: list[LinkEmulator] = []

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:
        """Choose the links, and disturb them."""
        links = self.choose(ground, flow, chance)
        self._links = [ground.links[link] for link in links]
        self.target = f"link{'s' if len(links) > 1 else ''} {', '.join(f'{a}-{b}' for a, b in links)}"
        for link in self._links:
            await self.spoil(link, chance)

    def choose(self, ground: Ground, flow: Flow, chance: random.Random) -> list[tuple[int, int]]:
        """Return a link of the transit, or any if there is none."""
        near = [link for link in sorted(ground.links) if flow.transit in link]
        if not ground.links:
            raise LocalError("There is no link to disturb; a federation of one federator has none.")
        return [chance.choice(near or sorted(ground.links))]

    @abstractmethod
    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:
        """Disturb one link."""

    async def end(self, ground: Ground) -> None:  # noqa: ARG002 - the fault remembers its links
        """Restore the links."""
        for link in self._links:
            link.shape(delay_s=0.0, jitter_s=0.0, bytes_per_s=0)
            link.restore()


class CutLink(LinkFault):
    """Cable that is pulled."""

    name = "cut-link"
    words = "a link silently drops everything for 2KA"

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:  # noqa: ARG002 - nothing to draw
        """Cut the link."""
        link.cut()


class ResetLink(LinkFault):
    """Cable that is pulled at a switch that resets its connections."""

    name = "reset-link"
    words = "a link's connections are reset and new ones refused for 2 s"

    @property
    def span_s(self) -> float:
        """Duration named in `words`."""
        return 2.0

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:  # noqa: ARG002 - nothing to draw
        """Reset the link."""
        await link.reset()


class OneWayCut(LinkFault):
    """Firewall that forgets one direction."""

    name = "one-way-cut"
    words = "a link drops everything in one direction, chosen by the seed, for 2KA"

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:
        """Cut one direction."""
        direction = chance.choice(list(Direction))
        self.target += f" {direction.value}"
        link.cut(direction)


class SlowLink(LinkFault):
    """Slow link, like a satellite link in the rain."""

    name = "slow-link"
    words = "a link with 300 ms delay, 100 ms jitter and 50,000 bytes/s for 4 s"

    @property
    def span_s(self) -> float:
        """Duration named in `words`."""
        return 4.0

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:  # noqa: ARG002 - the emulator has its own
        """Make the link slow and narrow."""
        link.shape(delay_s=0.3, jitter_s=0.1, bytes_per_s=50_000)


class Split(LinkFault):
    """Overlay split in two parts."""

    name = "split"
    words = "links are cut so that the origin and one neighbour are apart from the rest for 2KA"

    def choose(self, ground: Ground, flow: Flow, chance: random.Random) -> list[tuple[int, int]]:
        """Return all links between the two parts."""
        others = sorted({b if a == flow.origin else a for a, b in ground.links if flow.origin in (a, b)})
        side = {flow.origin, chance.choice(others)} if others else {flow.origin}
        return [link for link in sorted(ground.links) if len(side & set(link)) == 1]

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:  # noqa: ARG002 - nothing to draw
        """Cut the link."""
        link.cut()


class Islands(LinkFault):
    """Overlay without any links."""

    name = "islands"
    words = "all links are cut for 2KA"

    def choose(self, ground: Ground, flow: Flow, chance: random.Random) -> list[tuple[int, int]]:  # noqa: ARG002
        """Return all links."""
        return sorted(ground.links)

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:  # noqa: ARG002 - nothing to draw
        """Cut the link."""
        link.cut()


class FlappingLink(LinkFault):
    """Loose contact."""

    name = "flapping-link"
    words = "a link is reset and restored repeatedly for 2KA"

    def __init__(self, interval_s: float) -> None:
        super().__init__(interval_s)
        self._flapping: asyncio.Task[None] | None = None

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:
        """Begin to flap."""
        self._flapping = asyncio.create_task(self._flap(link, chance), name="flap")

    async def end(self, ground: Ground) -> None:
        """Stop flapping, and restore the link."""
        if self._flapping is not None:
            self._flapping.cancel()
            await asyncio.gather(self._flapping, return_exceptions=True)
        await super().end(ground)

    async def _flap(self, link: LinkEmulator, chance: random.Random) -> None:
        while True:
            await link.reset()
            await asyncio.sleep(chance.uniform(0.2, 1.0) * self.interval_s)
            link.restore()
            await asyncio.sleep(chance.uniform(0.2, 2.0) * self.interval_s)


class Limited(Fault):
    """Kernel limit on a running process, removed at the end."""

    needs = frozenset({FEDERATORS})
    what: ClassVar[int]

    @property
    def span_s(self) -> float:
        """Duration named in `words`."""
        return 3.0

    def __init__(self, interval_s: float) -> None:
        super().__init__(interval_s)
        self._pid = -1
        self._before = (0, 0)

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:
        """Set the soft limit."""
        site = _any(flow, chance)
        self.target = f"federator {site}"
        pid = ground.pid("federator", site)
        if pid is None:
            raise Unavailable(f"Federator {site} does not run, so it cannot be limited.")
        self._pid = pid
        self._before = resource.prlimit(pid, self.what)
        resource.prlimit(pid, self.what, (self.limit(), self._before[1]))

    @abstractmethod
    def limit(self) -> int:
        """Return the soft limit to set."""

    async def end(self, ground: Ground) -> None:  # noqa: ARG002 - the process is known
        """Restore the former limit."""
        # If the process ended, the new one has its own limits.
        with suppress(ProcessLookupError):
            resource.prlimit(self._pid, self.what, self._before)


class FullDisk(Limited):
    """Failure of every write that would make a file longer, as on a full disk (EFBIG instead of ENOSPC)."""

    name = "full-disk"
    words = "a federator cannot write another byte to a file for 3 s"
    what = resource.RLIMIT_FSIZE

    def limit(self) -> int:
        """Return the limit at which no file grows. Writes within a file still succeed."""
        return 0


class NoDescriptors(Limited):
    """Federator that cannot open files or connections, while its links are reset and must be established again."""

    name = "no-descriptors"
    words = "a federator has no file descriptor left for 3 s, while its links are reset"
    needs = frozenset({FEDERATORS, LINKS})
    what = resource.RLIMIT_NOFILE

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:
        """Set the limit, and then break the links, which the federator must dial again."""
        await super().begin(ground, flow, chance)
        site = int(self.target.rpartition(" ")[2])
        for link, emulator in ground.links.items():
            if site in link:
                await emulator.reset()
                emulator.restore()

    def limit(self) -> int:
        """Return the limit that forbids new descriptors. Open ones stay usable, closed ones cannot be replaced."""
        return 0


def _any(flow: Flow, chance: random.Random) -> int:
    """Return any site with a role."""
    return chance.choice(sorted({flow.origin, flow.transit, flow.last, flow.core}))


_ALL: tuple[type[Fault], ...] = (
    KillOrigin,
    KillTransit,
    KillLast,
    KillCore,
    KillBrokerOrigin,
    KillBrokerTransit,
    KillBrokerLast,
    CutLink,
    ResetLink,
    OneWayCut,
    SlowLink,
    Split,
    Islands,
    FlappingLink,
    StopContinue,
    StopBroker,
    GracefulRestart,
    RestartAll,
    FullDisk,
    NoDescriptors,
)
FAULTS: dict[str, type[Fault]] = {fault.name: fault for fault in _ALL}
# A workload without a fault: the promises must hold there before any fault is tried.
NONE = "none"


def named(name: str, interval_s: float = 1.0) -> Fault | None:
    """Return a fault by its name, for federators with this announcement interval; None for `none`.

    Raises:
        LocalError: there is no such fault.
    """
    if name == NONE:
        return None
    if name not in FAULTS:
        raise LocalError(f"Fault {name!r} is unknown; expected {NONE}, {', '.join(FAULTS)}.")
    return FAULTS[name](interval_s)
