"""Which federators' brokers hang together by static bridges of their hosts.

A bridge has one name at both of its ends (Mosquitto's `$SYS/broker/connection/<name>/state`), so federators that tell
each other the names at their hosts know who is joined with whom. How many brokers are joined says how many times one
delivery comes back (`echoes`): each of the others' deliveries arrives here once.

Rules: names are told over the management group when they change, and again every few seconds for those who joined
since; a federator that tells none any more is forgotten; names and federators are limited.
"""

from collections.abc import Iterable, Sequence

from hanse.interest import Report
from hanse.interest.reports import BridgeGone, BridgeSeen

# A broker with more bridges, or a federation with more such brokers, has its remainder left out: at worst more copies.
NAMES_MAX = 256
FEDERATORS_MAX = 10_000


class BridgeBook:
    """The bridges at this host, and what the others told of theirs."""

    def __init__(self) -> None:
        self._own: set[str] = set()
        self._others: dict[int, frozenset[str]] = {}

    @property
    def names(self) -> list[str]:
        """The bridges that are up at this host."""
        return sorted(self._own)

    def take(self, reports: Iterable[Report]) -> bool:
        """What an adapter reported; whether that changed anything."""
        before = set(self._own)
        for report in reports:
            if isinstance(report, BridgeSeen) and len(self._own) < NAMES_MAX:
                self._own.add(report.name)
            elif isinstance(report, BridgeGone):
                self._own.discard(report.name)
        return self._own != before

    def hear(self, origin: int, names: Sequence[str]) -> None:
        """Another federator names the bridges at its host."""
        if not names:
            self._others.pop(origin, None)
        elif origin in self._others or len(self._others) < FEDERATORS_MAX:
            self._others[origin] = frozenset(names[:NAMES_MAX])

    def joined(self) -> frozenset[int]:
        """The other federators whose brokers hang together with this one by bridges."""
        reached = set(self._own)
        left = dict(self._others)
        joined: set[int] = set()
        while found := [origin for origin, names in left.items() if not reached.isdisjoint(names)]:
            for origin in found:
                reached |= left.pop(origin)
            joined.update(found)
        return frozenset(joined)
