"""Packets of discovery: a few to send, and a reader of a broker's packets that keeps no payloads.

Rules:

1. The reader trusts nothing. Of a publication it keeps the topic, the QoS and the packet identifier; the payload is
   skipped while it arrives. Of any other packet it keeps at most `OTHER_BYTES_MAX`.
2. The first byte must be that of CONNACK, so that discovery does not wait for a peer of another protocol.
3. A malformed packet is a `Refusal`, after the packets before it. The caller then ends the connection.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from hanse.gateway.front.connect import MQTT_5
from hanse.mqtt.properties import check_text, read_varint, varint
from hanse.mqtt.refusal import PACKET_TOO_LARGE, Refusal, malformed, protocol_error

DISCONNECT: Final = b"\xe0\x00"
PINGREQ: Final = b"\xc0\x00"
# CONNACK and DISCONNECT may hold a reason and user properties; no other incoming packet is large.
OTHER_BYTES_MAX: Final = 65_536

CONNACK: Final = 2
PUBLISH: Final = 3
SUBACK: Final = 9
# PUBREL, SUBSCRIBE and UNSUBSCRIBE (MQTT 5, 2.1.3).
_WITH_FLAG: Final = frozenset({6, 8, 10})


class Packet(NamedTuple):
    """One packet of a broker: PUBLISH as its topic, any other as its bytes.

    Attributes:
        kind: type of the packet, 1 to 15.
        body: bytes behind the fixed header; for PUBLISH the bytes behind topic and packet identifier, if they are
            wanted.
        topic: raw bytes.
        packet_id: 0 at QoS 0.
        is_retained: the RETAIN flag.
    """

    kind: int
    body: bytes = b""
    topic: bytes = b""
    qos: int = 0
    packet_id: int = 0
    is_retained: bool = False


def _text(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


def _packet(head: int, body: bytes) -> bytes:
    return bytes((head,)) + varint(len(body)) + body


def connect(
    client_id: str,
    level: int,
    username: bytes | None = None,
    password: bytes | None = None,
    *,
    keep_alive_s: int = 60,
    receive_max: int | None = None,
) -> bytes:
    """Return the CONNECT of a session that leaves no state: clean, without a will."""
    flags = 0x02 | (0x80 if username is not None else 0) | (0x40 if password is not None else 0)
    head = b"\x00\x04MQTT" + bytes((level, flags)) + keep_alive_s.to_bytes(2, "big")
    if level == MQTT_5:
        properties = b"" if receive_max is None else b"\x21" + receive_max.to_bytes(2, "big")
        head += varint(len(properties)) + properties
    login = b"".join(len(raw).to_bytes(2, "big") + raw for raw in (username, password) if raw is not None)
    return _packet(0x10, head + _text(client_id) + login)


def subscribe(packet_id: int, filters: Iterable[str], qos: int, level: int) -> bytes:
    """Return a SUBSCRIBE for all filters at one QoS."""
    head = packet_id.to_bytes(2, "big") + (b"\0" if level == MQTT_5 else b"")
    return _packet(0x82, head + b"".join(_text(one) + bytes((qos,)) for one in filters))


def puback(packet_id: int) -> bytes:
    """Return the PUBACK that accepts a publication."""
    return b"\x40\x02" + packet_id.to_bytes(2, "big")


def connack_code(body: bytes) -> int:
    """Return the reason code (or return code) of a CONNACK.

    Raises:
        Refusal: it has none.
    """
    if len(body) < 2:
        raise malformed(f"a CONNACK has {len(body)} bytes behind its header; at least 2 were expected")
    return body[1]


def suback_codes(body: bytes, level: int) -> bytes:
    """Return the reason codes of a SUBACK, one per filter.

    Raises:
        Refusal: it is malformed.
    """
    if len(body) < 3:
        raise malformed(f"a SUBACK has {len(body)} bytes behind its header; at least 3 were expected")
    at = 2
    if level == MQTT_5:
        length, at = read_varint(body, 2, len(body))
        at += length
        if at > len(body):
            raise malformed("the properties of a SUBACK go beyond it")
    return body[at:]


class Reader:
    """Splits the bytes of a broker, or of a client, into packets.

    Args:
        first: the type that the first packet must have; None for any.
        wanted_bytes_max: a publication of at most this is handed out whole. Payloads of larger ones are skipped.
    """

    __slots__ = ("_first", "_have", "_skip", "_wanted_bytes_max", "refusal")

    def __init__(self, first: int | None = CONNACK, wanted_bytes_max: int = 0) -> None:
        # Set when the rest of the stream cannot be read.
        self.refusal: Refusal | None = None
        self._have = b""
        self._first = first
        self._wanted_bytes_max = wanted_bytes_max
        self._skip = 0

    @property
    def waiting_bytes(self) -> int:
        """Return the number of kept bytes of an incomplete packet."""
        return len(self._have)

    def feed(self, data: bytes) -> list[Packet]:
        """Take one read; return the packets whose kept part is complete.

        Packets before a fault are returned, and `refusal` is set. Afterwards nothing more is read.
        """
        found: list[Packet] = []
        if self.refusal is None and data:
            try:
                self._feed(data, found)
            except Refusal as refusal:
                self.refusal = refusal
                self._have = b""
        return found

    def _feed(self, data: bytes, found: list[Packet]) -> None:
        if self._first is not None:
            expected, self._first = self._first << 4, None
            if data[0] != expected:
                raise protocol_error(f"the first byte is {data[0]:#04x}; {expected:#04x} was expected")
        if self._skip:
            if self._skip >= len(data):
                self._skip -= len(data)
                return
            data = data[self._skip :]
            self._skip = 0
        have = self._have + data if self._have else data
        at, size = 0, len(have)
        while size - at >= 2:
            if size - at < 5 and all(byte > 127 for byte in have[at + 1 : size]):
                break  # the header goes on in the next read
            length, body = read_varint(have, at + 1, min(size, at + 5))
            end = body + length
            kind = have[at] >> 4
            if kind == PUBLISH:
                if end > size and length <= self._wanted_bytes_max:
                    break
                packet = _publication(have, at, body, min(end, size), end)
                if packet is None:
                    break
                if length <= self._wanted_bytes_max:
                    behind = body + 2 + len(packet.topic) + (2 if packet.qos else 0)
                    packet = packet._replace(body=have[behind:end])
                found.append(packet)
                if end > size:
                    self._skip = end - size
                    end = size
            else:
                _check_header(have[at], length)
                if end > size:
                    break
                found.append(Packet(kind, have[body:end]))
            at = end
        self._have = have[at:]


def _check_header(head: int, length: int) -> None:
    """Check the fixed header of any packet but PUBLISH."""
    kind = head >> 4
    if head & 0x0F != (2 if kind in _WITH_FLAG else 0):
        raise malformed(f"a packet of type {kind} has the flags {head & 0x0F:#x}, which MQTT forbids")
    if length > OTHER_BYTES_MAX:
        raise Refusal(
            PACKET_TOO_LARGE, f"a packet of type {kind} has {length} bytes; at most {OTHER_BYTES_MAX} are taken"
        )


def _publication(have: bytes, at: int, body: int, here: int, end: int) -> Packet | None:
    """Return the topic of a publication; None if it is incomplete. `here` is the end of the received bytes."""
    qos = have[at] >> 1 & 3
    need = body + 2
    if need <= here:
        need += (have[body] << 8 | have[body + 1]) + (2 if qos else 0)
    if need > end or qos == 3:
        raise malformed("a publication ends within its topic, or has QoS 3")
    if need > here:
        return None
    stop = check_text(have, body, here)
    packet_id = have[stop] << 8 | have[stop + 1] if qos else 0
    return Packet(PUBLISH, b"", have[body + 2 : stop], qos, packet_id, bool(have[at] & 1))
