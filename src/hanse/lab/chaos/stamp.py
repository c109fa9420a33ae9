"""A payload of the chaos workload: run, publisher, number, a check sum over them and the topic, and a filler.

The topic is in the sum: a payload that comes on another topic than its own is altered as well.
"""

import struct
import zlib
from typing import NamedTuple

# run, publisher, number
_HEAD = struct.Struct(">IHI")
_SUM = struct.Struct(">I")
PAYLOAD_BYTES_MIN = _HEAD.size + _SUM.size
# The number of a message that only asks whether the way is open.
PROBE = 0xFFFF_FFFF


class Stamp(NamedTuple):
    """Which message a payload is."""

    run: int
    publisher: int
    number: int


def payload(stamp: Stamp, topic: bytes, size_bytes: int) -> bytes:
    """The bytes of one message."""
    body = _HEAD.pack(*stamp) + b"." * (size_bytes - PAYLOAD_BYTES_MIN)
    return _SUM.pack(zlib.crc32(topic + body)) + body


def read(found: bytes, topic: bytes) -> Stamp | None:
    """Whose message it is; None for what is not of this workload, or not as it was sent."""
    if len(found) < PAYLOAD_BYTES_MIN:
        return None
    body = found[_SUM.size :]
    if _SUM.unpack_from(found)[0] != zlib.crc32(topic + body):
        return None
    return Stamp(*_HEAD.unpack_from(body))
