"""Publishers and subscribers that write the history: `hanse.mqtt` clients, batches in and out.

Rules:

1. A publisher sends due messages every `_TICK_S`, with at most `window` unacknowledged. Like any MQTT client, it sends
   unacknowledged messages again after a reconnect, and the history says so.
2. A subscriber's session outlives its connections. It acknowledges messages after it has recorded them.
3. Neither leaves anything at the broker: sessions are removed at the end.
"""

import asyncio
import time
from collections.abc import Sequence

from hanse.errors import HanseError, LocalError, Unavailable
from hanse.lab.chaos import stamp
from hanse.lab.chaos.history import Reader, Seen, Sent
from hanse.local.client import Connection
from hanse.mqtt.backoff import BackoffSettings
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication, encode, payload_of
from hanse.mqtt.refusal import ID_NOT_FOUND
from hanse.mqtt.subscriptions import Subscription

_TICK_S = 0.005
_SESSION_S = 3_600
_CONNECT_S = 10.0
# Not `hanse-…`: clients with that prefix belong to the federation, and their subscriptions are not interest.
_PREFIX = "chaos"
_BACKOFF = BackoffSettings(first_s=0.05, max_s=0.5)


def topic_of(run: int, publisher: int, topic: int) -> str:
    """Return a topic of a workload."""
    return f"chaos/{run:08x}/{publisher}/{topic}"


def filter_of(run: int) -> str:
    """Return the filter of a workload's subscribers: one group for all."""
    return f"chaos/{run:08x}/#"


def _settings(url: str, client_id: str, *, auto_ack: bool = False) -> ClientSettings:
    # Mosquitto 2.0.11 does not save a session to disk if its CONNECT asked for a clean start.
    return ClientSettings(
        url,
        client_id,
        clean_start=False,
        session_expiry_s=_SESSION_S,
        connect_timeout_s=3.0,
        backoff=_BACKOFF,
        auto_ack=auto_ack,
    )


async def _forget(url: str, client_id: str) -> None:
    """Make the broker drop a session, by a clean start without an expiry that ends at once."""
    try:
        async with Connection(url, client_id=client_id):
            pass
    except HanseError:
        pass  # the broker is away: the session is gone with it, or will expire


class Publisher(ClientHandler):
    """Publisher of numbered messages at one broker.

    Args:
        qos: QoS of each of its topics, which are used in turn.
        count: messages of its stream.
    """

    def __init__(
        self, run: int, publisher: int, site: int, url: str, *, qos: Sequence[int], count: int, size_bytes: int = 64
    ) -> None:
        if size_bytes < stamp.PAYLOAD_BYTES_MIN:
            raise LocalError(f"Payloads of {size_bytes} bytes were requested; a stamp needs {stamp.PAYLOAD_BYTES_MIN}.")
        self.sent = Sent(site, qos, count)
        self._run = run
        self._publisher = publisher
        self._url = url
        self._size_bytes = size_bytes
        self._topics = [topic_of(run, publisher, topic) for topic in range(len(qos))]
        self._client_id = f"{_PREFIX}-{run:08x}-p{publisher}"
        self.client = Client(_settings(url, self._client_id), self)
        self._count_max = count
        self._first_number: int | None = None

    async def start(self) -> None:
        """Connect."""
        await self.client.start(must_connect=True)

    async def stop(self) -> None:
        """Disconnect, and leave nothing behind."""
        await self.client.stop()
        await _forget(self._url, self._client_id)

    def probe(self) -> None:
        """Publish one message outside the stream."""
        if self.client.is_connected:
            self.client.publish_run(self._packet(stamp.PROBE, 0, self.sent.qos[0]))

    async def stream(self, rate_per_s: float, window: int) -> None:
        """Publish all messages at a rate, with at most `window` of them unacknowledged (rule 1)."""
        sent, client = self.sent, self.client
        began_s = time.monotonic()
        while sent.count < self._count_max:
            now_s = time.monotonic()
            due = int((now_s - began_s) * rate_per_s) + 1 - sent.count
            batch = min(due, window - client.unacknowledged, self._count_max - sent.count)
            if batch > 0:
                self._send(batch, now_s)
            await asyncio.sleep(_TICK_S)

    async def wait_acknowledged(self, deadline_s: float) -> None:
        """Wait until no message is under way to the broker, or the time is over. The fate of the rest is unknown."""
        until_s = time.monotonic() + deadline_s
        while self.client.unacknowledged and time.monotonic() < until_s:  # noqa: ASYNC110 - the client has no event
            await asyncio.sleep(_TICK_S)

    def on_acknowledged(self, numbers: list[int]) -> None:
        """Record the time of acknowledgements."""
        now_s, first = time.monotonic(), self._first_number
        if first is None:
            return
        for number in numbers:
            if number >= first:
                self.sent.acked_s[number - first] = now_s

    def on_received(self, pairs: list[tuple[int, int]]) -> None:
        """Record the time at which the broker first had a message."""
        now_s, first = time.monotonic(), self._first_number
        for number, _ in pairs:
            if first is not None and number >= first and not self.sent.received_s[number - first]:
                self.sent.received_s[number - first] = now_s

    def on_refused(self, refused: list[tuple[int, int]]) -> None:
        """Record refusals. A message that the broker received but forgot with its session stays unknown."""
        for number, reason in refused:
            if reason != ID_NOT_FOUND and self._first_number is not None and number >= self._first_number:
                self.sent.refused[number - self._first_number] = 1

    def on_connected(self, session_present: bool) -> None:  # noqa: ARG002 - handled by the client
        """Record the time: later acknowledgements are those of this broker."""
        self.sent.connected(time.monotonic())

    def on_disconnected(self, error: HanseError | None) -> None:
        """Record the end. Messages under way will be sent again."""
        self.sent.disconnected(time.monotonic())
        if error is None:
            return
        sent = self.sent
        # All messages older than the window are acknowledged: go back from the newest until so many in a row are.
        left = self.client.unacknowledged
        for number in range(sent.count - 1, -1, -1):
            if not left:
                break
            if not sent.acked_s[number] and not sent.refused[number]:
                sent.retried[number] = 1
                left -= 1

    def _send(self, batch: int, now_s: float) -> None:
        sent = self.sent
        first, topics = sent.count, len(self._topics)
        run = b"".join(self._packet(n, n % topics, sent.qos[n % topics]) for n in range(first, first + batch))
        for number in range(first, first + batch):
            sent.sent_s[number] = now_s
        sent.count += batch
        number = self.client.publish_run(run)
        if self._first_number is None:
            self._first_number = number - first

    def _packet(self, number: int, topic: int, qos: int) -> bytes:
        name = self._topics[topic]
        mark = stamp.Stamp(self._run, self._publisher, number)
        return encode(name, stamp.payload(mark, name.encode(), self._size_bytes), qos=qos)


class Subscriber(ClientHandler):
    """Subscriber that records the arrivals at one broker."""

    def __init__(self, run: int, subscriber: int, site: int, url: str, publishers: Sequence[Sent], qos: int) -> None:
        self.reader = Reader(site, [Seen(len(sent.qos), len(sent.sent_s)) for sent in publishers])
        self.probed: set[int] = set()
        self.received_s = 0.0
        self.is_subscribed = False
        self._run = run
        self._url = url
        self._qos = qos
        self._client_id = f"{_PREFIX}-{run:08x}-s{subscriber}"
        self.client = Client(_settings(url, self._client_id), self)

    async def start(self) -> None:
        """Connect and subscribe; return after the SUBACK."""
        await self.client.start(must_connect=True)
        self.client.subscribe([Subscription(filter_of(self._run), self._qos, no_local=False)])
        until_s = time.monotonic() + _CONNECT_S
        while not self.is_subscribed:
            if time.monotonic() > until_s:
                raise Unavailable(f"The broker at {self._url} gave no SUBACK within {_CONNECT_S:g} s.")
            await asyncio.sleep(_TICK_S)

    async def stop(self) -> None:
        """Unsubscribe, disconnect, and leave nothing behind."""
        self.client.unsubscribe([filter_of(self._run)])
        until_s = time.monotonic() + 1.0
        while self.client.is_connected and not self.client.is_subscribed:
            if time.monotonic() > until_s:
                break
            await asyncio.sleep(_TICK_S)
        await self.client.stop()
        await _forget(self._url, self._client_id)

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        """Note the SUBACK."""
        self.is_subscribed = all(code < 0x80 for _, code in answers)

    def on_publications(self, publications: list[Publication]) -> None:
        """Record publications, then acknowledge them."""
        now_s = self.received_s = time.monotonic()
        reader, run = self.reader, self._run
        for publication in publications:
            found = stamp.read(payload_of(publication.packet), publication.topic.encode())
            if found is None:
                reader.corrupted += 1
            elif found.run != run or found.publisher >= len(reader.seen):
                reader.foreign += 1
            elif found.number == stamp.PROBE:
                self.probed.add(found.publisher)
            else:
                reader.seen[found.publisher].take(found.number, now_s)
        self.client.ack([publication.receipt for publication in publications if publication.receipt])
