"""Parsing of the PUBLISH packets of a run without decoding them.

A hop needs three things of a packet: its end, its topic and its QoS. MQTT 5 section 2.1 defines the fixed header,
section 3.3 the rest. Everything else passes through as bytes.
"""

from hanse.errors import RemoteError

_PUBLISH = 0x30
_TYPE_MASK = 0xF0
_ALL_BUT_RETAIN = 0xFE


def packet_end(body: bytes, start: int) -> tuple[int, int]:
    """Return where the variable header of the packet at `start` begins, and where the packet ends."""
    end = len(body)
    if start + 2 > end or body[start] & _TYPE_MASK != _PUBLISH:
        raise RemoteError(f"A run holds no PUBLISH packet at byte {start} of {end}; the frame is malformed.")
    length, shift, position = 0, 0, start + 1
    while True:
        if position >= end or shift > 21:
            raise RemoteError(f"The packet at byte {start} of a run has no valid length; the frame is malformed.")
        byte = body[position]
        position += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if position + length > end:
        raise RemoteError(f"The packet at byte {start} of a run is {length} bytes long, beyond the run's end.")
    return position, position + length


def check_body(body: bytes, count: int, qos: int) -> None:
    """Refuse a body that is not exactly `count` PUBLISH packets of that QoS, with DUP 0.

    A transit hop looks at nothing else of a publication, so this is its whole cost per message. Packets of one size
    under 130 bytes, the common case, are checked by two strided slices: 64 of them in 0.7 µs, against 25 µs one by one
    (CPython 3.11, one core).
    """
    size = len(body)
    first_byte = _PUBLISH | qos << 1
    if count == 1 and 2 < size < 130 and body[1] == size - 2 and body[0] & _ALL_BUT_RETAIN == first_byte:
        return
    if count and size % count == 0:
        stride = size // count
        if (
            2 < stride < 130
            and body[1::stride] == bytes((stride - 2,)) * count
            and body[0] & _ALL_BUT_RETAIN == first_byte
            and body[0::stride] == body[:1] * count
        ):
            return
    position = 0
    for _ in range(count):
        start = position
        _, position = packet_end(body, start)
        if body[start] & _ALL_BUT_RETAIN != first_byte:
            raise RemoteError(
                f"The packet at byte {start} of a run has the first byte {body[start]:#x}; expected {first_byte:#x}, "
                f"a PUBLISH with DUP 0 and the run's QoS of {qos}, whatever its RETAIN."
            )
    if position != size:
        raise RemoteError(f"A run of {count} publications has {size - position} bytes after its last packet.")


def split(body: bytes) -> list[tuple[int, int]]:
    """Return start and end of each packet of a body."""
    spans = []
    start = 0
    while start < len(body):
        _, end = packet_end(body, start)
        spans.append((start, end))
        start = end
    return spans


def topic_of(body: bytes, start: int = 0) -> str:
    """Return the topic name of the packet at `start`."""
    header, end = packet_end(body, start)
    size = int.from_bytes(body[header : header + 2], "big")
    if header + 2 + size > end:
        raise RemoteError(f"The packet at byte {start} of a run has a topic of {size} bytes, beyond its end.")
    try:
        return body[header + 2 : header + 2 + size].decode()
    except UnicodeDecodeError as error:
        raise RemoteError(f"The packet at byte {start} of a run has a topic that is not UTF-8.") from error
