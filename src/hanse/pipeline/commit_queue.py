"""Queue of received items that are not durable yet; it decides when the next commit is due.

Rules: items are committed after `interval_s` or `bytes_max`, whichever is reached first. One commit takes about
`bytes_max`, in order. `wake` wakes the writer without a new item, for example when the collector must stop.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Longest sleep of an idle writer.
_IDLE_S = 1.0


class CommitQueue(Generic[Item]):
    """Queue of one writer.

    Args:
        size_of: returns the size that an item counts for, in bytes.
        interval_s: longest time that an item waits for others to share its commit.
        bytes_max: size at which a commit starts at once; also the size of one commit, except for its last item.
    """

    def __init__(self, size_of: Callable[[Item], int], *, interval_s: float, bytes_max: int) -> None:
        self._size_of = size_of
        self._interval_s = interval_s
        self._bytes_max = bytes_max
        self._items: list[Item] = []
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self.bytes = 0
        """Bytes not yet durable: queued items, and items that were taken and are not `done`."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_urgent(self) -> bool:
        """Return whether the queue holds enough for a commit of its own."""
        return self.bytes >= self._bytes_max

    def add(self, items: list[Item]) -> None:
        """Add items to commit."""
        self._items += items
        self.bytes += sum(map(self._size_of, items))
        if items:
            self._wake.set()
        if self.is_urgent:
            self._urgent.set()

    def wake(self) -> None:
        """Wake the writer because something other than the queue has changed."""
        self._wake.set()
        self._urgent.set()

    async def wait_for_some(self) -> None:
        """Return when an item is queued, when woken, or after a second."""
        self._wake.clear()
        if not self._items:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _IDLE_S)

    async def gather(self) -> None:
        """Wait for more items, until the interval is over or a full commit is ready."""
        self._urgent.clear()
        if self._items and not self.is_urgent:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), self._interval_s)

    def take(self) -> tuple[list[Item], int]:
        """Take the oldest items for one commit, and their size; call `done` with the size when they are durable."""
        size = 0
        for n, one in enumerate(self._items):
            if size >= self._bytes_max:
                taken, self._items = self._items[:n], self._items[n:]
                return taken, size
            size += self._size_of(one)
        taken, self._items = self._items, []
        return taken, size

    def done(self, size: int) -> None:
        """Subtract `size` bytes that have become durable."""
        self.bytes -= size
