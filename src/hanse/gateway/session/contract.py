"""Promises of a broker in CONNACK, and those that the gateway may make for a set of brokers.

A client that moves keeps the promises of its first CONNACK. The gateway therefore promises the minimum of all brokers
of the set, and no client moves to a broker that offers less than it was promised.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from hanse.mqtt.properties import read_varint, varint, walk
from hanse.mqtt.refusal import malformed

ASSIGNED_CLIENT_ID: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
QOS_MAXIMUM: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
PACKET_SIZE_MAXIMUM: Final = 0x27
WILDCARD_AVAILABLE: Final = 0x28
IDENTIFIERS_AVAILABLE: Final = 0x29
SHARE_AVAILABLE: Final = 0x2A
REASON: Final = 0x1F

_RULED: Final = frozenset(
    {
        SERVER_KEEP_ALIVE,
        RECEIVE_MAXIMUM,
        TOPIC_ALIAS_MAXIMUM,
        QOS_MAXIMUM,
        RETAIN_AVAILABLE,
        PACKET_SIZE_MAXIMUM,
        WILDCARD_AVAILABLE,
        IDENTIFIERS_AVAILABLE,
        SHARE_AVAILABLE,
    }
)
_RETURN_CODES: Final = {0: 0x00, 1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Limits of one broker, or of a set. 0 in `packet_bytes_max` and `keep_alive_s` means no limit."""

    receive_max: int = 65_535
    qos_max: int = 2
    packet_bytes_max: int = 0
    keep_alive_s: int = 0
    has_retain: bool = True
    has_wildcard: bool = True
    has_identifiers: bool = True
    has_share: bool = True

    def met_by(self, other: "BrokerLimits") -> str:
        """Return how the other breaks this promise, as a sentence for a log; empty if it keeps all."""
        if other.receive_max < self.receive_max:
            return f"it has Receive Maximum {other.receive_max}; the client was promised {self.receive_max}"
        if other.qos_max < self.qos_max:
            return f"it takes QoS {other.qos_max} at most; the client was promised {self.qos_max}"
        if other.packet_bytes_max and (not self.packet_bytes_max or other.packet_bytes_max < self.packet_bytes_max):
            promised = self.packet_bytes_max or "any size"
            return f"it takes packets of {other.packet_bytes_max} bytes; the client was promised {promised}"
        for name in ("has_retain", "has_wildcard", "has_identifiers", "has_share"):
            if getattr(self, name) and not getattr(other, name):
                return f"it has no {name.removeprefix('has_')}, which the client was promised"
        return ""


NO_LIMITS: Final = BrokerLimits()


def minimum_of(limits: Iterable[BrokerLimits]) -> BrokerLimits:
    """Return the limits that all of these brokers keep."""
    found = list(limits)
    if not found:
        return NO_LIMITS
    return BrokerLimits(
        receive_max=min(one.receive_max for one in found),
        qos_max=min(one.qos_max for one in found),
        packet_bytes_max=min((one.packet_bytes_max for one in found if one.packet_bytes_max), default=0),
        keep_alive_s=min((one.keep_alive_s for one in found if one.keep_alive_s), default=0),
        has_retain=all(one.has_retain for one in found),
        has_wildcard=all(one.has_wildcard for one in found),
        has_identifiers=all(one.has_identifiers for one in found),
        has_share=all(one.has_share for one in found),
    )


@dataclass(frozen=True, slots=True)
class Connack:
    """One CONNACK. `code` is that of MQTT 5, whatever the version; `rest` are properties that the gateway keeps."""

    code: int
    session_present: bool
    limits: BrokerLimits = NO_LIMITS
    reason: str = ""
    rest: bytes = b""

    def write(self, limits: BrokerLimits, assigned_id: bytes = b"") -> bytes:
        """Return a CONNACK of MQTT 5 that promises these limits and no topic alias."""
        properties = [self.rest]
        if assigned_id:
            properties += [bytes((ASSIGNED_CLIENT_ID,)), len(assigned_id).to_bytes(2, "big"), assigned_id]
        if limits.keep_alive_s:
            properties.append(bytes((SERVER_KEEP_ALIVE,)) + limits.keep_alive_s.to_bytes(2, "big"))
        if limits.receive_max < 65_535:
            properties.append(bytes((RECEIVE_MAXIMUM,)) + limits.receive_max.to_bytes(2, "big"))
        if limits.packet_bytes_max:
            properties.append(bytes((PACKET_SIZE_MAXIMUM,)) + limits.packet_bytes_max.to_bytes(4, "big"))
        if limits.qos_max < 2:
            properties.append(bytes((QOS_MAXIMUM, limits.qos_max)))
        for identifier, has in (
            (RETAIN_AVAILABLE, limits.has_retain),
            (WILDCARD_AVAILABLE, limits.has_wildcard),
            (IDENTIFIERS_AVAILABLE, limits.has_identifiers),
            (SHARE_AVAILABLE, limits.has_share),
        ):
            if not has:
                properties.append(bytes((identifier, 0)))
        told = b"".join(properties)
        body = bytes((self.session_present, self.code)) + varint(len(told)) + told
        return b"\x20" + varint(len(body)) + body


def read_connack(packet: bytes, version: int) -> Connack:
    """Read a whole CONNACK, as a client of `version` receives it. A refusal may come in the form of 3.1.1.

    Raises:
        Refusal: the packet is malformed.
    """
    end = len(packet)
    length, i = read_varint(packet, 1, end)
    if packet[0] != 0x20 or length < 2 or i + length != end or packet[i] > 1:
        raise malformed(f"a CONNACK of {end} bytes cannot be read")
    present, code = packet[i] == 1, packet[i + 1]
    if length == 2 and (version < 5 or code in {1, 2, 3, 4, 5}):
        if code not in _RETURN_CODES:
            raise malformed(f"a CONNACK has the return code {code}")
        return Connack(_RETURN_CODES[code], present)
    if version < 5:
        raise malformed(f"a CONNACK of MQTT 3 has {end} bytes; 4 were expected")
    if length == 2:
        return Connack(code, present)
    count, i = read_varint(packet, i + 2, end)
    if i + count != end:
        raise malformed("the properties of a CONNACK do not end with it")
    return _read_properties(packet, i, code, present)


def _read_properties(packet: bytes, start: int, code: int, present: bool) -> Connack:
    told: dict[int, int] = {}
    rest = []
    reason = ""
    for identifier, first, last in walk(packet, start, len(packet)):
        if identifier in _RULED:
            told[identifier] = int.from_bytes(packet[first + 1 : last], "big")
            continue
        rest.append(packet[first:last])
        if identifier == REASON:
            reason = packet[first + 3 : last].decode()
    limits = BrokerLimits(
        receive_max=told.get(RECEIVE_MAXIMUM, 65_535),
        qos_max=told.get(QOS_MAXIMUM, 2),
        packet_bytes_max=told.get(PACKET_SIZE_MAXIMUM, 0),
        keep_alive_s=told.get(SERVER_KEEP_ALIVE, 0),
        has_retain=told.get(RETAIN_AVAILABLE, 1) == 1,
        has_wildcard=told.get(WILDCARD_AVAILABLE, 1) == 1,
        has_identifiers=told.get(IDENTIFIERS_AVAILABLE, 1) == 1,
        has_share=told.get(SHARE_AVAILABLE, 1) == 1,
    )
    return Connack(code, present, limits, reason, b"".join(rest))


def limits_of_connack(packet: bytes, version: int) -> BrokerLimits:
    """Return what a broker promises in this CONNACK; before MQTT 5, everything."""
    return read_connack(packet, version).limits
