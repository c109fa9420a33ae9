"""The subscriptions of one client that its broker granted."""

from hanse.errors import RemoteError
from hanse.gateway.session.events import Subscription
from hanse.gateway.session.settings import FILTERS_PER_PACKET, SUBSCRIPTIONS_MAX
from hanse.mqtt.refusal import QUOTA_EXCEEDED, Refusal
from hanse.protocol.trie import FilterIndex

NO_LOCAL = 0x04
AS_PUBLISHED = 0x08
RETAIN_NEVER = 0x20
_RETAIN_HANDLING = 0x30


class Table:
    """Filters, and the time from which the client has each.

    Attributes:
        quiet: filters of MQTT 3 that the gateway subscribed to again: their retained messages are repetitions.
        removed: filters that the client has given up since it left the broker where its session is.
        has_no_local: whether the client does not want its own publications under some filter.
    """

    def __init__(self) -> None:
        self.subscriptions: dict[bytes, Subscription] = {}
        self.since: dict[bytes, float] = {}
        self.quiet: set[bytes] = set()
        self.removed: set[bytes] = set()
        self.has_no_local = False
        self._index: FilterIndex | None = None

    def add(self, granted: tuple[Subscription, ...], now: float) -> None:
        """Take filters that a broker granted.

        Raises:
            Refusal: they are more than the gateway remembers.
        """
        for one in granted:
            self.subscriptions[one.filter] = one
            self.since.setdefault(one.filter, now)
            self.quiet.discard(one.filter)
            self.removed.discard(one.filter)
            self.has_no_local = self.has_no_local or bool(one.options & NO_LOCAL)
        self._index = None
        if len(self.subscriptions) > SUBSCRIPTIONS_MAX:
            raise Refusal(
                QUOTA_EXCEEDED,
                f"a client has {len(self.subscriptions)} subscriptions; the gateway keeps {SUBSCRIPTIONS_MAX} per "
                "client through a failover",
            )

    def remove(self, filters: tuple[bytes, ...]) -> None:
        """Forget filters."""
        for one in filters:
            if self.subscriptions.pop(one, None) is not None and len(self.removed) < SUBSCRIPTIONS_MAX:
                self.removed.add(one)
            self.since.pop(one, None)
            self.quiet.discard(one)
        self._index = None
        if self.has_no_local:
            self.has_no_local = any(one.options & NO_LOCAL for one in self.subscriptions.values())

    def to_repeat(self, version: int) -> list[tuple[int, list[tuple[bytes, int]]]]:
        """Return the subscriptions to make at another broker: identifier, and filters with options, per packet."""
        found: list[tuple[int, list[tuple[bytes, int]]]] = []
        by_identifier: dict[int, list[tuple[bytes, int]]] = {}
        for one in self.subscriptions.values():
            options = one.options & ~_RETAIN_HANDLING | RETAIN_NEVER if version == 5 else one.options & 3
            by_identifier.setdefault(one.identifier, []).append((one.filter, options))
        for identifier, filters in by_identifier.items():
            found += [
                (identifier, filters[k : k + FILTERS_PER_PACKET]) for k in range(0, len(filters), FILTERS_PER_PACKET)
            ]
        return found

    def replayable(self) -> tuple[bytes, ...]:
        """Return the filters for which a federator may replay: it retains QoS 1 and 2, and no `$` topics."""
        return tuple(one.filter for one in self.subscriptions.values() if one.qos and not one.filter.startswith(b"$"))

    def matching(self, topic: bytes) -> list[Subscription]:
        """Return the subscriptions that a topic matches, except shared ones."""
        index = self._index
        if index is None:
            index = self._index = FilterIndex()
            for one in self.subscriptions:
                if not one.startswith(b"$share/"):
                    try:
                        index.add(one.decode())
                    except (RemoteError, UnicodeDecodeError):
                        continue
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            return []
        return [self.subscriptions[one.encode()] for one in index.match(name)]
