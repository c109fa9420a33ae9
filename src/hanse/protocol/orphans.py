"""Records on disk for a neighbour that is gone for good: others may want them, so they are read again, piece by piece.

Rules (docs/protocol.md R78):

- One piece is asked for at a time, and none before the last has been handed on: a large outbox does not come into
  memory at once.
- A record that has no way now, and may have one later, is waited for: `hold` it, and it is read again after a while.
- Answers are told apart from those to the neighbour's next life by their positions, which never begin anew.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from hanse.protocol.effects import Fetch
from hanse.protocol.messages import Run

# How long a record without a way is left alone.
HELD_S = 1.0

Records = Sequence[tuple[int, Sequence[Run]]]


class Orphans:
    """What is left of the outboxes of neighbours that are gone."""

    __slots__ = ("_is_asked", "_not_before", "_ranges")

    def __init__(self) -> None:
        # Neighbour, and the first and the end of some of its positions.
        self._ranges: deque[list[int]] = deque()
        self._is_asked = False
        self._not_before = float("-inf")

    @property
    def count(self) -> int:
        """Records that are yet to be handed on."""
        return sum(end - start for _, start, end in self._ranges)

    def add(self, identity: int, ranges: Iterable[Sequence[int]]) -> int:
        """A neighbour is gone; how many records it leaves."""
        left = [[identity, start, end] for start, end in ranges]
        self._ranges.extend(left)
        return sum(end - start for _, start, end in left)

    def ask(self, now: float) -> Fetch | None:
        """What is to be read now, if anything."""
        if self._is_asked or not self._ranges or now < self._not_before:
            return None
        self._is_asked = True
        return Fetch(*self._ranges[0])

    def answered(self, identity: int, records: Records, end: int) -> Records | None:
        """The records of an answer that are to be handed on; None where it was not for these."""
        if not self._ranges:
            return None
        front = self._ranges[0]
        if identity != front[0] or end > front[2]:
            return None
        self._is_asked = False
        fresh = [record for record in records if record[0] >= front[1]]
        front[1] = max(front[1], end)
        if front[1] >= front[2]:
            self._ranges.popleft()
        return fresh

    def hold(self, now: float, identity: int, positions: Sequence[int]) -> None:
        """These have no way now: they are read again, before all others."""
        self._ranges.appendleft([identity, positions[0], positions[-1] + 1])
        self._not_before = now + HELD_S
