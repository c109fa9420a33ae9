"""Events of the topology for watchers: a ring of the latest events, and a bounded queue per watcher.

A watcher that is slower than the events loses the oldest of its queue, and learns how many (`dropped`). A watcher that
comes back names the last event it saw, and gets the later ones that the ring still holds.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from hanse.errors import Unavailable

RING_MAX = 1_000  # a few minutes of a changing federation; more costs memory, and `/topology` has the rest
QUEUE_MAX = 256
WATCHERS_MAX = 100
KEEP_ALIVE_S = 15.0  # proxies close a stream that is silent for 30 to 60 s


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `number` grows by one with each event while this manager runs."""

    number: int
    kind: str
    epoch: int
    data: Mapping[str, object]

    def encode(self) -> str:
        """Return the event as a server-sent event."""
        body = json.dumps({"epoch": self.epoch, **self.data}, separators=(",", ":"))
        return f"id: {self.number}\nevent: {self.kind}\ndata: {body}\n\n"


class EventLog:
    """All events, and their watchers."""

    def __init__(self) -> None:
        self._ring: deque[Event] = deque(maxlen=RING_MAX)
        self._watchers: set[_Watcher] = set()
        self._number = 0
        self.dropped = 0
        self._is_closed = False

    @property
    def watchers(self) -> int:
        """Number of watchers."""
        return len(self._watchers)

    def tell(self, kind: str, epoch: int, data: Mapping[str, object]) -> None:
        """Add an event. Never wait for a watcher."""
        self._number += 1
        event = Event(self._number, kind, epoch, data)
        self._ring.append(event)
        for watcher in self._watchers:
            self.dropped += watcher.put(event)

    def check_room(self) -> None:
        """Refuse one watcher too many, before its stream begins."""
        if len(self._watchers) >= WATCHERS_MAX:
            raise Unavailable(f"{WATCHERS_MAX} clients already watch the events, which is the limit; try again later.")

    async def watch(self, after: int | None) -> AsyncIterator[str]:
        """Yield server-sent events as text: those after the given number that the ring still holds, then new ones."""
        watcher = _Watcher()
        for event in self._ring:
            if after is not None and event.number > after:
                watcher.put(event)
        self._watchers.add(watcher)
        try:
            yield "retry: 1000\n\n"
            while not self._is_closed:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await watcher.ready.wait()
                except TimeoutError:
                    yield ": still here\n\n"
                for text in watcher.take():
                    yield text
        finally:
            self._watchers.discard(watcher)

    def close(self) -> None:
        """End every stream."""
        self._is_closed = True
        for watcher in self._watchers:
            watcher.ready.set()


class _Watcher:
    __slots__ = ("_dropped", "_queue", "ready")

    def __init__(self) -> None:
        self._queue: deque[Event] = deque()
        self._dropped = 0
        self.ready = asyncio.Event()

    def put(self, event: Event) -> int:
        """Queue the event, and return how many events were dropped for it."""
        dropped = 0
        if len(self._queue) >= QUEUE_MAX:
            self._queue.popleft()
            dropped = 1
        self._dropped += dropped
        self._queue.append(event)
        self.ready.set()
        return dropped

    def take(self) -> list[str]:
        self.ready.clear()
        texts = [f'event: dropped\ndata: {{"count":{self._dropped}}}\n\n'] if self._dropped else []
        texts.extend(event.encode() for event in self._queue)
        self._queue.clear()
        self._dropped = 0
        return texts
