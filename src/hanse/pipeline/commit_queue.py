"""What has come and is not durable yet, and when the next commit is due.

Rules: what has come is committed at least every `interval_s` or `bytes_max`, whichever is first; one commit takes
about `bytes_max` at a time, in order; whoever waits is woken also by `wake`, because things change that are no rows.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

# How long an idle writer sleeps before it looks round.
_IDLE_S = 1.0


class CommitQueue(Generic[Item]):
    """The queue of one writer.

    Args:
        size_of: what an item counts, in bytes.
        interval_s: the longest that something waits for others to share its commit.
        bytes_max: what waits for nobody; and what one commit takes, but for its last item.
    """

    def __init__(self, size_of: Callable[[Item], int], *, interval_s: float, bytes_max: int) -> None:
        self._size_of = size_of
        self._interval_s = interval_s
        self._bytes_max = bytes_max
        self._items: list[Item] = []
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self.bytes = 0
        """Of all that is not durable: what waits here, and what was taken and is not `done`."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_urgent(self) -> bool:
        """Whether there is enough for a commit of its own."""
        return self.bytes >= self._bytes_max

    def add(self, items: list[Item]) -> None:
        """More to commit."""
        self._items += items
        self.bytes += sum(map(self._size_of, items))
        if items:
            self._wake.set()
        if self.is_urgent:
            self._urgent.set()

    def wake(self) -> None:
        """Something else has changed: whoever waits is to look at once."""
        self._wake.set()
        self._urgent.set()

    async def wait_for_some(self) -> None:
        """Return when there is something, or when woken, or after a second."""
        self._wake.clear()
        if not self._items:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _IDLE_S)

    async def gather(self) -> None:
        """Let more come: until the interval is over, or there is enough."""
        self._urgent.clear()
        if self._items and not self.is_urgent:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), self._interval_s)

    def take(self) -> tuple[list[Item], int]:
        """The oldest items, enough for one commit, and their size: say `done` with it when they are durable."""
        size = 0
        for n, one in enumerate(self._items):
            if size >= self._bytes_max:
                taken, self._items = self._items[:n], self._items[n:]
                return taken, size
            size += self._size_of(one)
        taken, self._items = self._items, []
        return taken, size

    def done(self, size: int) -> None:
        """So much of what was taken is durable."""
        self.bytes -= size
