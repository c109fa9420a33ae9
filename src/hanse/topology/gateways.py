"""Facts that all gateways must share: the brokers, those that are up, and those that are drained.

A gateway decides by itself, and at once, that a broker is down. That a broker is up again is decided here and numbered,
because a client that two gateways place at different brokers is connected twice. Pure: time comes in as an argument.

Rules:

1. A broker is *up*, *down* or *returning*. It is down as soon as one gateway says so. It returns when no gateway says
   so any more, and it is up again when every gateway knows the version in which it returned.
2. A gateway that still keeps an up broker out, because it was down for too short a time to be reported, makes it return
   anew: otherwise that gateway would wait for a version that never comes.
3. Each change of a state, of the set of brokers or of a drain is a new version. Versions grow over restarts and
   over changes of the leader: they begin with the clock.
4. A drain belongs to the gateways, which keep it on disk: for each broker the latest word of an operator counts. So a
   manager that lost its memory gets the drains back.
5. A gateway that says that more than half of all brokers are down is probably cut off itself. Its verdicts do not count
   while another gateway says otherwise.
6. A gateway that has not reported for `LEASE_S` is forgotten, and so is what it said of brokers.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from hanse.errors import Unavailable

UP: Final = "up"
DOWN: Final = "down"
RETURNING: Final = "returning"

# Ten reports at the default interval. Longer keeps a returned broker waiting for a gateway that is gone.
LEASE_S: Final = 10.0
GATEWAYS_MAX: Final = 1_000
_CLOCK_BITS: Final = 16


@dataclass(frozen=True, slots=True)
class Drain:
    """The latest word of an operator on one broker. `at_s` is when it was said, by the clock of that gateway."""

    is_drained: bool
    rate: float | None
    at_s: float


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """Report of one gateway.

    Attributes:
        known: the version that it applies.
        down: brokers that it judges down now.
        held: brokers that it keeps out although they answer.
        drains: every word of an operator that it knows.
    """

    known: int
    down: frozenset[str]
    held: frozenset[str]
    drains: Mapping[str, Drain]


@dataclass(slots=True)
class _Gateway:
    report: GatewayReport
    seen_s: float


@dataclass(slots=True)
class _Broker:
    state: str
    since: int


class GatewayBook:
    """Reports of gateways, and the version for all of them."""

    def __init__(self) -> None:
        self.version = 0
        self._gateways: dict[str, _Gateway] = {}
        self._brokers: dict[str, _Broker] = {}
        self._drains: dict[str, Drain] = {}
        # Where the federator of a broker listens for gateways.
        self._listeners: dict[str, str] = {}

    def begin(self, now_s: float) -> None:
        """Start to lead: what this manager knew before may be old."""
        self.version = max(self.version + 1, int(now_s) << _CLOCK_BITS)
        self._gateways.clear()
        self._brokers.clear()

    def report(self, gateway: str, report: GatewayReport, brokers: Collection[str], now_s: float) -> None:
        """Take a report, and draw the conclusions.

        Raises:
            Unavailable: there are too many gateways.
        """
        if gateway not in self._gateways and len(self._gateways) >= GATEWAYS_MAX:
            raise Unavailable(f"{GATEWAYS_MAX} gateways report already, which is the limit; stop some.")
        self._gateways[gateway] = _Gateway(report, now_s)
        for broker, drain in report.drains.items():
            known = self._drains.get(broker)
            if broker in brokers and (known is None or drain.at_s > known.at_s):
                self._drains[broker] = drain
                self._change()
        self.look(brokers, now_s)

    def look(self, brokers: Collection[str], now_s: float) -> None:
        """Apply the rules to what is known now."""
        for name in [name for name, one in self._gateways.items() if now_s - one.seen_s > LEASE_S]:
            del self._gateways[name]
        is_first = not self._brokers
        for gone in sorted(set(self._brokers) - set(brokers)):
            del self._brokers[gone]
            self._drains.pop(gone, None)
            self._listeners.pop(gone, None)
            self._change()
        for broker in sorted(set(brokers) - set(self._brokers)):
            self._change()
            # The first set is as good as any. A broker that joins later must be known to all gateways.
            self._brokers[broker] = _Broker(UP if is_first else RETURNING, self.version)
        reports = [one.report for one in self._gateways.values()]
        # Rule 5.
        trusted = [one for one in reports if 2 * len(one.down & self._brokers.keys()) <= len(self._brokers)] or reports
        for broker, known in sorted(self._brokers.items()):
            is_down = any(broker in one.down for one in trusted)
            state = DOWN if is_down else self._state(broker, known, reports)
            if state != known.state:
                self._change()
                self._brokers[broker] = _Broker(state, self.version)

    def _state(self, broker: str, known: _Broker, reports: Collection[GatewayReport]) -> str:
        if known.state == UP:
            is_held = any(broker in one.held and one.known >= known.since for one in reports)
            return RETURNING if is_held else UP
        if known.state == DOWN:
            return RETURNING
        return UP if all(one.known >= known.since for one in reports) else RETURNING

    def _change(self) -> None:
        self.version += 1

    def note_listener(self, broker: str, address: str | None) -> None:
        """Take note of where a broker's federator listens for gateways; None for nowhere."""
        if self._listeners.get(broker) == address:
            return
        if address is None:
            del self._listeners[broker]
        else:
            self._listeners[broker] = address
        self._change()

    def listener(self, broker: str) -> str | None:
        """Return where a broker's federator listens for gateways."""
        return self._listeners.get(broker)

    @property
    def gateways(self) -> list[tuple[str, int]]:
        """Return each gateway that reports, with the version that it knows."""
        return sorted((name, one.report.known) for name, one in self._gateways.items())

    def state(self, broker: str) -> str:
        """Return the state of a broker."""
        known = self._brokers.get(broker)
        return known.state if known is not None else DOWN

    def drain(self, broker: str) -> Drain | None:
        """Return the latest word of an operator on a broker."""
        return self._drains.get(broker)
