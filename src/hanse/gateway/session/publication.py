"""Reading and writing PUBLISH at the gateway."""

from typing import Final, NamedTuple

from hanse.mqtt.properties import SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS, read_varint, varint, walk
from hanse.mqtt.refusal import TOPIC_ALIAS_INVALID, Refusal, malformed, protocol_error

_WILL_DELAY: Final = 0x18


class Publication(NamedTuple):
    """One whole PUBLISH."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    packet_id: int
    properties: bytes


def body_of(data: bytes, start: int) -> int:
    """Return where the body of a packet begins. Its fixed header is complete."""
    i = start + 1
    while data[i] > 127:
        i += 1
    return i + 1


def read_publish(packet: bytes, version: int) -> Publication:
    """Read one whole PUBLISH.

    Raises:
        Refusal: it is malformed.
    """
    end = len(packet)
    i = body_of(packet, 0)
    stop = i + 2 + (packet[i] << 8 | packet[i + 1]) if i + 2 <= end else end + 1
    qos = packet[0] >> 1 & 3
    after = stop + 2 if qos else stop
    if after > end or qos == 3:
        raise malformed("a PUBLISH ends before its payload, or has QoS 3")
    packet_id = packet[stop] << 8 | packet[stop + 1] if qos else 0
    properties = b""
    if version == 5:
        length, first = read_varint(packet, after, end)
        after = first + length
        if after > end:
            raise malformed("the properties of a PUBLISH go beyond its end")
        properties = packet[first:after]
    return Publication(packet[i + 2 : stop], packet[after:], qos, packet[0] & 1 == 1, packet_id, properties)


def write_publish(
    version: int,
    topic: bytes,
    payload: bytes,
    qos: int,
    packet_id: int,
    properties: bytes = b"",
    *,
    retain: bool = False,
) -> bytes:
    """Return a PUBLISH packet."""
    parts = [len(topic).to_bytes(2, "big"), topic]
    if qos:
        parts.append(packet_id.to_bytes(2, "big"))
    if version == 5:
        parts += [varint(len(properties)), properties]
    parts.append(payload)
    return b"".join((bytes((0x30 | qos << 1 | retain,)), varint(sum(map(len, parts))), *parts))


def with_id(packet: bytes, packet_id: int) -> bytes:
    """Return a PUBLISH of QoS 1 or 2 with another packet identifier, and without DUP. Its end may be missing."""
    i = body_of(packet, 0)
    at = i + 2 + (packet[i] << 8 | packet[i + 1])
    return bytes((packet[0] & 0xF7,)) + packet[1:at] + packet_id.to_bytes(2, "big") + packet[at + 2 :]


def check_alias(data: bytes, start: int, end: int) -> None:
    """Refuse a topic alias, because the gateway promised that it accepts none.

    Raises:
        Refusal: there is one, or the properties are malformed.
    """
    length, first = read_varint(data, start, end)
    if first + length > end:
        raise malformed("the properties of a PUBLISH go beyond its end")
    for kind, _, _ in walk(data, first, first + length):
        if kind == TOPIC_ALIAS:
            raise Refusal(TOPIC_ALIAS_INVALID, "a PUBLISH has a topic alias; CONNACK allowed none")
        if kind == SUBSCRIPTION_IDENTIFIER:
            raise protocol_error("a client's PUBLISH has a subscription identifier")


def without(properties: bytes, kinds: frozenset[int]) -> bytes:
    """Return properties without those of these kinds."""
    if not properties:
        return properties
    return b"".join(
        properties[first:last] for kind, first, last in walk(properties, 0, len(properties)) if kind not in kinds
    )


def will_delay_of(properties: bytes) -> int:
    """Return the Will Delay Interval in seconds; 0 without one."""
    for kind, first, last in walk(properties, 0, len(properties)):
        if kind == _WILL_DELAY:
            return int.from_bytes(properties[first + 1 : last], "big")
    return 0


def identifiers(numbers: list[int]) -> bytes:
    """Return subscription identifiers as properties."""
    return b"".join(bytes((SUBSCRIPTION_IDENTIFIER,)) + varint(one) for one in numbers)
