"""Payload of the chaos workload: run, publisher, number, a checksum over them and the topic, and a filler.

The checksum includes the topic: a payload that arrives under another topic than its own counts as altered.
"""

import struct
import zlib
from typing import NamedTuple

# run, publisher, number
_HEAD = struct.Struct(">IHI")
_SUM = struct.Struct(">I")
PAYLOAD_BYTES_MIN = _HEAD.size + _SUM.size
# Number of a message that only tests whether the route is open.
PROBE = 0xFFFF_FFFF


class Stamp(NamedTuple):
    """Identity of a message."""

    run: int
    publisher: int
    number: int


def payload(stamp: Stamp, topic: bytes, size_bytes: int) -> bytes:
    """Return the payload of one message."""
    body = _HEAD.pack(*stamp) + b"." * (size_bytes - PAYLOAD_BYTES_MIN)
    return _SUM.pack(zlib.crc32(topic + body)) + body


def read(found: bytes, topic: bytes) -> Stamp | None:
    """Return the identity of a message; None if it is not of this workload, or was altered."""
    if len(found) < PAYLOAD_BYTES_MIN:
        return None
    body = found[_SUM.size :]
    if _SUM.unpack_from(found)[0] != zlib.crc32(topic + body):
        return None
    return Stamp(*_HEAD.unpack_from(body))
