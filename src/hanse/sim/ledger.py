"""Ledger of a run: publications, the subscribers entitled to each, and the outcome of each pair.

Terms:
- An *eligible pair* is a message that its broker accepted and a subscriber at another broker. The SUBACK of the
  subscriber came at least 2A earlier, the subscriber stayed, and its broker was up.
- A pair is delivered, lost or a duplicate. Echoes, corrupted packets and reused ids are never allowed. A loss at QoS 0
  is allowed during a fault and until the bound after it has passed. A loss at QoS 1 and 2 is not, and their pairs are
  judged at the end.
- A duplicate is never allowed at QoS 2. At QoS 0 and 1 a federator that was killed may repeat deliveries that the host
  broker had not acknowledged to it. Such a delivery is a *repeat*, and is counted. At any QoS, two more are repeats:
  deliveries from before a federator lost its disk, and messages that its host broker hands in again after that, because
  nobody knows their former ids any more.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hanse.errors import RemoteError
from hanse.protocol.messages import Run
from hanse.sim.host import Client, matches
from hanse.sim.packets import read_packets

# A pair is judged this long after the publication, in announcement intervals. No route through the mesh takes longer.
JUDGED_AFTER_A = 6.0
# A subscriber is entitled to publications from this long after its SUBACK, in announcement intervals.
ENTITLED_AFTER_A = 2.0

# Messages that have arrived are removed from the list of those in custody when the list is this long.
KEPT_MANY = 200

MessageId = tuple[int, int, int]


@dataclass(slots=True)
class Message:
    """One publication and its pairs."""

    number: int
    origin: int
    topic: str
    qos: int
    packet: bytes
    published_s: float
    is_told: bool
    is_calm: bool
    # Entitled subscribers that have not received it.
    pending: dict[str, Client] = field(default_factory=dict)
    # Names of entitled subscribers whose interest had not reached the origin.
    unheard: frozenset[str] = frozenset()
    delivered_at: set[int] = field(default_factory=set)
    is_lost_in_flight: bool = False
    # Reason why nobody can be asked for it: the broker or the disk that had it is gone.
    excuse: str = ""
    forwards: int = 0
    # Broker to the time of first arrival, and the links in the order in which they carried the message.
    arrived_s: dict[int, float] = field(default_factory=dict)
    path: list[tuple[int, int]] = field(default_factory=list)
    # Broker to the number of its federator's starts at the first delivery.
    first_start: dict[int, int] = field(default_factory=dict)
    # True if the disk that knew its id is gone and its broker has yet to hand it over again. It will get another id.
    is_renumbered: bool = False
    # Brokers that have acknowledged it.
    taken_at: set[int] = field(default_factory=set)


class Ledger:
    """Ledger of a run."""

    def __init__(self, refuse: Callable[[str, str], None], interval_s: float) -> None:
        self._refuse = refuse
        self.interval_s = interval_s
        self.messages: dict[int, Message] = {}
        self.counters: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self._numbers: dict[MessageId, int] = {}
        self._open: deque[Message] = deque()
        # Messages of QoS 1 and 2 that a subscriber has not received yet. They are in custody until the end.
        self._kept: list[Message] = []
        # (broker, origin, topic) to the last number delivered there, to detect a wrong order.
        self._last: dict[tuple[int, int, str], int] = {}

    def publish(self, message: Message, entitled: Sequence[Client]) -> None:
        """Enter a message."""
        self.messages[message.number] = message
        self.counters["published"] += 1
        message.pending = {client.name: client for client in entitled}
        self._open.append(message)

    def release(self, client: Client, topic_filter: str | None) -> None:
        """End the entitlement of a subscriber to pending messages, because it leaves or its broker stops."""
        for message in (*self._open, *self._kept):
            if topic_filter is None or matches(topic_filter, message.topic):
                message.pending.pop(client.name, None)

    def name(self, message_id: MessageId, number: int) -> None:
        """Record the id of a message. An id must never mean two messages."""
        known = self._numbers.setdefault(message_id, number)
        if known != number:
            self._refuse("id reused", f"id {message_id} was message {known} and is now message {number}")

    def read(self, run: Run, where: str) -> list[Message]:
        """Return the messages of a run. Compare each with what was published."""
        found = []
        try:
            packets = list(read_packets(run.body))
        except RemoteError as error:
            self._refuse("corrupted", f"{where}: {error}")
            return []
        if len(packets) != run.length:
            self._refuse("corrupted", f"{where}: a run of {run.length} holds {len(packets)} packets")
        for k, (number, _, packet) in enumerate(packets):
            message = self.messages.get(number)
            if message is None or message.packet != packet:
                self._refuse("delivered what was not published", f"{where}: message {number}")
                continue
            if message.origin != run.origin:
                self._refuse("corrupted", f"{where}: {number} of {message.origin} bears the origin {run.origin}")
            self.name((run.origin, run.epoch, run.first + k), number)
            found.append(message)
        return found

    def deliver(self, broker: int, message: Message, receivers: Sequence[Client], *, may_repeat: bool = False) -> None:
        """Record that a federator hands a message to its host broker. `may_repeat` allows a repeat."""
        where = f"message {message.number} of {message.origin} on {message.topic} at {broker}"
        if broker == message.origin:
            self._refuse("echo", f"{where}: delivered to the broker that it came from")
        if broker in message.delivered_at:
            if not may_repeat:
                self._refuse("duplicate", f"{where}: delivered twice at QoS {message.qos}")
            self.counters["repeats"] += 1
            return
        message.delivered_at.add(broker)
        self.counters["deliveries"] += 1
        key = (broker, message.origin, message.topic)
        if message.number < self._last.get(key, -1):
            self.counters["reordered"] += 1
            self.counters["reordered_in_calm"] += message.is_calm
        self._last[key] = max(message.number, self._last.get(key, -1))
        for client in receivers:
            if message.pending.pop(client.name, None) is not None:
                self.counters["delivered"] += 1

    def judge(self, now: float, reason_of: Callable[[Message, Client], str | None]) -> None:
        """Judge the pairs that are old enough. A loss without a reason breaks the promise."""
        before = now - JUDGED_AFTER_A * self.interval_s
        while self._open and self._open[0].published_s <= before:
            message = self._open.popleft()
            if message.qos and message.pending:
                self._kept.append(message)
            else:
                self._close(message, reason_of)
        if len(self._kept) > KEPT_MANY:
            self._kept = [message for message in self._kept if message.pending]

    def judge_kept(self, reason_of: Callable[[Message, Client], str | None]) -> None:
        """Judge the remaining pairs of QoS 1 and 2 at the end of the run. What has not arrived now never will."""
        for message in self._kept:
            self._close(message, reason_of)
        self._kept.clear()

    def _close(self, message: Message, reason_of: Callable[[Message, Client], str | None]) -> None:
        for client in message.pending.values():
            reason = reason_of(message, client)
            self.lost[reason or "no reason"] += 1
            if reason is None:
                what = f"message {message.number} of {message.origin} on {message.topic} at QoS {message.qos}"
                self._refuse("lost", f"{what} never reached {client.name} at {client.broker}")

    @property
    def eligible(self) -> int:
        """Number of pairs that count: delivered ones and lost ones."""
        return self.counters["delivered"] + sum(self.lost.values())
