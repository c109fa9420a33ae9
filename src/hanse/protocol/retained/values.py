"""Retained values as PUBLISH packets: their payload, and the packet with another RETAIN flag.

Only the payload counts for equality. A broker changes the message expiry while it holds a message, and a 3.1.1 broker
keeps no properties at all.
"""

from hashlib import blake2b

from hanse.errors import RemoteError
from hanse.protocol.packets import packet_end

RETAIN = 0x01
# Digest of "no value": a deletion, or a topic without a retained message.
ABSENT = 0


def payload_of(packet: bytes) -> bytes:
    """Return the payload of one canonical packet."""
    at, end = packet_end(packet, 0)
    at += 2 + int.from_bytes(packet[at : at + 2], "big")
    if packet[0] & 0x06:
        at += 2
    size = shift = 0
    while True:
        if at >= end:
            raise RemoteError("A retained publication ends before its payload; it is malformed.")
        byte = packet[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if at + size > end:
        raise RemoteError("A retained publication has properties beyond its end; it is malformed.")
    return packet[at + size : end]


def digest_of(packet: bytes) -> int:
    """Return the digest of a value for the book; `ABSENT` for a deletion, also for empty bytes."""
    payload = payload_of(packet) if packet else b""
    if not payload:
        return ABSENT
    # 63 bits, the capacity of a varint of nine bytes.
    return int.from_bytes(blake2b(payload, digest_size=8).digest(), "big") >> 1 or 1


def with_retain(packet: bytes, *, is_set: bool) -> bytes:
    """Return a packet with or without RETAIN."""
    first = packet[0] | RETAIN if is_set else packet[0] & ~RETAIN
    return packet if first == packet[0] else bytes((first,)) + packet[1:]


def clearing(topic: str) -> bytes:
    """Return the packet that deletes a retained message: QoS 1, no properties, no payload."""
    name = topic.encode()
    length = len(name) + 5
    out = bytearray((0x32 | RETAIN,))
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out) + len(name).to_bytes(2, "big") + name + b"\0\0\0"
