"""The filters wanted at a broker, and the packets that bring the broker's session to them.

Rules: `wanted` belongs to the caller and survives reconnects. The granted filters are remembered as long as the
broker's session lasts. After a reconnect, only the difference is sent (everything, if the session is gone or was made
by a former process). Packets are sent and answered in order, so the last request for a filter wins. The number of
requests under way never exceeds that of the identifiers reserved for them.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from mqtt5 import QoS, RetainHandling, SubscribePacket, TopicFilter, UnsubscribePacket

from hanse.errors import LocalError
from hanse.mqtt.limits import FILTERS_A_PACKET_MAX, FILTERS_MAX, SUBSCRIBE_ID_MAX, SUBSCRIBE_ID_MIN
from hanse.mqtt.refusal import protocol_error


@dataclass(frozen=True, slots=True)
class Subscription:
    """One filter and its options. The defaults are those that a federator requests from its host broker."""

    filter: str
    qos: int = 2
    identifier: int | None = None
    no_local: bool = True
    retain_as_published: bool = True
    retain_handling: int = 2

    def __post_init__(self) -> None:
        check_filter(self.filter)
        if self.qos not in {0, 1, 2} or self.retain_handling not in {0, 1, 2}:
            raise LocalError(
                f"QoS {self.qos} and retain handling {self.retain_handling} were given; each must be 0, 1 or 2."
            )
        if self.identifier is not None and not 1 <= self.identifier <= 268_435_455:
            raise LocalError(f"subscription identifier {self.identifier} was given; it must be 1 to 268435455.")
        if self.no_local and self.filter.startswith("$share/"):
            raise LocalError(f"{self.filter!r} is shared, and MQTT forbids No Local there (3.8.3.1); leave it out.")


def check_filter(pattern: str) -> None:
    """Raise LocalError for an invalid topic filter (MQTT 5, 4.7)."""
    levels = pattern.split("/")
    bad = not pattern or "\0" in pattern or len(pattern.encode(errors="surrogatepass")) > 65_535
    bad = bad or any("#" in level and (level != "#" or i + 1 < len(levels)) for i, level in enumerate(levels))
    if bad or any("+" in level and level != "+" for level in levels):
        raise LocalError(f"{pattern[:200]!r} is not a topic filter; + stands for a level, # for all that follow.")


class Subscriptions:
    """Set of wanted filters of one session."""

    def __init__(self) -> None:
        self.wanted: dict[str, Subscription] = {}
        self._granted: dict[str, Subscription] = {}
        self._queue: deque[tuple[bool, tuple[Subscription, ...]]] = deque()
        self._under_way: dict[int, tuple[bool, tuple[Subscription, ...]]] = {}
        self._next_id = SUBSCRIBE_ID_MIN
        self._is_attached = False
        self.has_identifiers = True

    @property
    def is_settled(self) -> bool:
        """Return whether the broker has answered all requests."""
        return self._is_attached and not self._queue and not self._under_way

    def is_granted(self, pattern: str) -> bool:
        """Return whether the broker's session holds the filter, as far as the broker has answered."""
        return pattern in self._granted

    def attach(self, *, session_present: bool, has_identifiers: bool = True) -> bytes:
        """Begin a connection, and return the packets to write."""
        self._is_attached = True
        self.has_identifiers = has_identifiers
        # Requests under way at the cut may or may not have arrived. Their filters count as not granted, and unwanted
        # ones are unsubscribed again.
        doubtful = {item.filter for _, items in (*self._under_way.values(), *self._queue) for item in items}
        self._under_way.clear()
        self._queue.clear()
        if not session_present:
            self._granted.clear()
            doubtful.clear()
        for pattern in doubtful:
            self._granted.pop(pattern, None)
        gone = [pattern for pattern in sorted(doubtful | self._granted.keys()) if pattern not in self.wanted]
        # A filter that ends may have covered a new one until now.
        self._enqueue(True, [item for key, item in self.wanted.items() if self._granted.get(key) != item])
        self._enqueue(False, [Subscription(pattern, no_local=False) for pattern in gone])
        return self._pump()

    def detach(self) -> None:
        """End the connection."""
        self._is_attached = False

    def subscribe(self, items: Iterable[Subscription], *, repeats: bool = False) -> bytes:
        """Add wanted filters, or change their options, and return the packets to write.

        With `repeats`, also unchanged filters are requested again, so that the broker sends its retained messages
        again.
        """
        changed = [item for item in items if repeats or self.wanted.get(item.filter) != item]
        if len(self.wanted) + len(changed) > FILTERS_MAX:
            raise LocalError(
                f"{len(self.wanted) + len(changed)} filters were requested; at most {FILTERS_MAX} are possible."
            )
        for item in changed:
            self.wanted[item.filter] = item
        if not self._is_attached:
            return b""
        self._enqueue(True, changed)
        return self._pump()

    def unsubscribe(self, patterns: Iterable[str]) -> bytes:
        """Remove wanted filters, and return the packets to write. Filters of a former process may be among them."""
        items = [self._no_more(pattern) for pattern in patterns]
        if not self._is_attached:
            for item in items:
                if item.filter not in self._granted:
                    self._granted[item.filter] = item  # so that the next `attach` unsubscribes it
            return b""
        self._enqueue(False, items)
        return self._pump()

    def _no_more(self, pattern: str) -> Subscription:
        if pattern in self.wanted:
            return self.wanted.pop(pattern)
        return Subscription(pattern, no_local=False)

    def withdraw_oldest(self) -> list[Subscription]:
        """Remove the filters of the oldest unanswered SUBSCRIBE, because the broker ended the connection over them."""
        for packet_id, (is_subscribe, items) in self._under_way.items():
            if is_subscribe:
                del self._under_way[packet_id]
                for item in items:
                    self.wanted.pop(item.filter, None)
                return list(items)
        return []

    def answer(self, packet_id: int, is_subscribe: bool, codes: list[int]) -> list[tuple[Subscription, int]]:
        """Handle SUBACK or UNSUBACK: return each filter with its reason code. Call `proceed` afterwards."""
        said = self._under_way.pop(packet_id, None)
        if said is None or said[0] is not is_subscribe or len(said[1]) != len(codes):
            raise protocol_error(f"packet identifier {packet_id} is answered, but there was no such request")
        for item, code in zip(said[1], codes, strict=True):
            if is_subscribe and code < 0x80:
                self._granted[item.filter] = item
            elif not is_subscribe:
                self._granted.pop(item.filter, None)
        return list(zip(said[1], codes, strict=True))

    def proceed(self) -> bytes:
        """Return the packets to write after an answer."""
        return self._pump()

    def _enqueue(self, is_subscribe: bool, items: list[Subscription]) -> None:
        # An identifier belongs to the whole packet, so only filters with the same identifier share a packet.
        group: list[Subscription] = []
        for item in items:
            if group and (
                len(group) == FILTERS_A_PACKET_MAX or (is_subscribe and group[0].identifier != item.identifier)
            ):
                self._queue.append((is_subscribe, tuple(group)))
                group = []
            group.append(item)
        if group:
            self._queue.append((is_subscribe, tuple(group)))

    def _pump(self) -> bytes:
        out: list[bytes] = []
        free = SUBSCRIBE_ID_MAX - SUBSCRIBE_ID_MIN + 1 - len(self._under_way)
        while self._queue and free > 0:
            packet_id = self._next_id
            self._next_id = packet_id + 1 if packet_id < SUBSCRIBE_ID_MAX else SUBSCRIBE_ID_MIN
            if packet_id in self._under_way:
                continue
            is_subscribe, items = self._queue.popleft()
            self._under_way[packet_id] = (is_subscribe, items)
            free -= 1
            if is_subscribe:
                filters = [_filter(item) for item in items]
                identifier = items[0].identifier if self.has_identifiers else None
                out.append(SubscribePacket(packet_id, filters, subscription_id=identifier).write())
            else:
                out.append(UnsubscribePacket(packet_id, [item.filter for item in items]).write())
        return b"".join(out)


def _filter(item: Subscription) -> TopicFilter:
    return TopicFilter(
        item.filter,
        max_qos=QoS(item.qos),
        no_local=item.no_local,
        retain_as_published=item.retain_as_published,
        retain_handling=RetainHandling(item.retain_handling),
    )
