"""The properties of MQTT 5 (section 2.2.2) as a table, and one function that walks over their bytes.

Rules: nothing is copied before its length is known to fit. Every string is checked to be UTF-8 here, because the codec
panics (and prints) on one that is not. At most `properties_max` properties are parsed.
"""

from typing import Final

from hanse.mqtt.limits import PROPERTIES_MAX
from hanse.mqtt.refusal import QUOTA_EXCEEDED, Refusal, malformed, protocol_error

BYTE: Final = 1
TWO_BYTES: Final = 2
FOUR_BYTES: Final = 4
VARINT: Final = 5
STRING: Final = 6
BINARY: Final = 7
PAIR: Final = 8

EXPIRY: Final = 0x02
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
TOPIC_ALIAS: Final = 0x23
USER_PROPERTY: Final = 0x26

KINDS: Final[dict[int, int]] = {
    0x01: BYTE,  # payload format indicator
    EXPIRY: FOUR_BYTES,
    0x03: STRING,  # content type
    0x08: STRING,  # response topic
    0x09: BINARY,  # correlation data
    SUBSCRIPTION_IDENTIFIER: VARINT,
    0x11: FOUR_BYTES,  # session expiry interval
    0x12: STRING,  # assigned client identifier
    0x13: TWO_BYTES,  # server keep alive
    0x15: STRING,  # authentication method
    0x16: BINARY,  # authentication data
    0x17: BYTE,  # request problem information
    0x18: FOUR_BYTES,  # will delay interval
    0x19: BYTE,  # request response information
    0x1A: STRING,  # response information
    0x1C: STRING,  # server reference
    0x1F: STRING,  # reason string
    0x21: TWO_BYTES,  # receive maximum
    0x22: TWO_BYTES,  # topic alias maximum
    TOPIC_ALIAS: TWO_BYTES,
    0x24: BYTE,  # maximum QoS
    0x25: BYTE,  # retain available
    USER_PROPERTY: PAIR,
    0x27: FOUR_BYTES,  # maximum packet size
    0x28: BYTE,  # wildcard subscription available
    0x29: BYTE,  # subscription identifier available
    0x2A: BYTE,  # shared subscription available
}

# Properties that a PUBLISH may carry (section 3.3.2.3).
OF_PUBLISH: Final = frozenset({0x01, EXPIRY, 0x03, 0x08, 0x09, SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS, USER_PROPERTY})
_REPEATABLE: Final = frozenset({SUBSCRIPTION_IDENTIFIER, USER_PROPERTY})


def read_varint(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the value of a variable byte integer, and its end (section 1.5.5)."""
    value = shift = 0
    for i in range(start, min(end, start + 4)):
        byte = data[i]
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if byte == 0 and shift:
                raise malformed("a variable byte integer is longer than necessary")
            return value, i + 1
        shift += 7
    if end - start >= 4:
        raise malformed("a variable byte integer has five bytes or more; MQTT 5 allows four")
    raise malformed("a variable byte integer goes beyond its packet")


def varint(value: int) -> bytes:
    """Return the shortest variable byte integer for a value that four bytes can hold."""
    if value < 128:
        return bytes((value,))
    if value < 16_384:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def check_text(data: bytes, start: int, end: int) -> int:
    """Check a UTF-8 string behind its length, and return its end (section 1.5.4)."""
    stop = start + 2
    if stop <= end:
        stop += data[start] << 8 | data[start + 1]
    if stop > end:
        raise malformed("a string goes beyond its packet")
    text = data[start + 2 : stop]
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise malformed(f"a string is not UTF-8: {error.reason} at byte {error.start}") from None
    if 0 in text:
        raise malformed("a string holds U+0000, which MQTT forbids")
    return stop


def _skip(data: bytes, kind: int, start: int, end: int) -> int:
    if kind <= FOUR_BYTES:
        stop = start + kind
    elif kind == STRING:
        return check_text(data, start, end)
    elif kind == PAIR:
        return check_text(data, check_text(data, start, end), end)
    elif kind == VARINT:
        return read_varint(data, start, end)[1]
    else:
        stop = start + 2
        if stop <= end:
            stop += data[start] << 8 | data[start + 1]
    if stop > end:
        raise malformed("a property goes beyond its packet")
    return stop


def walk(
    data: bytes,
    start: int,
    end: int,
    *,
    allowed: frozenset[int] | None = None,
    properties_max: int = PROPERTIES_MAX,
) -> list[tuple[int, int, int]]:
    """Yield each property between `start` and `end` as (identifier, start, end).

    Raises:
        Refusal: the properties are malformed, one is repeated that must not be, or (quota) there are too many.
    """
    found: list[tuple[int, int, int]] = []
    seen: set[int] = set()
    i = start
    while i < end:
        identifier = data[i]
        kind = KINDS.get(identifier)
        if kind is None or (allowed is not None and identifier not in allowed):
            raise malformed(f"a property with identifier {identifier:#04x} is not allowed in this packet")
        if identifier in seen:
            if identifier not in _REPEATABLE:
                raise protocol_error(f"the property {identifier:#04x} is present twice; MQTT allows it once")
        else:
            seen.add(identifier)
        stop = _skip(data, kind, i + 1, end)
        found.append((identifier, i, stop))
        if len(found) > properties_max:
            raise Refusal(QUOTA_EXCEEDED, f"a packet has more than {properties_max} properties")
        i = stop
    return found
