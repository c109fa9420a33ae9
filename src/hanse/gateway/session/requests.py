"""SUBSCRIBE and UNSUBSCRIBE of one client, until the broker has answered them.

Rules: a request is checked as far as it must be read; a filter that the broker did not grant is no subscription; the
number of unanswered bytes is bounded.
"""

from typing import Final

from hanse.gateway.session.events import Subscribed, Subscription, Unsubscribed
from hanse.gateway.session.settings import UNANSWERED_BYTES_MAX
from hanse.mqtt.properties import SUBSCRIPTION_IDENTIFIER, check_text, read_varint, varint, walk
from hanse.mqtt.refusal import QUOTA_EXCEEDED, Refusal, malformed, protocol_error

_OF_SUBSCRIBE: Final = frozenset({SUBSCRIPTION_IDENTIFIER, 0x26})
_OF_UNSUBSCRIBE: Final = frozenset({0x26})

SUBSCRIBE: Final = 0x82
UNSUBSCRIBE: Final = 0xA2


class Request:
    """One SUBSCRIBE or UNSUBSCRIBE. `filters` has the options of SUBSCRIBE beside each filter, else 0."""

    def __init__(self, packet: bytes, packet_id: int, identifier: int, filters: list[tuple[bytes, int]]) -> None:
        self.packet = packet
        self.packet_id = packet_id
        self.identifier = identifier
        self.filters = filters

    @property
    def is_subscribe(self) -> bool:
        """Return whether this is a SUBSCRIBE."""
        return self.packet[0] == SUBSCRIBE


def read_request(packet: bytes, version: int) -> Request:
    """Read a whole SUBSCRIBE or UNSUBSCRIBE.

    Raises:
        Refusal: the packet is malformed, or has no filter.
    """
    end = len(packet)
    is_subscribe = packet[0] == SUBSCRIBE
    if not is_subscribe and packet[0] != UNSUBSCRIBE:
        raise malformed(f"a packet begins with {packet[0]:#04x}; a request begins with 0x82 or 0xa2")
    i = read_varint(packet, 1, end)[1]
    if i + 2 > end:
        raise malformed("a SUBSCRIBE or UNSUBSCRIBE ends before its packet identifier")
    packet_id = packet[i] << 8 | packet[i + 1]
    if not packet_id:
        raise protocol_error("a SUBSCRIBE or UNSUBSCRIBE has packet identifier 0")
    i += 2
    identifier = 0
    if version == 5:
        length, i = read_varint(packet, i, end)
        if i + length > end:
            raise malformed("the properties of a SUBSCRIBE or UNSUBSCRIBE go beyond its end")
        allowed = _OF_SUBSCRIBE if is_subscribe else _OF_UNSUBSCRIBE
        for kind, first, last in walk(packet, i, i + length, allowed=allowed):
            if kind == SUBSCRIPTION_IDENTIFIER:
                identifier = read_varint(packet, first + 1, last)[0]
        i += length
    filters: list[tuple[bytes, int]] = []
    while i < end:
        stop = check_text(packet, i, end)
        options = 0
        if is_subscribe:
            if stop >= end:
                raise malformed("a SUBSCRIBE ends before the options of a filter")
            options = packet[stop]
        filters.append((packet[i + 2 : stop], options))
        i = stop + 1 if is_subscribe else stop
    if not filters:
        raise protocol_error("a SUBSCRIBE or UNSUBSCRIBE has no filter")
    return Request(packet, packet_id, identifier, filters)


def write_subscribe(packet_id: int, filters: list[tuple[bytes, int]], version: int, identifier: int = 0) -> bytes:
    """Return a SUBSCRIBE packet."""
    body = [packet_id.to_bytes(2, "big")]
    if version == 5:
        properties = bytes((SUBSCRIPTION_IDENTIFIER,)) + varint(identifier) if identifier else b""
        body += [varint(len(properties)), properties]
    for wanted, options in filters:
        body += [len(wanted).to_bytes(2, "big"), wanted, bytes((options if version == 5 else options & 3,))]
    return b"".join((bytes((SUBSCRIBE,)), varint(sum(map(len, body))), *body))


def write_unsubscribe(packet_id: int, filters: list[bytes], version: int) -> bytes:
    """Return an UNSUBSCRIBE packet."""
    body = [packet_id.to_bytes(2, "big")]
    if version == 5:
        body.append(b"\0")
    for unwanted in filters:
        body += [len(unwanted).to_bytes(2, "big"), unwanted]
    return b"".join((bytes((UNSUBSCRIBE,)), varint(sum(map(len, body))), *body))


def codes_of(packet: bytes, version: int) -> tuple[int, bytes]:
    """Return the packet identifier and the reason codes of a SUBACK or UNSUBACK; UNSUBACK of 3.x has none.

    Raises:
        Refusal: the packet is malformed.
    """
    end = len(packet)
    i = read_varint(packet, 1, end)[1]
    if i + 2 > end:
        raise malformed("a SUBACK or UNSUBACK ends before its packet identifier")
    packet_id = packet[i] << 8 | packet[i + 1]
    i += 2
    if version == 5:
        length, i = read_varint(packet, i, end)
        i += length
        if i > end:
            raise malformed("the properties of a SUBACK or UNSUBACK go beyond its end")
    return packet_id, packet[i:]


class Requests:
    """The requests of one client that the broker has not answered."""

    def __init__(self) -> None:
        self.waiting: dict[int, Request] = {}
        self._bytes = 0

    def add(self, request: Request) -> None:
        """Remember a request that goes to the broker.

        Raises:
            Refusal: too many wait already, or the packet identifier is in use.
        """
        self._bytes += len(request.packet)
        if self._bytes > UNANSWERED_BYTES_MAX:
            raise Refusal(
                QUOTA_EXCEEDED, f"{self._bytes} bytes of requests are unanswered; {UNANSWERED_BYTES_MAX} may be"
            )
        if request.packet_id in self.waiting:
            raise protocol_error(f"packet identifier {request.packet_id} is in use by another request")
        self.waiting[request.packet_id] = request

    def answer(self, packet: bytes, version: int) -> Subscribed | Unsubscribed | None:
        """Take a SUBACK or UNSUBACK; return the granted or removed filters; None if there are none, or nobody asked.

        Raises:
            Refusal: the packet is malformed.
        """
        packet_id, codes = codes_of(packet, version)
        request = self.waiting.pop(packet_id, None)
        if request is None:
            return None
        self._bytes -= len(request.packet)
        if request.is_subscribe:
            granted = tuple(
                Subscription(wanted, code, options, request.identifier)
                for (wanted, options), code in zip(request.filters, codes, strict=False)
                if code < 0x80
            )
            return Subscribed(packet_id, granted) if granted else None
        removed = tuple(
            wanted
            for k, (wanted, _) in enumerate(request.filters)
            if version < 5 or (k < len(codes) and codes[k] < 0x80)
        )
        return Unsubscribed(removed) if removed else None
