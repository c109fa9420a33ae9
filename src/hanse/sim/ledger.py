"""What was published, who was entitled to it, and what became of each pair.

Terms, as RELIABILITY has them:
- An *eligible pair* is a message that its broker took and a subscriber at another broker whose SUBACK came at least
  2A earlier and who stayed, at a broker that was up.
- A pair is ok, lost or a duplicate. Duplicates, echoes, corrupted packets and reused ids are never allowed; loss is,
  while a fault is on or the bound after it has not passed, as long as nobody keeps custody.
- One duplicate is the fault's and is counted apart: at a federator that was killed in between. Nothing is doubled
  *without faults*; whoever has lost what it had seen cannot know a copy that waited elsewhere for another group's way.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hanse.errors import RemoteError
from hanse.protocol.messages import Run
from hanse.sim.host import Client, matches
from hanse.sim.packets import read_packets

# A pair is judged this long after the publication, in announcement intervals: longer than any way through the mesh.
JUDGED_AFTER_A = 6.0
# A subscriber is entitled to what is published this long after its SUBACK, in announcement intervals.
ENTITLED_AFTER_A = 2.0

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
    # Entitled subscribers that have not got it, and how many have.
    pending: dict[str, Client] = field(default_factory=dict)
    delivered_at: set[int] = field(default_factory=set)
    # Broker to the boot of its federator that delivered it there.
    boots: dict[int, int] = field(default_factory=dict)
    is_lost_in_flight: bool = False
    forwards: int = 0
    # Broker to the time at which the first copy came, and the links in the order in which copies took them.
    arrived_s: dict[int, float] = field(default_factory=dict)
    path: list[tuple[int, int]] = field(default_factory=list)


class Ledger:
    """The books of a run."""

    def __init__(self, refuse: Callable[[str, str], None], interval_s: float) -> None:
        self._refuse = refuse
        self.interval_s = interval_s
        self.messages: dict[int, Message] = {}
        self.counters: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self._numbers: dict[MessageId, int] = {}
        self._open: deque[Message] = deque()
        # (broker, origin, topic) to the last number delivered there: what order means.
        self._last: dict[tuple[int, int, str], int] = {}

    def publish(self, message: Message, entitled: Sequence[Client]) -> None:
        """Open the books of a message."""
        self.messages[message.number] = message
        self.counters["published"] += 1
        message.pending = {client.name: client for client in entitled}
        self._open.append(message)

    def release(self, client: Client, topic_filter: str | None) -> None:
        """A subscriber goes, or its broker does: it is entitled to nothing that it has not got yet."""
        for message in self._open:
            if topic_filter is None or matches(topic_filter, message.topic):
                message.pending.pop(client.name, None)

    def name(self, message_id: MessageId, number: int) -> None:
        """A message got its id; an id must never mean two messages."""
        known = self._numbers.setdefault(message_id, number)
        if known != number:
            self._refuse("id reused", f"id {message_id} was message {known} and is now message {number}")

    def read(self, run: Run, where: str) -> list[Message]:
        """The messages of a run, each checked against what was published."""
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

    def deliver(self, broker: int, message: Message, receivers: Sequence[Client], boot: int = 0) -> None:
        """A federator, in the boot of this number, hands a message to its host broker."""
        where = f"message {message.number} of {message.origin} on {message.topic} at {broker}"
        if broker == message.origin:
            self._refuse("echo", f"{where}: delivered to the broker that it came from")
        if message.boots.get(broker) == boot:
            self._refuse("duplicate", f"{where}: delivered twice")
        if broker in message.delivered_at:
            self.counters["duplicates_after_restart"] += 1
        message.delivered_at.add(broker)
        message.boots[broker] = boot
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
        """Close the books of what is old enough. A pair without a reason for its loss breaks the promise."""
        before = now - JUDGED_AFTER_A * self.interval_s
        while self._open and self._open[0].published_s <= before:
            message = self._open.popleft()
            for client in message.pending.values():
                reason = reason_of(message, client)
                self.lost[reason or "no reason"] += 1
                if reason is None:
                    what = f"message {message.number} of {message.origin} on {message.topic}"
                    self._refuse("lost", f"{what} never reached {client.name} at {client.broker}, without a fault")

    @property
    def eligible(self) -> int:
        """Pairs that counted: those that got their message and those that did not."""
        return self.counters["delivered"] + sum(self.lost.values())
