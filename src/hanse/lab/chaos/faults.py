"""The faults: each a small class that chooses its target from a seed, begins, and ends.

Rules:

1. A fault undoes itself: after `end` everything runs and every link is open again, whatever the federation makes of it.
2. Where its target matters (origin, transit, last, core), it is asked of the federation at that moment: `Flow`.
3. `span_s` is how long it lasts, from its begin to its end. Where the protocol's clock matters it is counted in the
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
# A process that was killed is away for so long: longer than a supervisor's back-off, shorter than K x A by default.
_AWAY_S = 1.2
# Links ping each other and give up after 4.5 s of silence, whatever A is.
_NOTICED_S = 6.0
# What a process of Python needs to come up on a machine that is busy, beside the bounds of the protocol.
_COMING_UP_S = 10.0

Role = Literal["origin", "transit", "last", "core"]


@dataclass(frozen=True, slots=True)
class Flow:
    """Who has which part in the workload, as sites. Without a transit of its own the core stands for it."""

    origin: int
    transit: int
    last: int
    core: int

    def site(self, role: Role) -> int:
        """The site that has a part."""
        return {"origin": self.origin, "transit": self.transit, "last": self.last, "core": self.core}[role]


class Fault(ABC):
    """One kind of fault.

    Attributes:
        name: as in `--fault`.
        words: what it does, in a sentence.
        needs: what a ground must be able to do.
        brokers_killed: site to the time at which its broker was killed.
        target: what was chosen, once it was.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    needs: ClassVar[frozenset[str]]

    def __init__(self, interval_s: float) -> None:
        """`interval_s` is the federators' announcement interval, A."""
        self.interval_s = interval_s
        self.brokers_killed: dict[int, float] = {}
        self.target = "nothing"

    @property
    def span_s(self) -> float:
        """From its begin to its end."""
        return _AWAY_S

    @property
    def converged_bound_s(self) -> float:
        """Within which the federation has to agree again after the end: as after the death of a core."""
        return (K + 1) * self.interval_s + B_S + _COMING_UP_S

    @property
    def kills_brokers(self) -> bool:
        """Whether a broker loses what it has not saved."""
        return False

    @abstractmethod
    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:
        """Make it happen."""

    @abstractmethod
    async def end(self, ground: Ground) -> None:
        """Undo it."""


class KillFederator(Fault):
    """SIGKILL of one federator, and a start."""

    needs = frozenset({FEDERATORS})
    role: ClassVar[Role]

    def __init__(self, interval_s: float) -> None:
        super().__init__(interval_s)
        self._site = -1

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:  # noqa: ARG002 - the flow tells
        """Kill it."""
        self._site = flow.site(self.role)
        self.target = f"federator {self._site}"
        await ground.crash("federator", self._site)

    async def end(self, ground: Ground) -> None:
        """Start it."""
        await ground.revive("federator", self._site)


class KillOrigin(KillFederator):
    """Where a publisher is."""

    name, role = "kill-origin", "origin"
    words = "SIGKILL of the federator beside a publisher's broker, started again"


class KillTransit(KillFederator):
    """Between them."""

    name, role = "kill-transit", "transit"
    words = "SIGKILL of a federator that only passes on, started again"


class KillLast(KillFederator):
    """Where a subscriber is."""

    name, role = "kill-last", "last"
    words = "SIGKILL of the federator beside a subscriber's broker, started again"


class KillCore(KillFederator):
    """Who anchors the group."""

    name, role = "kill-core", "core"
    words = "SIGKILL of the federator that is the group's core, started again"


class KillBroker(Fault):
    """SIGKILL of a broker that saves its state every other second, and a start."""

    needs = frozenset({BROKERS})
    role: ClassVar[Role]

    def __init__(self, interval_s: float) -> None:
        super().__init__(interval_s)
        self._site = -1

    @property
    def kills_brokers(self) -> bool:
        """It does."""
        return True

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:  # noqa: ARG002 - the flow tells
        """Kill it."""
        self._site = flow.site(self.role)
        self.target = f"broker {self._site}"
        await ground.crash("broker", self._site)
        self.brokers_killed[self._site] = time.monotonic()

    async def end(self, ground: Ground) -> None:
        """Start it."""
        await ground.revive("broker", self._site)


class KillBrokerOrigin(KillBroker):
    """Where a publisher is."""

    name, role = "kill-broker-origin", "origin"
    words = "SIGKILL of a publisher's broker, started again"


class KillBrokerTransit(KillBroker):
    """Where nobody is."""

    name, role = "kill-broker-transit", "transit"
    words = "SIGKILL of the broker of a federator that only passes on, started again"


class KillBrokerLast(KillBroker):
    """Where a subscriber is."""

    name, role = "kill-broker-last", "last"
    words = "SIGKILL of a subscriber's broker, started again"


class RestartAll(Fault):
    """Everything at once, as after a power cut."""

    name = "restart-all"
    words = "SIGKILL of all brokers and all federators at once, started again at once"
    needs = frozenset({FEDERATORS, BROKERS})

    @property
    def span_s(self) -> float:
        """At once, as near as a supervisor comes."""
        return 1.0

    @property
    def kills_brokers(self) -> bool:
        """All."""
        return True

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:  # noqa: ARG002 - all of them
        """Kill all."""
        self.target = "all brokers and federators"
        for place in ground.places:
            await ground.crash("federator", place.site)
            await ground.crash("broker", place.site)
            self.brokers_killed[place.site] = time.monotonic()

    async def end(self, ground: Ground) -> None:
        """Start all, brokers first, as an init system would."""
        for place in ground.places:
            await ground.revive("broker", place.site)
        for place in ground.places:
            await ground.revive("federator", place.site)


class GracefulRestart(Fault):
    """SIGTERM, as an upgrade does it."""

    name = "graceful-restart"
    words = "SIGTERM of a federator (which one, the seed says), started again"
    needs = frozenset({FEDERATORS})

    @property
    def span_s(self) -> float:
        """At once."""
        return 0.5

    def __init__(self, interval_s: float) -> None:
        super().__init__(interval_s)
        self._site = -1

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:
        """End it well."""
        self._site = _any(flow, chance)
        self.target = f"federator {self._site}"
        await ground.leave("federator", self._site)

    async def end(self, ground: Ground) -> None:
        """Start it."""
        await ground.revive("federator", self._site)


class StopContinue(Fault):
    """A process that sleeps: a paused virtual machine, a swapping host."""

    name = "stop-continue"
    words = "SIGSTOP of a federator for 2KA, then SIGCONT"
    needs = frozenset({FEDERATORS})
    kind: ClassVar[Kind] = "federator"

    @property
    def span_s(self) -> float:
        """2KA, and long enough that a link's own keep-alive has noticed."""
        return max(2 * K * self.interval_s, _NOTICED_S)

    def __init__(self, interval_s: float) -> None:
        super().__init__(interval_s)
        self._site = -1

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:
        """Stop it."""
        self._site = self.choose(flow, chance)
        self.target = f"{self.kind} {self._site}"
        ground.signal(self.kind, self._site, signal.SIGSTOP)

    def choose(self, flow: Flow, chance: random.Random) -> int:
        """Any that has a part."""
        return _any(flow, chance)

    async def end(self, ground: Ground) -> None:
        """Let it go on."""
        ground.signal(self.kind, self._site, signal.SIGCONT)


class StopBroker(StopContinue):
    """A host that hangs: connections stand, nothing answers."""

    name = "stop-broker"
    words = "SIGSTOP of a subscriber's broker for 2KA, then SIGCONT"
    needs = frozenset({BROKERS})
    kind: ClassVar[Kind] = "broker"

    def choose(self, flow: Flow, chance: random.Random) -> int:  # noqa: ARG002 - the flow tells
        """Where a subscriber is."""
        return flow.last


class LinkFault(Fault):
    """Something about one link: by default one on the way from the origin to the core."""

    needs = frozenset({LINKS})

    @property
    def span_s(self) -> float:
        """2KA, and long enough that a link's own keep-alive has noticed."""
        return max(2 * K * self.interval_s, _NOTICED_S)

    def __init__(self, interval_s: float) -> None:
        super().__init__(interval_s)
        self._links: list[LinkEmulator] = []

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:
        """Choose the link, and make it bad."""
        links = self.choose(ground, flow, chance)
        self._links = [ground.links[link] for link in links]
        self.target = f"link{'s' if len(links) > 1 else ''} {', '.join(f'{a}-{b}' for a, b in links)}"
        for link in self._links:
            await self.spoil(link, chance)

    def choose(self, ground: Ground, flow: Flow, chance: random.Random) -> list[tuple[int, int]]:
        """A link of the transit's, or any where there is none."""
        near = [link for link in sorted(ground.links) if flow.transit in link]
        if not ground.links:
            raise LocalError("There is no link to make bad; a federation of one has none.")
        return [chance.choice(near or sorted(ground.links))]

    @abstractmethod
    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:
        """Make one link bad."""

    async def end(self, ground: Ground) -> None:  # noqa: ARG002 - it remembers its links
        """Open it again."""
        for link in self._links:
            link.shape(delay_s=0.0, jitter_s=0.0, bytes_per_s=0)
            link.restore()


class CutLink(LinkFault):
    """A cable pulled."""

    name = "cut-link"
    words = "a link lets nothing pass, in silence, for 2KA; then all again"

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:  # noqa: ARG002 - nothing to draw
        """Cut it."""
        link.cut()


class ResetLink(LinkFault):
    """A cable pulled at a switch that says so."""

    name = "reset-link"
    words = "a link's connections are reset and new ones refused for 2 s"

    @property
    def span_s(self) -> float:
        """As its words say."""
        return 2.0

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:  # noqa: ARG002 - nothing to draw
        """Reset it."""
        await link.reset()


class OneWayCut(LinkFault):
    """A firewall that forgot one direction."""

    name = "one-way-cut"
    words = "a link lets nothing pass in one direction (which, the seed says) for 2KA"

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:
        """Cut one direction."""
        direction = chance.choice(list(Direction))
        self.target += f" {direction.value}"
        link.cut(direction)


class SlowLink(LinkFault):
    """A satellite in the rain."""

    name = "slow-link"
    words = "a link with 300 ms delay, 100 ms jitter and 50,000 bytes/s for 4 s"

    @property
    def span_s(self) -> float:
        """As its words say."""
        return 4.0

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:  # noqa: ARG002 - the emulator has its own
        """Make it slow and narrow."""
        link.shape(delay_s=0.3, jitter_s=0.1, bytes_per_s=50_000)


class Split(LinkFault):
    """The overlay in two parts."""

    name = "split"
    words = "links are cut so that the origin and one neighbour are apart from the rest for 2KA"

    def choose(self, ground: Ground, flow: Flow, chance: random.Random) -> list[tuple[int, int]]:
        """All links between the two sides."""
        others = sorted({b if a == flow.origin else a for a, b in ground.links if flow.origin in (a, b)})
        side = {flow.origin, chance.choice(others)} if others else {flow.origin}
        return [link for link in sorted(ground.links) if len(side & set(link)) == 1]

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:  # noqa: ARG002 - nothing to draw
        """Cut it."""
        link.cut()


class Islands(LinkFault):
    """Everyone alone."""

    name = "islands"
    words = "all links are cut for 2KA"

    def choose(self, ground: Ground, flow: Flow, chance: random.Random) -> list[tuple[int, int]]:  # noqa: ARG002
        """All."""
        return sorted(ground.links)

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:  # noqa: ARG002 - nothing to draw
        """Cut it."""
        link.cut()


class FlappingLink(LinkFault):
    """A loose contact."""

    name = "flapping-link"
    words = "a link is reset and restored again and again, for 2KA"

    def __init__(self, interval_s: float) -> None:
        super().__init__(interval_s)
        self._flapping: asyncio.Task[None] | None = None

    async def spoil(self, link: LinkEmulator, chance: random.Random) -> None:
        """Begin to flap."""
        self._flapping = asyncio.create_task(self._flap(link, chance), name="flap")

    async def end(self, ground: Ground) -> None:
        """Hold it still, and open."""
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
    """A limit of the kernel's on a process that runs, taken back at the end."""

    needs = frozenset({FEDERATORS})
    what: ClassVar[int]

    @property
    def span_s(self) -> float:
        """As their words say."""
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
        """The soft limit to set."""

    async def end(self, ground: Ground) -> None:  # noqa: ARG002 - the process is known
        """Take it back."""
        # If it ended, the new one has limits of its own.
        with suppress(ProcessLookupError):
            resource.prlimit(self._pid, self.what, self._before)


class FullDisk(Limited):
    """Every write that would make a file longer fails, as on a full disk (EFBIG instead of ENOSPC)."""

    name = "full-disk"
    words = "a federator cannot write another byte to a file for 3 s"
    what = resource.RLIMIT_FSIZE

    def limit(self) -> int:
        """No file grows; what is written within one still is."""
        return 0


class NoDescriptors(Limited):
    """It cannot open a file or a connection, while its links are reset and have to be made anew."""

    name = "no-descriptors"
    words = "a federator has no file descriptor left for 3 s, while its links are reset"
    needs = frozenset({FEDERATORS, LINKS})
    what = resource.RLIMIT_NOFILE

    async def begin(self, ground: Ground, flow: Flow, chance: random.Random) -> None:
        """Set the limit, and then break its links, which it has to dial anew."""
        await super().begin(ground, flow, chance)
        site = int(self.target.rpartition(" ")[2])
        for link, emulator in ground.links.items():
            if site in link:
                await emulator.reset()
                emulator.restore()

    def limit(self) -> int:
        """None that is new: what is open goes on, what it closes it cannot have again."""
        return 0


def _any(flow: Flow, chance: random.Random) -> int:
    """One of those who have a part."""
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
# A workload without any: what holds then must hold before anything else is worth asking.
NONE = "none"


def named(name: str, interval_s: float = 1.0) -> Fault | None:
    """A fault by its name, for federators with this announcement interval; None for `none`.

    Raises:
        LocalError: there is no such fault.
    """
    if name == NONE:
        return None
    if name not in FAULTS:
        raise LocalError(f"Fault {name!r} is not known; expected {NONE}, {', '.join(FAULTS)}.")
    return FAULTS[name](interval_s)
