"""Groups of federators whose brokers are joined by static bridges between the hosts.

A bridge has the same name at both of its ends (Mosquitto's `$SYS/broker/connection/<name>/state`). Federators that tell
each other the names at their hosts thus know which brokers are joined. The number of joined brokers determines how many
times one delivery comes back (`echoes`): each of the others' deliveries arrives here once.

Rules: names are sent over the management group when they change, and again every few seconds for new members. A
federator that no longer sends any is forgotten. Names and federators are limited.
"""

from collections.abc import Iterable, Sequence

from hanse.interest import Report
from hanse.interest.reports import BridgeGone, BridgeSeen

# Of a broker with more bridges, or a federation with more such brokers, the rest is left out: at worst, there are more
# duplicates.
NAMES_MAX = 256
FEDERATORS_MAX = 10_000


class BridgeBook:
    """Bridges at this host, and those that other federators reported."""

    def __init__(self) -> None:
        self._own: set[str] = set()
        self._others: dict[int, frozenset[str]] = {}

    @property
    def names(self) -> list[str]:
        """Bridges that are up at this host."""
        return sorted(self._own)

    def take(self, reports: Iterable[Report]) -> bool:
        """Apply the reports of an adapter, and return whether that changed anything."""
        before = set(self._own)
        for report in reports:
            if isinstance(report, BridgeSeen) and len(self._own) < NAMES_MAX:
                self._own.add(report.name)
            elif isinstance(report, BridgeGone):
                self._own.discard(report.name)
        return self._own != before

    def hear(self, origin: int, names: Sequence[str]) -> None:
        """Apply the names of bridges that another federator reports from its host."""
        if not names:
            self._others.pop(origin, None)
        elif origin in self._others or len(self._others) < FEDERATORS_MAX:
            self._others[origin] = frozenset(names[:NAMES_MAX])

    def joined(self) -> frozenset[int]:
        """Return the other federators whose brokers are joined with this one by bridges."""
        reached = set(self._own)
        left = dict(self._others)
        joined: set[int] = set()
        while found := [origin for origin, names in left.items() if not reached.isdisjoint(names)]:
            for origin in found:
                reached |= left.pop(origin)
            joined.update(found)
        return frozenset(joined)
