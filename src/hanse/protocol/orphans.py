"""Records on disk for neighbours that are gone for good. They are read piece by piece, because others may want them.

The rules (docs/protocol.md R78):

- One piece is requested at a time, and none before the last has been handed on, so that a large outbox does not come
  into memory at once.
- A record that has no route now may have one later. `hold` keeps it, and it is read again after a while.
- Answers for orphans are distinguished from answers for a neighbour that is back under the same id by their positions,
  which never start again.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from hanse.protocol.effects import Fetch
from hanse.protocol.messages import Run

# Time for which a record without a route is left alone.
HELD_S = 1.0

Records = Sequence[tuple[int, Sequence[Run]]]


class Orphans:
    """The remaining outbox records of neighbours that are gone."""

    __slots__ = ("_is_asked", "_not_before", "_ranges")

    def __init__(self) -> None:
        # Neighbour, and the first position and the end of some of its records.
        self._ranges: deque[list[int]] = deque()
        self._is_asked = False
        self._not_before = float("-inf")

    @property
    def count(self) -> int:
        """Records that are yet to be handed on."""
        return sum(end - start for _, start, end in self._ranges)

    def add(self, identity: int, ranges: Iterable[Sequence[int]]) -> int:
        """Add the records of a neighbour that is gone. Return how many they are."""
        left = [[identity, start, end] for start, end in ranges]
        self._ranges.extend(left)
        return sum(end - start for _, start, end in left)

    def ask(self, now: float) -> Fetch | None:
        """Return the next fetch, or None if there is nothing to read now."""
        if self._is_asked or not self._ranges or now < self._not_before:
            return None
        self._is_asked = True
        return Fetch(*self._ranges[0])

    def answered(self, identity: int, records: Records, end: int) -> Records | None:
        """Return the records of an answer that must be handed on, or None if the answer is not for orphans."""
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
        """Put back records that have no route now. They are read again before all others."""
        self._ranges.appendleft([identity, positions[0], positions[-1] + 1])
        self._not_before = now + HELD_S
