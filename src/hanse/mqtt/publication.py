"""PUBLISH packets as bytes: the payload of the federation, and the operations at its edges.

*Canonical* means: DUP 0, packet identifier 0 if QoS > 0, no subscription identifier, no topic alias. Everything else is
unchanged, with the properties in their order. A *run* is a sequence of canonical packets. A transit hop passes a run on
untouched. The last hop writes it unchanged (QoS 0) or with packet identifiers patched in (QoS 1 and 2).

Rules: a reader never looks beyond the end of the packet. Bytes that MQTT forbids raise a `Refusal`. Functions that take
canonical bytes trust them, because only `Reader` and `encode` make them.

Figures are from `bench/bench_mqtt.py` on the project's two-core machine, with payloads of 64 bytes.
"""

from array import array
from collections.abc import Sequence
from sys import byteorder
from typing import Final, NamedTuple

from mqtt5 import PublishPacket, QoS

from hanse.errors import LocalError
from hanse.mqtt.framing import ROW_MIN, Row, row_of
from hanse.mqtt.limits import PROPERTIES_MAX, REMEMBERED_BYTES_MAX, REMEMBERED_MAX
from hanse.mqtt.properties import (
    EXPIRY,
    OF_PUBLISH,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    read_varint,
    varint,
    walk,
)
from hanse.mqtt.refusal import TOPIC_ALIAS_INVALID, TOPIC_NAME_INVALID, Refusal, malformed, protocol_error

PUBLISH: Final = 0x30
DUP: Final = 0x08
RETAIN: Final = 0x01

# The two bytes in front of a packet shorter than 130 bytes, by the first byte's low half and remaining length.
HEADS: Final = [[bytes((PUBLISH | low, length)) for length in range(128)] for low in range(16)]
_NO_IDS: Final[tuple[int, ...]] = ()
# Code points that MQTT 5 (1.5.4) says should not be sent, and on which Mosquitto closes the connection.
_UNPORTABLE: Final = frozenset([*range(0x01, 0x20), *range(0x7F, 0xA0), 0xFFFE, 0xFFFF])


class Publication(NamedTuple):
    """One received PUBLISH: its canonical packet, and the fields that the receiver parsed anyway."""

    packet: bytes
    topic: str
    qos: int
    retain: bool
    dup: bool
    # Argument for `ack`: 0 at QoS 0, otherwise the packet identifier in the low 16 bits and the session's number above.
    receipt: int
    subscription_ids: tuple[int, ...]

    @property
    def packet_id(self) -> int:
        """Packet identifier under which the peer would send it again."""
        return self.receipt & 0xFFFF

    @property
    def payload(self) -> bytes:
        """Payload, copied on each access."""
        return payload_of(self.packet)


new_publication: Final = tuple.__new__  # Publication(...) goes through keyword handling: 0.28 us instead of 0.12 us


class Reader:
    """Parser of one peer's publications. It holds the peer's topic aliases, and caches topics and short properties.

    Args:
        alias_max: Topic Alias Maximum that we announced to the peer; 0 means it may use none.
        properties_max: a PUBLISH with more properties raises QUOTA_EXCEEDED, which drops the PUBLISH, not the peer.
        is_canonical: whether the runs come from a neighbour, so a packet that is not canonical is malformed. Such bytes
            must be parsed once before they are written to a broker, which would close our session for a bad packet.
    """

    __slots__ = ("_alias_max", "_aliases", "_fronts", "_is_canonical", "_properties", "_properties_max", "_topics")

    def __init__(self, *, alias_max: int = 0, properties_max: int = PROPERTIES_MAX, is_canonical: bool = False) -> None:
        self._is_canonical = is_canonical
        self._alias_max = alias_max
        self._aliases: dict[int, bytes] = {}
        self._properties_max = properties_max
        self._topics: dict[bytes, str] = {}
        # Properties that are only subscription identifiers, behind their length: maps to kept bytes, identifiers, bytes
        # saved.
        self._properties: dict[bytes, tuple[bytes, tuple[int, ...], int]] = {}
        # Topic and such properties together at QoS 0, where nothing stands between them: maps to the canonical bytes,
        # the topic, the identifiers, and bytes saved.
        self._fronts: dict[bytes, tuple[bytes, str, tuple[int, ...], int]] = {}

    def forget_aliases(self) -> None:
        """Forget the aliases, which last as long as a network connection (section 3.3.2.3.4)."""
        self._aliases.clear()

    def read_from(
        self,
        data: bytes,
        offsets: Sequence[tuple[int, int]],
        first: int,
        receipt_base: int,
        into: list[Publication],
    ) -> int:
        """Read PUBLISH packets from `offsets[first]` on, up to the first that is not ordinary; return its index.

        An ordinary packet has a topic and properties seen before, and only subscription identifiers as properties. Such
        a packet costs 0.7 us at QoS 0 and 1.0 us at QoS 1, of which 0.2 us are the tuple and the list. The codec's
        decode alone costs 0.4 us, and its result is not canonical yet.
        """
        if len(offsets) - first >= ROW_MIN:
            first += self._read_row(data, offsets, first, receipt_base, into)
        fronts = self._fronts
        topics = self._topics
        properties = self._properties
        append = into.append
        zero = self._is_canonical
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
            if head & 0xF8 != PUBLISH or size < 4 or data[i]:
                return k
            stop = i + 2 + data[i + 1]
            low = head & 0x07
            if low < 2:
                if stop >= end or (body := stop + 1 + data[stop]) > end:
                    return k
                front = fronts.get(data[i:body])
                if front is None:
                    return k
                size -= front[3]
                lead = HEADS[low][size] if size < 128 else long_head(low, size)
                packet = lead + front[0] + data[body:end]
                append(new_publication(Publication, (packet, front[1], 0, low == 1, False, 0, front[2])))
            else:
                at = stop + 2
                if at >= end or (body := at + 1 + data[at]) > end:
                    return k
                name = data[i:stop]
                known = properties.get(data[at:body])
                topic = topics.get(name)
                receipt = data[stop] << 8 | data[stop + 1]
                if known is None or topic is None or low > 5 or (receipt == 0) is not zero:
                    return k
                size -= known[2]
                lead = HEADS[low][size] if size < 128 else long_head(low, size)
                packet = lead + name + b"\0\0\0" + data[body:end]
                receipt = receipt and receipt_base + receipt
                append(new_publication(Publication, (packet, topic, low >> 1, low & 1 == 1, False, receipt, known[1])))
        return len(offsets)

    def _read_row(
        self,
        data: bytes,
        offsets: Sequence[tuple[int, int]],
        first: int,
        receipt_base: int,
        into: list[Publication],
    ) -> int:
        """Read packets that differ only in payload and packet identifier, up to the last of `offsets`.

        Return how many those are: all or none. Each byte of the common part is compared in one call for all packets, so
        a packet costs 0.3 us at QoS 0 and 0.4 us at QoS 1.
        """
        count = len(offsets) - first
        if self._is_canonical:
            return 0
        start, end = offsets[first]
        stop = offsets[-1][1]
        stride = end - start
        if stop - start != count * stride or stride >= 130 or stride < 6 or data[start + 2]:
            return 0
        head = data[start]
        low = head & 0x07
        if head & 0xF8 != PUBLISH or low > 5:
            return 0
        at = 4 + data[start + 3]  # of the packet identifier, or of the properties at QoS 0
        properties_at = at + 2 if low > 1 else at
        if properties_at >= stride or (body := properties_at + 1 + data[start + properties_at]) > stride:
            return 0
        name = data[start + 2 : start + at]
        topic = self._topics.get(name)
        known = self._properties.get(data[start + properties_at : start + body])
        if topic is None or known is None:
            return 0
        for column in (*range(at), *range(properties_at, body)):
            if data[start + column : stop : stride] != data[start + column : start + column + 1] * count:
                return 0
        qos = low >> 1
        retain = low & 1 == 1
        ids = known[1]
        rest = stride - body
        lead = HEADS[low][stride - 2 - known[2]] + name + (b"\0\0\0" if qos else b"\0")
        places = range(start + body, stop + 1, stride)
        if not qos:
            into += [
                new_publication(Publication, (lead + data[i : i + rest], topic, 0, retain, False, 0, ids))
                for i in places
            ]
            return count
        packet_ids = zip(data[start + at : stop : stride], data[start + at + 1 : stop : stride], strict=True)
        receipts = [receipt_base + (high << 8 | below) for high, below in packet_ids]
        if receipt_base in receipts:  # packet identifier 0
            return 0
        into += [
            new_publication(Publication, (lead + data[i : i + rest], topic, qos, retain, False, receipt, ids))
            for i, receipt in zip(places, receipts, strict=True)
        ]
        return count

    def read(self, data: bytes, start: int, end: int, receipt_base: int = 0) -> Publication:
        """Return any PUBLISH between `start` and `end`.

        Raises:
            Refusal: MQTT forbids it. Only QUOTA_EXCEEDED means: drop this one, acknowledge it, go on.
        """
        head = data[start]
        qos = head >> 1 & 3
        i = start + 1
        while data[i] >= 128:
            i += 1
        i += 1
        stop = i + 2 + (data[i] << 8 | data[i + 1]) if i + 2 <= end else end
        at = stop + 2 if qos else stop
        if at >= end:
            raise malformed("a PUBLISH ends before its properties")
        receipt = 0
        if qos:
            receipt = data[stop] << 8 | data[stop + 1]
            if qos == 3 or (receipt == 0) is not self._is_canonical or (self._is_canonical and head & DUP):
                raise malformed(
                    f"a PUBLISH has QoS {qos} and packet identifier {receipt}; expected 1 or 2 and 1 to 65535"
                )
            receipt = receipt and receipt + receipt_base
        elif head & DUP:
            raise malformed("a PUBLISH has DUP set at QoS 0")
        name = data[i:stop]
        kept, ids, alias, body = self._walk(data, at, end)
        if alias or len(name) == 2:
            name = self._alias(alias, name)
        topic = self._topics.get(name) or self._learn(name)
        if not qos and not alias and len(kept) == 1 and body - i <= REMEMBERED_BYTES_MAX:
            if len(self._fronts) >= REMEMBERED_MAX:
                self._fronts.clear()
            self._fronts[data[i:body]] = (name + kept, topic, ids, body - i - len(name) - 1)
        size = len(name) + (2 if qos else 0) + len(kept) + end - body
        front = bytes((PUBLISH | head & 0x07,)) + varint(size)
        packet = b"".join((front, name, b"\0\0" if qos else b"", kept, data[body:end]))
        return new_publication(Publication, (packet, topic, qos, head & 1 == 1, head & 8 == 8, receipt, ids))

    def read_run(self, run: bytes) -> list[Publication]:
        """Return all packets of a run, each checked; 1.1 us per ordinary packet.

        Raises:
            Refusal: the run, or a packet in it, is not canonical. Use nothing of it.
        """
        offsets = split(run)
        found: list[Publication] = []
        k = self.read_from(run, offsets, 0, 0, found)
        while k < len(offsets):
            found.append(self.read(run, *offsets[k]))
            k = self.read_from(run, offsets, k + 1, 0, found)
        return found

    def _learn(self, name: bytes) -> str:
        text = name[2:]
        try:
            topic = text.decode()
        except UnicodeDecodeError as error:
            raise malformed(f"a topic is not UTF-8: {error.reason} at byte {error.start}") from None
        check_name(topic)
        if len(name) <= REMEMBERED_BYTES_MAX:
            if len(self._topics) >= REMEMBERED_MAX:
                self._topics.clear()
            self._topics[name] = topic
        return topic

    def _walk(self, data: bytes, at: int, end: int) -> tuple[bytes, tuple[int, ...], int, int]:
        """Parse properties in full: return the kept ones (with length), identifiers, alias, and payload start."""
        length, start = read_varint(data, at, end)
        stop = start + length
        if stop > end:
            raise malformed("a PUBLISH ends before its properties do")
        kept: list[bytes] = []
        ids: list[int] = []
        alias = 0
        for identifier, first, last in walk(data, start, stop, allowed=OF_PUBLISH, properties_max=self._properties_max):
            if identifier == SUBSCRIPTION_IDENTIFIER:
                number, _ = read_varint(data, first + 1, last)
                if not number:
                    raise protocol_error("a subscription identifier is 0")
                if self._is_canonical:
                    raise malformed("a packet of a run has a subscription identifier")
                ids.append(number)
            elif identifier == TOPIC_ALIAS:
                alias = data[first + 1] << 8 | data[first + 2]
                if not 0 < alias <= self._alias_max:
                    raise Refusal(TOPIC_ALIAS_INVALID, f"topic alias {alias} is not within 1 to {self._alias_max}")
            else:
                kept.append(data[first:last])
        if kept:
            body = b"".join(kept)
            return varint(len(body)) + body, tuple(ids), alias, stop
        # Only identifiers repeat from packet to packet. Expiry counts down, and correlation data is always new.
        if not alias and length <= 16:
            if len(self._properties) >= REMEMBERED_MAX:
                self._properties.clear()
            self._properties[data[at:stop]] = (b"\0", tuple(ids), length)
        return b"\0", tuple(ids), alias, stop

    def _alias(self, alias: int, name: bytes) -> bytes:
        if not alias:
            raise protocol_error("a PUBLISH has neither a topic nor a topic alias")
        if len(name) > 2:
            self._learn(name)
            self._aliases[alias] = name
            return name
        known = self._aliases.get(alias)
        if known is None:
            raise protocol_error(f"topic alias {alias} was never set on this connection")
        return known


def long_head(low: int, size: int) -> bytes:
    """Return the bytes in front of a packet of 130 bytes or more: the first byte (low half given) and the length."""
    if size < 16_384:
        return bytes((PUBLISH | low, size & 0x7F | 0x80, size >> 7))
    return bytes((PUBLISH | low,)) + varint(size)


def check_name(topic: str) -> None:
    """Raise a Refusal for an invalid topic name (section 4.7): empty, with a wildcard, or with U+0000."""
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        what = "is empty" if not topic else "holds a wildcard (+ or #) or U+0000"
        raise Refusal(TOPIC_NAME_INVALID, f"a topic name of {len(topic)} characters {what}")


def is_portable(topic: str) -> bool:
    """Return whether every broker accepts the name. Some (Mosquitto) close the connection on control characters."""
    if topic.isascii() and topic.isprintable():
        return True
    return _UNPORTABLE.isdisjoint(map(ord, topic))


def canonical(packet: bytes) -> bytes:
    """Return the canonical form of a single PUBLISH without a topic alias. For streams, use a `Reader`."""
    return Reader().read(packet, 0, len(packet)).packet


def encode(
    topic: str,
    payload: bytes,
    *,
    qos: int = 0,
    retain: bool = False,
    expiry_s: int | None = None,
    payload_format_indicator: int = 0,
    content_type: str | None = None,
    response_topic: str | None = None,
    correlation_data: bytes | None = None,
    user_properties: Sequence[tuple[str, str]] = (),
) -> bytes:
    """Return a canonical packet made of its parts."""
    try:
        name = topic.encode()
        check_name(topic)
        if len(name) > 65_535:
            raise LocalError(f"a topic has {len(name)} bytes; MQTT allows 65535.")
        packet = PublishPacket(
            topic,
            payload,
            qos=QoS(qos),
            retain=retain,
            packet_id=1 if qos else None,
            payload_format_indicator=payload_format_indicator,
            message_expiry_interval=expiry_s,
            content_type=content_type,
            response_topic=response_topic,
            correlation_data=correlation_data,
            user_properties=list(user_properties),
        ).write()
    except Refusal as refusal:
        raise LocalError(f"{refusal}; publish on a plain topic name.") from None
    except (ValueError, OverflowError, UnicodeEncodeError) as error:
        raise LocalError(f"this cannot be a PUBLISH packet: {error}; see MQTT 5, section 3.3.") from error
    if not qos:
        return packet
    at = _id_at(packet, 0)
    return packet[:at] + b"\0\0" + packet[at + 2 :]


def decode(packet: bytes) -> PublishPacket:
    """Return the parts of a canonical packet, by the codec: for edges that look at each message. Its packet_id is 0."""
    from mqtt5 import read  # noqa: PLC0415 - not needed where bytes are only passed on

    found, _ = read(memoryview(packet))
    assert isinstance(found, PublishPacket), "canonical bytes are a PUBLISH"
    return found


def split(run: bytes) -> Sequence[tuple[int, int]]:
    """Return start and end of each packet of a run: 0.15 us per packet.

    Raises:
        Refusal: the bytes are not a sequence of whole PUBLISH packets.
    """
    size = len(run)
    if (count := row_of(run)) and run[0] & 0xF0 == PUBLISH:
        stride = run[1] + 2
        if count * stride == size and run[0::stride] == run[:1] * count:
            return Row(count, stride)
    found: list[tuple[int, int]] = []
    append = found.append
    i = 0
    while i + 2 <= size:
        length = run[i + 1]
        if length < 128:
            end = i + 2 + length
        elif i + 2 < size and 0 < run[i + 2] < 128:
            end = i + 3 + (length & 0x7F | run[i + 2] << 7)
        else:
            length, body = read_varint(run, i + 1, size)
            end = body + length
        if run[i] & 0xF0 != PUBLISH:
            raise malformed(f"a run holds a packet of type {run[i] >> 4}; PUBLISH (type 3) was expected")
        append((i, end))
        i = end
    if i != size:
        raise malformed(f"a run of {size} bytes ends within a packet")
    return found


def qos_of(run: bytes, start: int = 0) -> int:
    """Return the QoS of the packet at `start`."""
    return run[start] >> 1 & 3


def retain_of(run: bytes, start: int = 0) -> bool:
    """Return whether the packet at `start` has RETAIN set."""
    return run[start] & RETAIN == RETAIN


def topic_bytes_of(run: bytes, start: int = 0) -> bytes:
    """Return the topic as bytes, to look it up in a cache."""
    i = start + 1
    while run[i] >= 128:
        i += 1
    return run[i + 3 : i + 3 + (run[i + 1] << 8 | run[i + 2])]


def topic_of(run: bytes, start: int = 0) -> str:
    """Return the topic of the packet at `start`: 0.28 us."""
    return topic_bytes_of(run, start).decode()


def payload_of(packet: bytes) -> bytes:
    """Return the payload of one canonical packet."""
    at = _properties_at(packet)
    length, start = read_varint(packet, at, len(packet))
    return packet[start + length :]


def _id_at(run: bytes | bytearray, start: int) -> int:
    """Return the position of the packet identifier (QoS 1 and 2), or of the properties (QoS 0)."""
    i = start + 1
    while run[i] >= 128:
        i += 1
    return i + 3 + (run[i + 1] << 8 | run[i + 2])


def _properties_at(packet: bytes) -> int:
    return _id_at(packet, 0) + (2 if packet[0] & 0x06 else 0)


def _number_row(out: bytearray, run: bytes, offsets: Sequence[tuple[int, int]], first_id: int) -> bool:
    """Write the identifiers into packets that have them all at the same position: 0.05 us per packet."""
    count = len(offsets)
    if count < ROW_MIN or first_id + count > 0x10000 or not run[0] & 0x06:
        return False
    stride = offsets[0][1]
    if offsets[0][0] or stride >= 130 or len(run) != count * stride:
        return False
    for column in (0, 1, 2, 3):  # first byte, length, and the length of the topic
        if run[column::stride] != run[column : column + 1] * count:
            return False
    at = 4 + (run[2] << 8 | run[3])
    if at + 2 > stride:
        return False
    numbers = array("H", range(first_id, first_id + count))
    if byteorder == "little":
        numbers.byteswap()
    pairs = numbers.tobytes()
    out[at::stride] = pairs[0::2]
    out[at + 1 :: stride] = pairs[1::2]
    return True


def with_packet_ids(run: bytes, offsets: Sequence[tuple[int, int]], first_id: int, *, dup: bool = False) -> bytearray:
    """Return the run with identifiers `first_id`, `first_id + 1`, ... in packets of QoS 1 and 2: 0.24 us each."""
    out = bytearray(run)
    if not dup and _number_row(out, run, offsets, first_id):
        return out
    number = first_id
    for start, _ in offsets:
        head = run[start]
        if not head & 0x06:
            continue
        i = start + 1
        while run[i] >= 128:
            i += 1
        i += 3 + (run[i + 1] << 8 | run[i + 2])
        out[i] = number >> 8
        out[i + 1] = number & 0xFF
        if dup:
            out[start] = head | DUP
        number += 1
    return out


def with_qos(packet: bytes, qos: int) -> bytes:
    """Return one canonical packet at another QoS, for a broker that grants less."""
    if packet[0] >> 1 & 3 == qos:
        return packet
    at = _id_at(packet, 0)
    i = 1
    while packet[i] >= 128:
        i += 1
    rest = packet[_properties_at(packet) :]
    body = packet[i + 1 : at] + (b"\0\0" if qos else b"") + rest
    return bytes((packet[0] & 0xF9 | qos << 1,)) + varint(len(body)) + body


def without_retain(packet: bytes) -> bytes:
    """Return one canonical packet with RETAIN 0, for a broker that retains nothing."""
    return bytes((packet[0] & 0xFE,)) + packet[1:]


def expiry_s(packet: bytes) -> int | None:
    """Return the Message Expiry Interval of one canonical packet, in seconds."""
    at = _properties_at(packet)
    if packet[at] == 0:
        return None
    length, start = read_varint(packet, at, len(packet))
    # Most packets with an expiry have it as the first or only property.
    if packet[start] == EXPIRY:
        return int.from_bytes(packet[start + 1 : start + 5])
    for identifier, first, last in walk(packet, start, start + length):
        if identifier == EXPIRY:
            return int.from_bytes(packet[first + 1 : last])
    return None


def with_expiry(packet: bytes, seconds: int | None) -> bytes:
    """Return one canonical packet with another Message Expiry Interval, or (None) without one."""
    if seconds is not None and not 0 <= seconds <= 0xFFFFFFFF:
        raise LocalError(f"an expiry of {seconds} s was asked for; MQTT holds 0 to 4294967295.")
    at = _properties_at(packet)
    length, start = read_varint(packet, at, len(packet))
    stop = start + length
    first = last = stop  # without one, the new one goes to the end
    for identifier, begin, end in walk(packet, start, stop) if length else ():
        if identifier == EXPIRY:
            first, last = begin, end
            break
    new = b"" if seconds is None else bytes((EXPIRY,)) + seconds.to_bytes(4)
    if len(new) == last - first:
        return packet[:first] + new + packet[last:]
    properties = packet[start:first] + new + packet[last:stop]
    i = 1
    while packet[i] >= 128:
        i += 1
    body = packet[i + 1 : at] + varint(len(properties)) + properties + packet[stop:]
    return packet[:1] + varint(len(body)) + body
