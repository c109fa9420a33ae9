"""What publishers sent and what subscribers saw, message by message: columns of numbers, a few bytes each.

Times are of one monotonic clock, in seconds; 0 means never. A publisher's message `number` goes to its topic
`number % topics`, so topic and QoS need no column.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

COPIES_MAX = 255


class Sent:
    """One publisher's column: when each message was handed over, when it was acknowledged, whether it was tried again.

    Args:
        site: the number of the broker where it publishes.
        qos: of each topic.
        count: messages that will be sent.
    """

    def __init__(self, site: int, qos: Sequence[int], count: int) -> None:
        self.site = site
        self.qos = tuple(qos)
        self.count = 0
        self.sent_s = array("d", bytes(8 * count))
        self.acked_s = array("d", bytes(8 * count))
        # At QoS 2, when the broker said that it has it (PUBREC): from then on it is the only one, if nobody else has.
        self.received_s = array("d", bytes(8 * count))
        self.refused = bytearray(count)
        self.retried = bytearray(count)
        # When its connections began and ended.
        self.connections: list[tuple[float, float]] = []

    def connected(self, now_s: float) -> None:
        """A connection began."""
        self.connections.append((now_s, 0.0))

    def disconnected(self, now_s: float) -> None:
        """It ended."""
        if self.connections and not self.connections[-1][1]:
            self.connections[-1] = (self.connections[-1][0], now_s)

    def answered_until_s(self, killed_s: float) -> float:
        """Until when answers of a broker that was killed were read: when the connection that stood then ended."""
        return max([killed_s, *(end_s for begin_s, end_s in self.connections if begin_s <= killed_s)])

    def qos_of(self, number: int) -> int:
        """The QoS at which a message was published."""
        return self.qos[number % len(self.qos)]


class Seen:
    """What one subscriber saw of one publisher: the first arrival of each message, how many copies, and the order.

    Args:
        topics: how many topics the publisher goes round.
    """

    def __init__(self, topics: int, count: int) -> None:
        self.first_s = array("d", bytes(8 * count))
        self.copies = bytearray(count)
        self.reordered = 0
        self.out_of_range = 0
        self._last = [-1] * topics

    def take(self, number: int, now_s: float) -> None:
        """One message arrived."""
        if number >= len(self.copies):
            self.out_of_range += 1
            return
        copies = self.copies[number]
        if copies:
            # A second copy says nothing of the order of the first ones.
            self.copies[number] = min(copies + 1, COPIES_MAX)
            return
        self.copies[number] = 1
        self.first_s[number] = now_s
        topic = number % len(self._last)
        if number < self._last[topic]:
            self.reordered += 1
        else:
            self._last[topic] = number


@dataclass(slots=True)
class Reader:
    """One subscriber: where it is, what it saw of each publisher, and what it could not read."""

    site: int
    seen: list[Seen]
    corrupted: int = 0
    foreign: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """When a fault began, was wholly there, and ended.

    Attributes:
        brokers_killed: site to the time at which its broker was killed without a chance to save.
    """

    begin_s: float
    began_s: float
    end_s: float
    brokers_killed: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class History:
    """All of a workload."""

    publishers: Sequence[Sent]
    readers: Sequence[Reader]
