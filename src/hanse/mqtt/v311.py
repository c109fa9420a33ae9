"""MQTT 3.1.1 on the wire, MQTT 5 inside: translation for one connection, whole reads and whole writes at a time.

Everything behind the wire works on canonical MQTT 5 packets, so a session at an older broker differs only in its bytes.
`Reader311` reads PUBLISH packets directly into canonical form, `V311.decode` turns every other packet into the
equivalent MQTT 5 one, and `V311.outward` turns the packets that the session writes into 3.1.1.

Features of MQTT 5 that 3.1.1 lacks, and their treatment:

- Properties are removed on the way out and counted (`Counters.properties_lost`). None arrive.
- Reason codes are removed from acknowledgements. A refused PUBLISH is acknowledged, as 3.1.1 requires.
- UNSUBACK has no codes: the number of its filters is remembered from the UNSUBSCRIBE.
- Of the subscription options, only the QoS stays. No Local, Retain As Published, Retain Handling and identifiers are
  lost, and the caller must do without (`hanse.federator.older_host` does).
- Instead of the Receive Maximum, at most `V311_WINDOW` publications are in flight.

Rules: a reader never looks beyond the end of a packet. Bytes that 3.1.1 forbids raise a `Refusal`. Section numbers are
those of MQTT 3.1.1. Reading costs the same as reading MQTT 5, 0.9 us per publication with everything that the session
does, and a write 0.55 us more (`bench/bench_mqtt.py`). amqtt 0.12, the one maintained library whose codec is separate
from its client, takes 7 us to decode one.
"""

from collections.abc import Callable, Sequence
from typing import Final

import mqtt5
from mqtt5 import ConnAckReasonCode, SubAckReasonCode, UnsubAckReasonCode

from hanse.errors import LocalError
from hanse.mqtt import codec
from hanse.mqtt.counters import Counters
from hanse.mqtt.properties import read_varint, varint
from hanse.mqtt.publication import DUP, HEADS, PUBLISH, Publication, Reader, long_head, new_publication
from hanse.mqtt.refusal import malformed, protocol_error

LEVEL: Final = 4
DISCONNECT: Final = b"\xe0\x00"

# Return codes of CONNACK (3.2.2.3), translated to MQTT 5.
_CONNACK_CODES: Final = {0: 0x00, 1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}
_SUBACK_CODES: Final = frozenset({0, 1, 2, 0x80})

# Topic and payload of a publication that was just written.
Written = tuple[bytes, bytes]


def connect(
    client_id: str,
    *,
    clean_session: bool,
    keep_alive_s: int,
    username: str | None = None,
    password: str | None = None,
    will: mqtt5.Will | None = None,
) -> bytes:
    """Return a CONNECT packet (3.1).

    Raises:
        LocalError: 3.1.1 does not support such a session.
    """
    if password is not None and username is None:
        raise LocalError("a password is set and no user name, which MQTT 3.1.1 forbids; give both.")
    if not client_id and not clean_session:
        raise LocalError("a session that lasts needs a client id; MQTT 3.1.1 assigns none.")
    flags = 0x02 if clean_session else 0
    body = [_text(client_id)]
    if will is not None:
        flags |= 0x04 | int(will.qos) << 3 | (0x20 if will.retain else 0)
        body += [_text(will.topic), _binary(will.payload or b"")]
    if username is not None:
        flags |= 0x80
        body.append(_text(username))
    if password is not None:
        flags |= 0x40
        body.append(_binary(password.encode()))
    head = b"\x00\x04MQTT" + bytes((LEVEL, flags)) + keep_alive_s.to_bytes(2)
    return _packet(0x10, head + b"".join(body))


def _text(text: str) -> bytes:
    try:
        return _binary(text.encode())
    except UnicodeEncodeError as error:
        raise LocalError(f"a text of the session settings is not UTF-8: {error.reason}.") from None


def _binary(data: bytes) -> bytes:
    if len(data) > 65_535:
        raise LocalError(f"a field of the session settings has {len(data)} bytes; MQTT allows 65535.")
    return len(data).to_bytes(2) + data


def _packet(head: int, body: bytes) -> bytes:
    return bytes((head,)) + varint(len(body)) + body


def is_connack(packet: bytes) -> bool:
    """Return whether the packet is a CONNACK of 3.1.1, with which an older broker answers any CONNECT."""
    return len(packet) == 4 and packet[0] == 0x20 and packet[1] == 2


def connack(packet: bytes) -> mqtt5.ConnAckPacket:
    """Return a CONNACK packet (3.2), translated to MQTT 5.

    Raises:
        Refusal: 3.1.1 forbids it.
    """
    if not is_connack(packet) or packet[2] > 1 or packet[3] not in _CONNACK_CODES:
        raise malformed(f"a CONNACK of {len(packet)} bytes is not a CONNACK of MQTT 3.1.1")
    if packet[2] and packet[3]:
        raise malformed("a CONNACK refuses the session and says that it is present")
    return mqtt5.ConnAckPacket(
        session_present=packet[2] == 1,
        reason_code=ConnAckReasonCode(_CONNACK_CODES[packet[3]]),
        subscription_id_available=False,
        shared_subscription_available=False,
    )


class Reader311(Reader):
    """Parser of one older broker's PUBLISH packets, directly to canonical form. It caches topics, as `Reader` does."""

    __slots__ = ()

    def read_from(
        self,
        data: bytes,
        offsets: Sequence[tuple[int, int]],
        first: int,
        receipt_base: int,
        into: list[Publication],
    ) -> int:
        """Read PUBLISH packets from `offsets[first]` on, up to the first that is not ordinary; return its index.

        An ordinary packet has a topic of at most 255 bytes that was seen before, and no DUP.
        """
        topics = self._topics
        append = into.append
        for k in range(first, len(offsets)):
            start, end = offsets[k]
            head = data[start]
            size = data[start + 1]
            i = start + 2
            if size > 127:
                while data[i] > 127:
                    i += 1
                i += 1
                size = end - i
            if head & 0xF8 != PUBLISH or size < 3 or data[i]:
                return k
            stop = i + 2 + data[i + 1]
            low = head & 0x07
            name = data[i:stop]
            topic = topics.get(name)
            size += 1
            lead = HEADS[low][size] if size < 128 else long_head(low, size)
            if low < 2:
                if topic is None or stop > end:
                    return k
                packet = lead + name + b"\0" + data[stop:end]
                append(new_publication(Publication, (packet, topic, 0, low == 1, False, 0, ())))
            else:
                at = stop + 2
                if topic is None or at > end or low > 5:
                    return k
                receipt = data[stop] << 8 | data[stop + 1]
                if not receipt:
                    return k
                packet = lead + name + b"\0\0\0" + data[at:end]
                append(
                    new_publication(
                        Publication, (packet, topic, low >> 1, low & 1 == 1, False, receipt_base + receipt, ())
                    )
                )
        return len(offsets)

    def read(self, data: bytes, start: int, end: int, receipt_base: int = 0) -> Publication:
        """Return any PUBLISH between `start` and `end`.

        Raises:
            Refusal: MQTT 3.1.1 forbids it. Only TOPIC_NAME_INVALID means: drop this one, acknowledge it, go on.
                (RabbitMQ delivers `a*b` as `a+b`, and a broker would repeat it for ever.)
        """
        head = data[start]
        qos = head >> 1 & 3
        i = start + 1
        while data[i] >= 128:
            i += 1
        i += 1
        stop = i + 2 + (data[i] << 8 | data[i + 1]) if i + 2 <= end else end + 1
        at = stop + 2 if qos else stop
        if at > end:
            raise malformed("a PUBLISH ends before its payload")
        receipt = 0
        if qos:
            receipt = data[stop] << 8 | data[stop + 1]
            if qos == 3 or not receipt:
                raise malformed(
                    f"a PUBLISH has QoS {qos} and packet identifier {receipt}; expected 1 or 2 and 1 to 65535"
                )
            receipt += receipt_base
        elif head & DUP:
            raise malformed("a PUBLISH has DUP set at QoS 0")
        name = data[i:stop]
        topic = self._topics.get(name) or self._learn(name)
        size = end - i + 1
        front = bytes((PUBLISH | head & 0x07,)) + varint(size)
        packet = b"".join((front, name, b"\0\0\0" if qos else b"\0", data[at:end]))
        return new_publication(Publication, (packet, topic, qos, head & 1 == 1, head & 8 == 8, receipt, ()))


class V311:
    """Translation of one connection.

    Args:
        counters: counters of publications that lost properties.
        on_written: receives topic and payload of each outgoing publication, one list per write.
    """

    def __init__(self, counters: Counters, on_written: Callable[[list[Written]], None] | None = None) -> None:
        self.reader = Reader311()
        self._counters = counters
        self._on_written = on_written
        # Packet identifier of an UNSUBSCRIBE to the number of its filters. As many as may be under way.
        self._unsubscribing: dict[int, int] = {}

    def decode(self, packet: bytes) -> mqtt5.Packet:
        """Return one whole packet, except PUBLISH and CONNACK, as the equivalent MQTT 5 packet.

        Raises:
            Refusal: 3.1.1 forbids it, or a client does not receive it.
        """
        kind = packet[0] >> 4
        _, start = read_varint(packet, 1, len(packet))
        body = packet[start:]
        if packet[0] & 0x0F != (2 if kind == codec.PUBREL else 0):
            raise malformed(f"a packet of type {kind} has flags {packet[0] & 0x0F}")
        if kind == codec.PINGRESP and not body:
            return mqtt5.PingRespPacket()
        if kind not in {codec.SUBACK, codec.UNSUBACK, codec.PUBACK, codec.PUBREC, codec.PUBREL, codec.PUBCOMP}:
            raise protocol_error(f"a packet of type {kind} and {len(packet)} bytes is not allowed here")
        if len(body) < 2:
            raise malformed(f"a packet of type {kind} ends before its packet identifier")
        packet_id = body[0] << 8 | body[1]
        if not packet_id:
            raise protocol_error(f"a packet of type {kind} has packet identifier 0")
        if kind == codec.SUBACK:
            codes = body[2:]
            if not codes or not _SUBACK_CODES.issuperset(codes):
                raise malformed(f"a SUBACK of {len(codes)} codes has no code, or one that is not 0, 1, 2 or 0x80")
            return mqtt5.SubAckPacket(packet_id, [SubAckReasonCode(code) for code in codes])
        if len(body) > 2:
            raise malformed(f"a packet of type {kind} has {len(body) - 2} bytes too many")
        if kind != codec.UNSUBACK:
            # Only a remaining length in more bytes than necessary leads here, and the splitter refuses that.
            raise malformed(f"a packet of type {kind} has a length of {start - 1} bytes")
        count = self._unsubscribing.pop(packet_id, 0)
        if not count:
            raise protocol_error(f"UNSUBACK for packet identifier {packet_id}, which no UNSUBSCRIBE has")
        return mqtt5.UnsubAckPacket(packet_id, [UnsubAckReasonCode.SUCCESS] * count)

    def outward(self, data: bytes | bytearray) -> bytes:
        """Translate the packets of the session to 3.1.1: whole packets in, whole packets out."""
        data = bytes(data)
        out: list[bytes] = []
        written: list[Written] = []
        stripped = 0
        i = 0
        size = len(data)
        while i < size:
            head = data[i]
            length = data[i + 1]
            body = i + 2
            if length > 127:
                length, body = read_varint(data, i + 1, size)
            end = body + length
            kind = head & 0xF0
            if kind == PUBLISH:
                stop = body + 2 + (data[body] << 8 | data[body + 1])
                at = rest = stop + 2 if head & 0x06 else stop
                if data[at]:
                    count, rest = read_varint(data, at, end)
                    rest += count
                    stripped += 1
                else:
                    rest += 1
                length -= rest - at
                low = head & 0x0F
                payload = data[rest:end]
                out.append(HEADS[low][length] if length < 128 else long_head(low, length))
                out.append(data[body:at])
                out.append(payload)
                written.append((data[body + 2 : stop], payload))
            elif 0x40 <= kind <= 0x70:
                out.append(bytes((head, 2)) + data[body : body + 2])
            elif kind in {0x80, 0xA0}:
                out.append(self._filters(head, data[body:end]))
            else:
                out.append(data[i:end])
            i = end
        self._counters.properties_lost += stripped
        if written and self._on_written is not None:
            self._on_written(written)
        return b"".join(out)

    def _filters(self, head: int, body: bytes) -> bytes:
        """Return SUBSCRIBE or UNSUBSCRIBE without properties and options."""
        count, i = read_varint(body, 2, len(body))
        i += count
        is_subscribe = head & 0xF0 == 0x80
        pieces = [body[:2]]
        while i < len(body):
            stop = i + 2 + (body[i] << 8 | body[i + 1])
            pieces.append(body[i:stop])
            if is_subscribe:
                pieces.append(bytes((body[stop] & 0x03,)))
                stop += 1
            i = stop
        if not is_subscribe:
            self._unsubscribing[body[0] << 8 | body[1]] = len(pieces) - 1
        return _packet(head, b"".join(pieces))
