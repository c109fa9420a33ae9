"""History: messages that publishers sent and subscribers saw, in columns of numbers, a few bytes per message.

Times come from one monotonic clock, in seconds; 0 means never. A publisher's message `number` goes to its topic `number
% topics`, so topic and QoS need no column.
"""

import csv
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

COPIES_MAX = 255


class Sent:
    """Columns of one publisher: when each message was sent, when it was acknowledged, and whether it was sent again.

    Args:
        site: number of the publisher's broker.
        qos: QoS of each topic.
        count: number of messages to send.
    """

    def __init__(self, site: int, qos: Sequence[int], count: int) -> None:
        self.site = site
        self.qos = tuple(qos)
        self.count = 0
        self.sent_s = array("d", bytes(8 * count))
        self.acked_s = array("d", bytes(8 * count))
        # At QoS 2, the time of PUBREC, when the broker has the message. From then on, the broker may be the only one to
        # have it.
        self.received_s = array("d", bytes(8 * count))
        self.refused = bytearray(count)
        self.retried = bytearray(count)
        # Beginning and end of its connections.
        self.connections: list[tuple[float, float]] = []

    def connected(self, now_s: float) -> None:
        """Note that a connection began."""
        self.connections.append((now_s, 0.0))

    def disconnected(self, now_s: float) -> None:
        """Note that the connection ended."""
        if self.connections and not self.connections[-1][1]:
            self.connections[-1] = (self.connections[-1][0], now_s)

    def answered_until_s(self, killed_s: float) -> float:
        """Return until when acknowledgements of a killed broker were read: the end of the connection at that time."""
        return max([killed_s, *(end_s for begin_s, end_s in self.connections if begin_s <= killed_s)])

    def qos_of(self, number: int) -> int:
        """Return the QoS at which a message was published."""
        return self.qos[number % len(self.qos)]


class Seen:
    """One subscriber's record of one publisher: first arrival of each message, number of arrivals, and order.

    Args:
        topics: number of topics that the publisher uses in turn.
    """

    def __init__(self, topics: int, count: int) -> None:
        self.first_s = array("d", bytes(8 * count))
        self.copies = bytearray(count)
        self.reordered = 0
        self.out_of_range = 0
        self._last = [-1] * topics

    def take(self, number: int, now_s: float) -> None:
        """Record one arrival."""
        if number >= len(self.copies):
            self.out_of_range += 1
            return
        copies = self.copies[number]
        if copies:
            # A duplicate says nothing about the order of first arrivals.
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
    """One subscriber: its site, its record of each publisher, and its unreadable messages."""

    site: int
    seen: list[Seen]
    corrupted: int = 0
    foreign: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """Times at which a fault began, was complete, and ended.

    Attributes:
        brokers_killed: site to the time at which its broker was killed without a chance to save.
    """

    begin_s: float
    began_s: float
    end_s: float
    brokers_killed: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class History:
    """Complete record of a workload."""

    publishers: Sequence[Sent]
    readers: Sequence[Reader]


def write(path: Path, history: History, span: Span | None) -> None:
    """Write a history as a table, with one row per message, so that a person can check the judge's verdict.

    Times are seconds from the beginning of the fault (without a fault, of the machine's clock), empty for never. The
    lines at the top give the time of the fault, the killed brokers, and the connections of each publisher.
    """
    zero_s = span.begin_s if span is not None else 0.0

    def at(moment_s: float) -> str:
        return f"{moment_s - zero_s:.6f}" if moment_s else ""

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        if span is not None:
            killed = ", ".join(f"{site} at {at(killed_s)}" for site, killed_s in span.brokers_killed.items()) or "none"
            file.write(f"# fault: begun {at(span.began_s)}, ended {at(span.end_s)}; brokers killed: {killed}\n")
        for number, sent in enumerate(history.publishers):
            stood = ", ".join(f"{at(begin_s)} to {at(end_s)}" for begin_s, end_s in sent.connections)
            file.write(f"# publisher {number} at {sent.site}: connected {stood or 'never'}\n")
        rows = csv.writer(file, lineterminator="\n")
        sites = [reader.site for reader in history.readers]
        seen_by = [name for site in sites for name in (f"seen_at_{site}", f"copies_at_{site}")]
        rows.writerow(["publisher", "number", "qos", "sent", "received", "acked", "retried", "refused", *seen_by])
        for k, sent in enumerate(history.publishers):
            for number in range(sent.count):
                seen = [reader.seen[k] for reader in history.readers]
                arrivals = [cell for one in seen for cell in (at(one.first_s[number]), one.copies[number])]
                times = [at(column[number]) for column in (sent.sent_s, sent.received_s, sent.acked_s)]
                tried = (sent.retried[number], sent.refused[number])
                rows.writerow([k, number, sent.qos_of(number), *times, *tried, *arrivals])
