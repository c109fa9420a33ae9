"""Streams in which received messages wait for the application.

Rules:

- A stream is the queue of one `messages(...)`. A message goes to every stream with a filter that matches it.
- Some brokers send a message once for each subscription that it matches. Each of them carries the identifier of its
  subscription and goes to the streams of that filter alone, so that two streams with overlapping filters get it once.
- QoS 0 is dropped and counted (`queue_full`) when a stream holds `queue_max` messages. QoS 1 and 2 are not dropped:
  they stay unacknowledged until the application has handled them, so the broker stops at `receive_max`.
- A message is acknowledged when every stream that got it has released it.
- A message that no stream wants waits for one if it may belong to a session that the application has just resumed, or
  to a filter that it subscribed to without a stream. Otherwise it is acknowledged and counted (`unclaimed`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from hanse.client.message import Message
from hanse.mqtt.counters import Counters
from hanse.mqtt.publication import Publication
from hanse.protocol.topics import matches, split_share
from hanse.protocol.trie import FilterIndex, MatchCache


class Stream:
    """Queue of one reader."""

    __slots__ = ("error", "filters", "is_closed", "queue", "waiters")

    def __init__(self, filters: Sequence[str]) -> None:
        # None means every message.
        self.filters = tuple(dict.fromkeys(filters))
        self.queue: deque[Message] = deque()
        self.waiters: deque[asyncio.Future[None]] = deque()
        self.error: Exception | None = None
        self.is_closed = False

    def wake(self) -> None:
        """Let one reader check again."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def end(self, error: Exception | None = None) -> None:
        """Let every reader finish the queued messages, and then end, with the error if there is one."""
        self.error = self.error or error
        self.is_closed = True
        while self.waiters:
            self.wake()

    async def pop(self) -> Message:
        """Return the next message.

        Raises:
            StopAsyncIteration: The stream has ended.
        """
        while not self.queue:
            if self.error is not None:
                raise self.error
            if self.is_closed:
                raise StopAsyncIteration
            waiter = asyncio.get_running_loop().create_future()
            self.waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                # A message that arrived in the same turn is for the next reader.
                if self.queue:
                    self.wake()
                raise
        return self.queue.popleft()


class Inbox:
    """All streams of one client, and the messages that wait for a stream.

    Args:
        ack: Acknowledge publications by their receipts.
        keeps: Whether messages on a topic wait for a stream.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        queue_max: int,
        ack: Callable[[Iterable[int]], None],
        keeps: Callable[[str], bool],
    ) -> None:
        self._counters = counters
        self._queue_max = queue_max
        self._ack = ack
        self._keeps = keeps
        # Filter of a subscription by its identifier, kept by the client for all wanted filters.
        self.filter_of_identifier: dict[int, str] = {}
        self._streams: dict[str, list[Stream]] = {}
        # Filters by the part behind their share names, which matches topics.
        self._shared: dict[str, list[str]] = {}
        self._all: list[Stream] = []
        self._index = FilterIndex()
        self._cache = MatchCache(self._index)
        self._unclaimed: deque[Message] = deque()

    @property
    def streams(self) -> list[Stream]:
        """Every open stream, once."""
        found = {id(one): one for streams in self._streams.values() for one in streams}
        return [*found.values(), *self._all]

    def open(self, stream: Stream) -> None:
        """Deliver to this stream from now on, starting with waiting messages that it matches."""
        for pattern in stream.filters:
            behind = split_share(pattern)[1]
            self._index.add(behind)
            if pattern not in self._streams:
                self._shared.setdefault(behind, []).append(pattern)
            self._streams.setdefault(pattern, []).append(stream)
        if not stream.filters:
            self._all.append(stream)
        waiting, self._unclaimed = self._unclaimed, deque()
        for message in waiting:
            self._deliver(message)

    def close(self, stream: Stream, undone: Message | None = None) -> None:
        """Remove a stream. Its remaining messages, and `undone`, wait for another stream, or are dropped."""
        if stream in self._all:
            self._all.remove(stream)
        for pattern in stream.filters:
            streams = self._streams.get(pattern, [])
            if stream in streams:
                streams.remove(stream)
            if not streams and self._streams.pop(pattern, None) is not None:
                behind = split_share(pattern)[1]
                self._shared[behind].remove(pattern)
                if not self._shared[behind]:
                    del self._shared[behind]
                    self._index.discard(behind)
        left = [*([undone] if undone else []), *stream.queue]
        stream.queue.clear()
        stream.end()
        for message in left:
            message.holders -= 1
            if not message.holders:
                self._leave_unclaimed(message)

    def deliver(self, publications: Iterable[Publication]) -> None:
        """Deliver the publications of one read."""
        for publication in publications:
            self._deliver(Message(publication))

    def release(self, message: Message) -> None:
        """Note that one stream has finished a message."""
        message.holders -= 1
        if message.holders <= 0 and message.receipt:
            self._ack((message.receipt,))

    def _streams_for(self, message: Message) -> list[Stream]:
        patterns = [full for behind in self._cache.match(message.topic) for full in self._shared[behind]]
        if message.subscription_ids:
            # A resumed session may carry identifiers of an earlier process. Ignore those that do not fit.
            named = [self.filter_of_identifier.get(one) for one in message.subscription_ids]
            fitting = [one for one in named if one is not None and matches(one, message.topic)]
            if fitting:
                patterns = [one for one in fitting if one in self._streams]
        if len(patterns) == 1 and not self._all:
            return self._streams[patterns[0]]
        found = {id(one): one for pattern in patterns for one in self._streams[pattern]}
        return [*found.values(), *self._all]

    def _deliver(self, message: Message) -> None:
        streams = self._streams_for(message)
        taken = 0
        for stream in streams:
            if not message.qos and len(stream.queue) >= self._queue_max:
                self._counters.drop("queue_full")
                continue
            taken += 1
            stream.queue.append(message)
            if stream.waiters:
                stream.wake()
        message.holders = taken
        if not streams:
            self._leave_unclaimed(message)

    def _leave_unclaimed(self, message: Message) -> None:
        if self._keeps(message.topic) and (message.qos or len(self._unclaimed) < self._queue_max):
            self._unclaimed.append(message)
            return
        self._counters.drop("unclaimed")
        if message.receipt:
            self._ack((message.receipt,))
