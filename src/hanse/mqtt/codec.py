"""Decoder of every packet except PUBLISH: the `mqtt5` codec, with a guard in front.

Rules:

- The codec raises `ValueError` on most bad input. On a string that is not UTF-8 it panics: it raises a `BaseException`
  and prints lines to stderr that nobody can switch off. This module therefore checks strings first.
- The codec lets packet identifier 0 pass. This module refuses it.
- Every exception of the codec becomes a `Refusal`.
- The codec's reason codes are not Python enumerations, although its stubs say so: they have no order and no hash, and 0
  is true. Compare them as `int(code)`.
"""

from typing import Final

import mqtt5

from hanse.mqtt.properties import check_text, read_varint, walk
from hanse.mqtt.refusal import UNSUPPORTED_VERSION, Refusal, malformed, protocol_error

CONNECT: Final = 1
CONNACK: Final = 2
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

PING: Final = b"\xc0\x00"
PONG: Final = b"\xd0\x00"

_WITH_ID: Final = frozenset({PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK})


def decode(packet: bytes) -> mqtt5.Packet:
    """Return one whole packet, decoded. The packet must not be a PUBLISH.

    Raises:
        Refusal: MQTT 5 forbids the packet.
    """
    kind = packet[0] >> 4
    _, start = read_varint(packet, 1, len(packet))
    _check_strings(packet, kind, start)
    try:
        found, used = mqtt5.read(memoryview(packet))
    except (ValueError, IndexError, OverflowError) as error:
        raise malformed(f"a packet of type {kind} cannot be read: {error}") from None
    except BaseException as error:
        # The class of the panic cannot be imported. Let any other exception pass.
        if type(error).__name__ != "PanicException":
            raise
        raise malformed(f"a packet of type {kind} made the codec panic") from None
    if used != len(packet):
        raise malformed(f"a packet of type {kind} has {len(packet) - used} bytes too many")
    return found


def _check_strings(packet: bytes, kind: int, start: int) -> None:
    end = len(packet)
    if kind == CONNECT:
        _check_connect(packet, start, end)
        return
    i = start
    if kind in _WITH_ID:
        if end - i < 2:
            raise malformed(f"a packet of type {kind} ends before its packet identifier")
        if not packet[i] and not packet[i + 1]:
            raise protocol_error(f"a packet of type {kind} has packet identifier 0")
        i += 2
    if kind == CONNACK:
        i += 2
    elif kind in {PUBACK, PUBREC, PUBREL, PUBCOMP, DISCONNECT, AUTH}:
        i += 1
    if kind in {PINGREQ, PINGRESP} or i >= end:
        return
    i = _check_properties(packet, i, end)
    if kind in {SUBSCRIBE, UNSUBSCRIBE}:
        if i == end:
            raise protocol_error(f"a packet of type {kind} has no topic filter")
        while i < end:
            i = check_text(packet, i, end) + (1 if kind == SUBSCRIBE else 0)


def _check_properties(packet: bytes, start: int, end: int) -> int:
    length, i = read_varint(packet, start, end)
    if i + length > end:
        raise malformed("properties go beyond their packet")
    walk(packet, i, i + length)
    return i + length


def _check_connect(packet: bytes, start: int, end: int) -> None:
    i = check_text(packet, start, end)
    if packet[start + 2 : i] not in {b"MQTT", b"MQIsdp"}:
        raise malformed("a CONNECT names another protocol than MQTT")
    if i + 4 > end:
        raise malformed("a CONNECT ends within its header")
    if packet[i] != 5:
        raise Refusal(UNSUPPORTED_VERSION, f"a CONNECT speaks protocol level {packet[i]}; only 5 is supported here")
    flags = packet[i + 1]
    i = _check_properties(packet, i + 4, end)
    i = check_text(packet, i, end)
    if flags & 0x04:
        i = _check_properties(packet, i, end)
        i = check_text(packet, i, end)
        if i + 2 > end:
            raise malformed("a CONNECT ends within its will")
        i += 2 + (packet[i] << 8 | packet[i + 1])
    if flags & 0x80:
        check_text(packet, i, end)
