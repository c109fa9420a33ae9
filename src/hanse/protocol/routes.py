"""The route to one core: what each neighbour announces, which neighbours are parents, and what we may announce.

The rules (docs/protocol.md R23 to R31):

- The nearest neighbours are the parents, never the first that announced in this round (R27).
- A neighbour counts only while its sequence numbers advance. Only the core can make a new one, so distances that merely
  feed on each other die out within K rounds (R25).
- A neighbour counts only if it is *feasible*: it has a newer sequence number than any that we have announced, or it is
  nearer than we have been at that number. A neighbour whose route leads through us is never feasible, as in Babel and
  DUAL, so the distance of a lost route cannot count up to infinity (R26).
"""

from collections.abc import Callable
from typing import Any

from hanse.protocol.messages import UNREACHABLE
from hanse.protocol.settings import SEQUENCE_MAX

# Feasible distances are remembered for this many sequence numbers back. A parent whose announcements take a longer
# route lags behind by a few rounds and must stay feasible.
STEPS_BACK = 64

# An entry is [sequence, distance, when the sequence last advanced, the claims version that we have too]. It is a list
# because half a million of them are refreshed in a simulated round.
SEQUENCE, DISTANCE, ADVANCED_AT, CLAIMS_VERSION = 0, 1, 2, 3
# `Any` stands for two integers and a time. mypy would want a class, which costs a fifth of the round.
Entry = list[Any]


class Route:
    """The route from one federator to one core, in one epoch of that core."""

    __slots__ = (
        "announced",
        "core",
        "distance",
        "entries",
        "epoch",
        "lost_at",
        "parents",
        "sequence",
        "steps",
        "waiting",
        "wanted",
    )

    def __init__(self, core: int, epoch: int) -> None:
        self.core = core
        self.epoch = epoch
        self.entries: dict[int, Entry] = {}
        self.parents: tuple[int, ...] = ()
        self.distance = UNREACHABLE
        # The newest sequence number among the nearest neighbours. We announce it with our distance.
        self.sequence = 0
        # (from sequence number, smallest distance announced since): the feasible distance as a step function.
        self.steps: list[tuple[int, int]] = []
        # The newest sequence number that we have announced.
        self.announced = -1
        # When the last parent was lost. None while there is one or if there never was.
        self.lost_at: float | None = None
        # Neighbours that asked for a sequence number that we did not have, and that number.
        self.waiting: set[int] = set()
        self.wanted = 0

    def is_feasible(self, sequence: int, distance: int) -> bool:
        """Return whether a neighbour that announces this cannot have its route through us (R26)."""
        if sequence > self.announced:
            return True
        feasible_distance = self.steps[0][1]
        for since, smallest in self.steps:
            if since > sequence:
                break
            feasible_distance = smallest
        return distance < feasible_distance

    @property
    def next_sequence(self) -> int:
        """The number after the newest that we have announced. The largest number has no successor."""
        return min(self.announced + 1, SEQUENCE_MAX)

    def choose(self, is_usable: Callable[[int], bool], redundancy: int) -> bool:
        """Choose the parents again. Return True if the distance or the parents changed (R27)."""
        nearest = UNREACHABLE
        parents: list[int] = []
        sequence = 0
        for neighbour, entry in self.entries.items():
            distance = entry[DISTANCE]
            if distance > nearest or not is_usable(neighbour):
                continue
            if not self.is_feasible(entry[SEQUENCE], distance):
                continue
            if distance < nearest:
                nearest, parents, sequence = distance, [], 0
            parents.append(neighbour)
            sequence = max(sequence, entry[SEQUENCE])
        distance = nearest + 1 if parents else UNREACHABLE
        chosen = tuple(sorted(parents)[:redundancy])
        is_changed = distance != self.distance or chosen != self.parents
        self.distance, self.parents = distance, chosen
        if parents:
            self.sequence = sequence
        return is_changed

    def note_announced(self) -> None:
        """Note that our distance is about to be announced, which bounds the choice of parents from now on (R26)."""
        steps, sequence, distance = self.steps, self.sequence, self.distance
        if not steps:
            steps.append((sequence, distance))
        elif sequence > self.announced:
            if distance != steps[-1][1]:
                steps.append((sequence, distance))
        elif distance < steps[-1][1]:
            # Nearer at a number that we have announced before. This is rare, so all steps are lowered at once.
            self.steps = steps = [(since, min(smallest, distance)) for since, smallest in steps]
        self.announced = max(self.announced, sequence)
        while len(steps) > 1 and steps[1][0] <= self.announced - STEPS_BACK:
            del steps[0]
