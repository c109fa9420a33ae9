"""The changes that one step has made and the alarms that are due later, to which all parts of a federator write.

The rules:

- A part that changes something notes it here and draws no conclusion for another part. `Machine` takes the notes, in
  sorted order, until none is left. So what can reach the wire never depends on the order of a set.
- Effects are kept in the order in which they were noted.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from enum import IntEnum

from hanse.protocol.effects import Effect
from hanse.protocol.messages import Key


class Changes:
    """Dirty state, pending effects and counters of one step."""

    __slots__ = (
        "claims",
        "cores",
        "counters",
        "edges",
        "effects",
        "given_up",
        "groups",
        "is_table_changed",
        "keys",
        "routes",
    )

    def __init__(self) -> None:
        # Cores whose parents must be chosen again.
        self.routes: set[int] = set()
        # Groups whose core must be decided again.
        self.groups: set[str] = set()
        # Memberships that must be placed again.
        self.keys: set[Key] = set()
        # Cores, and claim sets of cores, that the neighbours must hear about at once (R28).
        self.cores: set[int] = set()
        self.claims: set[int] = set()
        # (neighbour, group) of new mesh edges, over which missed publications may come (R69).
        self.edges: set[tuple[int, str]] = set()
        # Groups that their core gave up without having members, while another core's mesh lives (R74).
        self.given_up: set[str] = set()
        # True after a change of anything that the plans of the data path depend on.
        self.is_table_changed = False
        self.effects: list[Effect] = []
        # Events, counted by name.
        self.counters: Counter[str] = Counter()

    def begin_step(self) -> list[Effect]:
        """Start and return a new list for the effects of the next step."""
        self.effects = []
        return self.effects

    @property
    def is_unsettled(self) -> bool:
        """Return whether noted changes still await conclusions."""
        return bool(self.routes or self.groups or self.keys)

    @property
    def is_clean(self) -> bool:
        """Return whether the step has so far left nothing to conclude, to send or to do."""
        return not (
            self.routes
            or self.groups
            or self.keys
            or self.cores
            or self.claims
            or self.edges
            or self.is_table_changed
            or self.effects
        )

    def take_routes(self) -> list[int]:
        """Return the cores whose parents must be chosen again, and mark them clean."""
        routes, self.routes = self.routes, set()
        return sorted(routes)

    def take_groups(self) -> list[str]:
        """Return the groups that must be decided again, and mark them clean."""
        groups, self.groups = self.groups, set()
        return sorted(groups)

    def take_edges(self) -> list[tuple[int, str]]:
        """Return the new mesh edges, and mark them as known."""
        edges, self.edges = self.edges, set()
        return sorted(edges)

    def take_given_up(self) -> list[str]:
        """Return the groups that were given up since the last call."""
        groups, self.given_up = self.given_up, set()
        return sorted(groups)

    def take_keys(self) -> list[Key]:
        """Return the memberships that must be placed again, and mark them clean."""
        keys, self.keys = self.keys, set()
        return sorted(keys)


class Due(IntEnum):
    """Purpose of an alarm. Alarms of the same moment ring in this order."""

    CORE_LOST = 0
    CLAIM = 1
    FADED = 2
    FORGET = 3


class Alarms:
    """The rounds, and single alarms between them. An alarm that is out of date does no harm."""

    __slots__ = ("_heap", "_interval_s", "next_round_at")

    def __init__(self, now: float, interval_s: float) -> None:
        self._interval_s = interval_s
        self._heap: list[tuple[float, Due, int, str]] = []
        self.next_round_at = now + interval_s

    def set(self, at: float, due: Due, core: int, group: str = "") -> None:
        """Schedule a look at something, no earlier than `at`."""
        heapq.heappush(self._heap, (at, due, core, group))

    def ring(self, now: float) -> Iterator[tuple[Due, int, str]]:
        """Yield the alarms that are due by now."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[1:]

    def begin_round(self, now: float) -> None:
        """Schedule the next round, because this one begins now."""
        self.next_round_at += self._interval_s
        if self.next_round_at <= now:  # the process was stopped for a while: one round is enough
            self.next_round_at = now + self._interval_s

    @property
    def next_at(self) -> float:
        """Time at which the next round or alarm is due."""
        return min(self.next_round_at, self._heap[0][0]) if self._heap else self.next_round_at
