"""Publications of a simulation: real MQTT 5 PUBLISH packets whose payload says which message they are.

The reader is written independently of the protocol's own, because a check must not share code with what it checks.
"""

import struct
from collections.abc import Iterator

from hanse.errors import RemoteError

_NUMBER = struct.Struct(">Q")


def publish_packet(topic: str, qos: int, number: int, text: bytes = b"") -> bytes:
    """Return a PUBLISH packet whose payload is the message's number and some text (MQTT 5, section 3.3)."""
    name = topic.encode()
    identifier = b"\0\0" if qos else b""
    rest = struct.pack(">H", len(name)) + name + identifier + b"\0" + _NUMBER.pack(number) + text
    return bytes((0x30 | qos << 1,)) + _length(len(rest)) + rest


def read_packets(body: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Yield the packets of a body as `(number, topic, packet)`.

    Raises:
        RemoteError: The body is not a sequence of whole PUBLISH packets.
    """
    start = 0
    while start < len(body):
        if body[start] >> 4 != 3:
            raise RemoteError(f"A body holds packet type {body[start] >> 4} at byte {start}; expected PUBLISH.")
        size, shift, place = 0, 0, start + 1
        while True:
            if place >= len(body) or shift > 21:
                raise RemoteError(f"A body holds a broken remaining length at byte {start + 1}.")
            size |= (body[place] & 0x7F) << shift
            shift += 7
            place += 1
            if not body[place - 1] & 0x80:
                break
        end = place + size
        topic_end = place + 2 + int.from_bytes(body[place : place + 2], "big")
        payload = topic_end + (2 if body[start] & 0x06 else 0) + 1
        if end > len(body) or payload + _NUMBER.size > end:
            raise RemoteError(f"A body ends inside the packet at byte {start}; expected whole packets.")
        yield _NUMBER.unpack_from(body, payload)[0], body[place + 2 : topic_end].decode(), body[start:end]
        start = end


def _length(size: int) -> bytes:
    """Encode a remaining length: seven bits per byte, the lowest first (MQTT 5, section 1.5.5)."""
    found = bytearray()
    while True:
        size, low = divmod(size, 128)
        found.append(low | (0x80 if size else 0))
        if not size:
            return bytes(found)


def retained_packet(topic: str, text: str) -> bytes:
    """Return a PUBLISH packet of QoS 1 with RETAIN and this payload."""
    name, payload = topic.encode(), text.encode()
    body = len(name).to_bytes(2, "big") + name + b"\0\0\0" + payload
    assert len(body) < 128, "a short packet"
    return bytes((0x33, len(body))) + body
