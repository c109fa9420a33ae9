"""Clock of a simulation: events in order of time, one source of randomness, one trace.

Rules:
- Nothing here or above reads a real clock or another source of randomness. The seed decides the whole run.
- Events at the same time run in the order in which they were scheduled, so that a tie never depends on a hash.
- The trace consists of integers only. Two runs are the same if the hashes of their traces are equal.
"""

import heapq
import random
from array import array
from collections.abc import Callable
from hashlib import blake2b

# Records are hashed in blocks, because a hash call per record would cost more than the record.
TRACE_BLOCK = 8_192

Handler = Callable[..., None]


class Engine:
    """Scheduler that runs handlers at their simulated time, in seconds since the start."""

    __slots__ = ("_block", "_hash", "_heap", "_order", "handled", "now", "random")

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)  # noqa: S311 - a simulation needs the same numbers every time
        self.handled = 0
        self._heap: list[tuple[float, int, Handler, tuple[object, ...]]] = []
        self._order = 0
        self._block = array("q")
        self._hash = blake2b(digest_size=16)

    def at(self, time_s: float, handler: Handler, *arguments: object) -> None:
        """Call `handler(*arguments)` at a time that is not in the past."""
        assert time_s >= self.now, f"an event at {time_s} was scheduled when it was already {self.now}"
        self._order += 1
        heapq.heappush(self._heap, (time_s, self._order, handler, arguments))

    def after(self, delay_s: float, handler: Handler, *arguments: object) -> None:
        """Call `handler(*arguments)` after `delay_s`."""
        self._order += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._order, handler, arguments))

    def run_until(self, time_s: float) -> None:
        """Run all events up to and including `time_s`, which becomes the present."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= time_s:
            self.now, _, handler, arguments = pop(heap)
            self.handled += 1
            handler(*arguments)
        self.now = time_s

    def note(self, *record: int) -> None:
        """Append a record to the trace, preceded by the time in microseconds."""
        block = self._block
        block.append(round(self.now * 1e6))
        block.extend(record)
        if len(block) >= TRACE_BLOCK:
            self._hash.update(block)
            del block[:]

    def trace_hash(self) -> str:
        """Return the hash of all records so far."""
        digest = self._hash.copy()
        digest.update(self._block)
        return digest.hexdigest()
