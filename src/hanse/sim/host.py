"""Simulated host broker: clients, their filters, and the subscriptions of the federator.

Rules:
- A local publication reaches local subscribers at once. It reaches the federator only while one of the federator's
  subscriptions matches. The federator's own publications do not come back to it (No Local).
- A client with overlapping filters gets a message once, as from a broker with one client session.
- Matching goes level by level, in the obvious way, because it checks the trie of the protocol.
"""

from dataclasses import dataclass, field
from functools import lru_cache

from hanse.protocol.messages import Publication


@lru_cache(maxsize=1 << 16)
def matches(topic_filter: str, topic: str) -> bool:
    """Return True if a topic filter matches a topic name (MQTT 5, section 4.7)."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if levels[0].startswith("$") and wanted[0] in {"+", "#"}:
        return False
    for k, level in enumerate(wanted):
        if level == "#":
            return True
        if k >= len(levels) or level not in {"+", levels[k]}:
            return False
    return len(wanted) == len(levels)


@dataclass(slots=True)
class Client:
    """Subscriber: its filters, each with the time of its SUBACK."""

    name: str
    broker: int
    since_s: dict[str, float] = field(default_factory=dict)

    def wants_since(self, topic: str) -> float | None:
        """Return the time since when the client has been entitled to the topic, or None if it is not."""
        times = [
            since_s
            for topic_filter, since_s in self.since_s.items()
            # Most filters are plain names. Large runs have time only to compare them.
            if topic_filter == topic
            or ((topic_filter[-1] == "#" or "+" in topic_filter) and matches(topic_filter, topic))
        ]
        return min(times) if times else None


class HostBroker:
    """One broker as its federator sees it."""

    __slots__ = ("_session", "clients", "federator_filters", "interest", "is_up")

    def __init__(self) -> None:
        self.is_up = True
        self.clients: dict[str, Client] = {}
        # Filter to the number of local clients that hold it.
        self.interest: dict[str, int] = {}
        self.federator_filters: set[str] = set()
        # Receipt to a batch that the federator has not acknowledged. Its session is persistent.
        self._session: dict[int, list[Publication]] = {}

    def keep(self, receipt: int, batch: list[Publication]) -> None:
        """Hand a batch over, and keep it until it is acknowledged."""
        self._session[receipt] = batch

    def acknowledge(self, receipt: int) -> None:
        """Forget a batch that the federator has acknowledged."""
        self._session.pop(receipt, None)

    @property
    def unacknowledged(self) -> int:
        """Number of publications that the federator has not acknowledged."""
        return sum(map(len, self._session.values()))

    def in_session(self) -> list[Publication]:
        """Return the publications that the federator has not acknowledged, in order."""
        return [publication for batch in self._session.values() for publication in batch]

    def take_session(self) -> dict[int, list[Publication]]:
        """Remove and return all unacknowledged batches, in order."""
        session, self._session = self._session, {}
        return session

    def subscribe(self, client: Client, topic_filter: str, now: float) -> bool:
        """Add a filter to a client. Return True if the broker had no interest in it before."""
        self.clients[client.name] = client
        if topic_filter in client.since_s:
            return False
        client.since_s[topic_filter] = now
        self.interest[topic_filter] = self.interest.get(topic_filter, 0) + 1
        return self.interest[topic_filter] == 1

    def unsubscribe(self, client: Client, topic_filter: str) -> bool:
        """Remove a filter from a client. Return True if nobody here wants it any more."""
        if client.since_s.pop(topic_filter, None) is None:
            return False
        if not client.since_s:
            del self.clients[client.name]
        self.interest[topic_filter] -= 1
        if self.interest[topic_filter]:
            return False
        del self.interest[topic_filter]
        return True

    def tells_federator(self, topic: str) -> bool:
        """Return True if a publication of a local client reaches the federator."""
        return any(matches(topic_filter, topic) for topic_filter in self.federator_filters)

    def receivers(self, topic: str) -> list[Client]:
        """Return the clients that get a publication on the topic, each once."""
        return [client for client in self.clients.values() if client.wants_since(topic) is not None]
