"""What one step has changed, and what is due later: the two things that all parts of a federator write to.

The rules:

- A part that changes something notes it here and draws no conclusion for another part. `Machine` takes the notes
  up, sorted, until none is left: what can reach the wire never depends on the order of a set.
- Effects are in the order in which they were noted.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from enum import IntEnum

from hanse.protocol.effects import Effect
from hanse.protocol.messages import Key


class Changes:
    """What is dirty, what is to be done, and what was counted."""

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
        # Cores to which the parents are to be chosen anew.
        self.routes: set[int] = set()
        # Groups whose core is to be decided anew.
        self.groups: set[str] = set()
        # Memberships that are to be placed anew.
        self.keys: set[Key] = set()
        # Cores, and claim sets of cores, of which the neighbours are to hear at once (R28).
        self.cores: set[int] = set()
        self.claims: set[int] = set()
        # (neighbour, group) of mesh edges that are new: what was missed may come over them (R69).
        self.edges: set[tuple[int, str]] = set()
        # Groups given up by their core, which had no members, while another core's mesh lives (R74).
        self.given_up: set[str] = set()
        # Something that the data path's plans depend on.
        self.is_table_changed = False
        self.effects: list[Effect] = []
        # What happened, by name.
        self.counters: Counter[str] = Counter()

    def begin_step(self) -> list[Effect]:
        """A new list, for the effects of the next step."""
        self.effects = []
        return self.effects

    @property
    def is_unsettled(self) -> bool:
        """Whether conclusions wait to be drawn."""
        return bool(self.routes or self.groups or self.keys)

    @property
    def is_clean(self) -> bool:
        """Whether the step so far has left nothing to conclude, to say or to do."""
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
        """The cores whose parents are to be chosen anew; they are clean with this."""
        routes, self.routes = self.routes, set()
        return sorted(routes)

    def take_groups(self) -> list[str]:
        """The groups that are to be decided anew; they are clean with this."""
        groups, self.groups = self.groups, set()
        return sorted(groups)

    def take_edges(self) -> list[tuple[int, str]]:
        """The mesh edges that are new; they are old with this."""
        edges, self.edges = self.edges, set()
        return sorted(edges)

    def take_given_up(self) -> list[str]:
        """The groups that were given up; they are with this."""
        groups, self.given_up = self.given_up, set()
        return sorted(groups)

    def take_keys(self) -> list[Key]:
        """The memberships that are to be placed anew; they are clean with this."""
        keys, self.keys = self.keys, set()
        return sorted(keys)


class Due(IntEnum):
    """What an alarm is for. At one moment they ring in this order."""

    CORE_LOST = 0
    CLAIM = 1
    FADED = 2
    FORGET = 3


class Alarms:
    """When something is due: the rounds, and single things in between. An alarm that is out of date does no harm."""

    __slots__ = ("_heap", "_interval_s", "next_round_at")

    def __init__(self, now: float, interval_s: float) -> None:
        self._interval_s = interval_s
        self._heap: list[tuple[float, Due, int, str]] = []
        self.next_round_at = now + interval_s

    def set(self, at: float, due: Due, core: int, group: str = "") -> None:
        """Have something looked at, no earlier than `at`."""
        heapq.heappush(self._heap, (at, due, core, group))

    def ring(self, now: float) -> Iterator[tuple[Due, int, str]]:
        """What is due by now."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[1:]

    def begin_round(self, now: float) -> None:
        """The round is due: when the next one is."""
        self.next_round_at += self._interval_s
        if self.next_round_at <= now:  # we were stopped for a while: one round is enough
            self.next_round_at = now + self._interval_s

    @property
    def next_at(self) -> float:
        """When the next round or alarm is due."""
        return min(self.next_round_at, self._heap[0][0]) if self._heap else self.next_round_at
