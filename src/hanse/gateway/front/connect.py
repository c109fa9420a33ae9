"""CONNECT of MQTT 3.1, 3.1.1 and 5: read once, kept as raw bytes, written again with few changes.

A client of any version meets the gateway before it meets a broker, so this reader trusts nothing. It works on raw
bytes: client ids, names and passwords go to the broker unchanged.

Rules:

1. The first byte decides whether this is MQTT. The length is judged from the header, before anything of the packet is
   kept. A CONNECT beyond the limit is refused with 0x95.
2. The packet is checked completely: lengths, UTF-8, flags, properties. What follows its end belongs to the next packet.
3. A refusal carries a reason code of MQTT 5. `refuse` writes it in the client's own version, or gives no bytes where
   that version demands a closed connection without an answer.
4. Passwords appear in no text.
"""

from typing import Final

from hanse.mqtt.limits import CONNECT_BYTES_MAX
from hanse.mqtt.properties import check_text, read_varint, varint, walk
from hanse.mqtt.refusal import (
    CONNECT_TIMEOUT,
    PACKET_TOO_LARGE,
    UNSUPPORTED_VERSION,
    Refusal,
    malformed,
    protocol_error,
)

MQTT_3_1: Final = 3
MQTT_3_1_1: Final = 4
MQTT_5: Final = 5

CLIENT_ID_NOT_VALID: Final = 0x85
BAD_USER_NAME_OR_PASSWORD: Final = 0x86
NOT_AUTHORIZED: Final = 0x87
SERVER_UNAVAILABLE: Final = 0x88
SERVER_BUSY: Final = 0x89
BAD_AUTHENTICATION_METHOD: Final = 0x8C
QUOTA_EXCEEDED: Final = 0x97
USE_ANOTHER_SERVER: Final = 0x9C
SERVER_MOVED: Final = 0x9D
CONNECTION_RATE_EXCEEDED: Final = 0x9F

# A session that never expires (MQTT 5, 3.1.2.11.2).
NEVER: Final = 0xFFFF_FFFF

# A bridge of Mosquitto sets this bit of the version, which its broker understands.
_BRIDGE_BIT: Final = 0x80

# Names of protocols that reach an MQTT port by mistake, by the bytes they begin with.
_STRANGERS: Final = (
    (b"\x16\x03", "TLS; this listener is plain"),
    (b"GET ", "HTTP; a WebSocket listener has the scheme ws://"),
    (b"PROXY ", "a PROXY header, from an address that is not listed in proxy_from"),
    (b"\r\n\r\n", "a PROXY header of version 2, from an address that is not listed in proxy_from"),
)

_OF_CONNECT: Final = frozenset({0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27})
_OF_WILL: Final = frozenset({0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26})
# Properties whose value 0 is an error (MQTT 5, 3.1.2.11.3 and 3.1.2.11.4), and those that are 0 or 1.
_NOT_ZERO: Final = frozenset({0x21, 0x27})
_SWITCHES: Final = frozenset({0x01, 0x17, 0x19})

# Return codes of CONNACK in MQTT 3.1 and 3.1.1 (3.2.2.3) for the reason codes that they can express.
_RETURN_CODES: Final = {
    UNSUPPORTED_VERSION: 1,
    CLIENT_ID_NOT_VALID: 2,
    SERVER_UNAVAILABLE: 3,
    SERVER_BUSY: 3,
    QUOTA_EXCEEDED: 3,
    CONNECTION_RATE_EXCEEDED: 3,
    0x8B: 3,
    BAD_USER_NAME_OR_PASSWORD: 4,
    NOT_AUTHORIZED: 5,
    0x8A: 5,
    BAD_AUTHENTICATION_METHOD: 5,
}


class Will:
    """A client's will, as it came."""

    __slots__ = ("payload", "properties", "qos", "retain", "topic")

    def __init__(self, topic: bytes, payload: bytes, qos: int, retain: bool, properties: bytes) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        # Raw, without their length; empty before MQTT 5.
        self.properties = properties


class Connect:
    """One CONNECT.

    Attributes:
        packet: the whole packet, as it came.
        level: 3, 4 or 5 for MQTT 3.1, 3.1.1 and 5.
        is_bridge: the sender is a bridge of Mosquitto and says so in the version byte.
        client_id, username, password: raw bytes.
        session_expiry_s: 0 if the session ends with the connection. Before MQTT 5: `NEVER` unless the session is clean.
        packet_bytes_max: None if the client sets no limit.
        properties: raw, without their length.
    """

    __slots__ = (
        "auth_method",
        "clean_start",
        "client_id",
        "is_bridge",
        "keep_alive_s",
        "level",
        "packet",
        "packet_bytes_max",
        "password",
        "properties",
        "receive_max",
        "session_expiry_s",
        "topic_alias_max",
        "user_properties",
        "username",
        "wants_problem_information",
        "will",
    )

    def __init__(self, packet: bytes, level: int, is_bridge: bool) -> None:
        self.packet = packet
        self.level = level
        self.is_bridge = is_bridge
        self.client_id = b""
        self.username: bytes | None = None
        self.password: bytes | None = None
        self.keep_alive_s = 0
        self.clean_start = True
        self.will: Will | None = None
        self.properties = b""
        self.session_expiry_s = 0
        self.receive_max = 65_535
        self.packet_bytes_max: int | None = None
        self.topic_alias_max = 0
        self.auth_method: bytes | None = None
        self.user_properties: list[tuple[bytes, bytes]] = []
        self.wants_problem_information = True

    def __repr__(self) -> str:
        """Show what identifies the client; never the password."""
        return f"Connect(level={self.level}, client_id={self.client_id!r}, clean_start={self.clean_start})"

    @property
    def is_transient(self) -> bool:
        """Return whether no session of this client exists before and after this connection."""
        return self.clean_start and self.session_expiry_s == 0

    def encode(
        self,
        *,
        client_id: bytes | None = None,
        clean_start: bool | None = None,
        keep_alive_s: int | None = None,
        session_expiry_s: int | None = None,
        receive_max: int | None = None,
        topic_alias_max: int | None = None,
        strip_will: bool = False,
    ) -> bytes:
        """Write the packet again, with the given changes and otherwise as it came.

        Properties that are given replace the client's. Before MQTT 5 there are none, and they are left out.
        """
        will = None if strip_will else self.will
        clean = self.clean_start if clean_start is None else clean_start
        flags = 0x02 if clean else 0
        parts = [_binary(self.client_id if client_id is None else client_id)]
        if will is not None:
            flags |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
            if self.level == MQTT_5:
                parts += [varint(len(will.properties)), will.properties]
            parts += [_binary(will.topic), _binary(will.payload)]
        if self.username is not None:
            flags |= 0x80
            parts.append(_binary(self.username))
        if self.password is not None:
            flags |= 0x40
            parts.append(_binary(self.password))
        level = self.level | (_BRIDGE_BIT if self.is_bridge else 0)
        name = b"\x00\x06MQIsdp" if self.level == MQTT_3_1 else b"\x00\x04MQTT"
        keep_alive = self.keep_alive_s if keep_alive_s is None else keep_alive_s
        head = name + bytes((level, flags)) + keep_alive.to_bytes(2, "big")
        if self.level == MQTT_5:
            properties = self._properties_with(session_expiry_s, receive_max, topic_alias_max)
            head += varint(len(properties)) + properties
        body = head + b"".join(parts)
        return b"\x10" + varint(len(body)) + body

    def _properties_with(
        self, session_expiry_s: int | None, receive_max: int | None, topic_alias_max: int | None
    ) -> bytes:
        replaced: set[int] = set()
        added = b""
        if session_expiry_s is not None:
            replaced.add(0x11)
            added += b"\x11" + session_expiry_s.to_bytes(4, "big")
        if receive_max is not None:
            replaced.add(0x21)
            added += b"\x21" + receive_max.to_bytes(2, "big")
        if topic_alias_max is not None:
            replaced.add(0x22)
            added += b"\x22" + topic_alias_max.to_bytes(2, "big")
        if not replaced:
            return self.properties
        data = self.properties
        kept = [data[start:stop] for kind, start, stop in walk(data, 0, len(data)) if kind not in replaced]
        return b"".join(kept) + added


def _binary(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def read_connect(packet: bytes) -> Connect:
    """Read one whole CONNECT packet.

    Raises:
        Refusal: its version forbids it.
    """
    size = len(packet)
    if packet[0] != 0x10:
        raise malformed(f"the fixed header of CONNECT is {packet[0]:#04x}; 0x10 was expected")
    length, i = read_varint(packet, 1, size)
    if i + length != size:
        raise malformed(f"a CONNECT of {size} bytes says that it has {i + length}")
    connect = _read_head(packet, i, size)
    i += 8 if connect.level == MQTT_3_1 else 6
    flags = packet[i + 1]
    connect.clean_start = bool(flags & 0x02)
    connect.keep_alive_s = packet[i + 2] << 8 | packet[i + 3]
    i += 4
    if connect.level == MQTT_5:
        i = _read_properties(connect, i, size)
    elif not connect.clean_start:
        connect.session_expiry_s = NEVER
    stop = check_text(packet, i, size)
    connect.client_id = packet[i + 2 : stop]
    i = stop
    if flags & 0x04:
        i = _read_will(connect, flags, i, size)
    if flags & 0x80:
        stop = check_text(packet, i, size)
        connect.username = packet[i + 2 : stop]
        i = stop
    if flags & 0x40:
        stop = _binary_end(packet, i, size)
        connect.password = packet[i + 2 : stop]
        i = stop
    if i != size:
        raise malformed(f"a CONNECT has {size - i} bytes too many")
    if not connect.client_id and connect.level != MQTT_5 and not connect.clean_start:
        raise Refusal(CLIENT_ID_NOT_VALID, "a client without an id asks for a session that lasts; it needs an id")
    return connect


def _read_head(packet: bytes, i: int, size: int) -> Connect:
    """Read the protocol's name, its version and the flags; the version first, because it decides how to refuse."""
    name_end = i + 2 + (packet[i] << 8 | packet[i + 1]) if i + 2 <= size else size + 1
    if name_end + 4 > size:
        raise malformed("a CONNECT ends within its first fields")
    name = packet[i + 2 : name_end]
    version = packet[name_end]
    level = version & 0x7F
    is_bridge = version >= _BRIDGE_BIT
    if name == b"MQTT":
        if level not in (MQTT_3_1_1, MQTT_5) or (is_bridge and level == MQTT_5):
            raise Refusal(UNSUPPORTED_VERSION, f"a CONNECT asks for version {version}; 3, 4 and 5 are known")
    elif name == b"MQIsdp":
        if level != MQTT_3_1:
            raise Refusal(UNSUPPORTED_VERSION, f"a CONNECT of MQIsdp asks for version {version}; 3 is known")
    else:
        raise Refusal(UNSUPPORTED_VERSION, f"a CONNECT names the protocol {name[:20]!r}; MQTT or MQIsdp was expected")
    flags = packet[name_end + 1]
    if flags & 0x01:
        raise malformed("the reserved flag of CONNECT is set")
    if flags & 0x18 == 0x18:
        raise malformed("the will of a CONNECT has QoS 3")
    if not flags & 0x04 and flags & 0x38:
        raise malformed("a CONNECT without a will has flags of one")
    if level != MQTT_5 and flags & 0x40 and not flags & 0x80:
        raise malformed("a CONNECT has a password without a user name, which only MQTT 5 allows")
    return Connect(packet, level, is_bridge)


def _read_properties(connect: Connect, i: int, size: int) -> int:
    packet = connect.packet
    length, i = read_varint(packet, i, size)
    end = i + length
    if end > size:
        raise malformed("the properties of a CONNECT go beyond it")
    connect.properties = packet[i:end]
    has_auth_data = False
    for kind, start, stop in walk(packet, i, end, allowed=_OF_CONNECT):
        at = start + 1
        if kind == 0x26:
            middle = at + 2 + (packet[at] << 8 | packet[at + 1])
            connect.user_properties.append((packet[at + 2 : middle], packet[middle + 2 : stop]))
            continue
        if kind == 0x15:
            connect.auth_method = packet[at + 2 : stop]
            continue
        if kind == 0x16:
            has_auth_data = True
            continue
        value = int.from_bytes(packet[at:stop], "big")
        if (value == 0 and kind in _NOT_ZERO) or (value > 1 and kind in _SWITCHES):
            raise protocol_error(f"the property {kind:#04x} of a CONNECT is {value}, which MQTT forbids")
        if kind == 0x11:
            connect.session_expiry_s = value
        elif kind == 0x21:
            connect.receive_max = value
        elif kind == 0x22:
            connect.topic_alias_max = value
        elif kind == 0x27:
            connect.packet_bytes_max = value
        elif kind == 0x17:
            connect.wants_problem_information = value == 1
    if has_auth_data and connect.auth_method is None:
        raise protocol_error("a CONNECT has authentication data and no authentication method")
    return end


def _read_will(connect: Connect, flags: int, i: int, size: int) -> int:
    packet = connect.packet
    properties = b""
    if connect.level == MQTT_5:
        length, i = read_varint(packet, i, size)
        end = i + length
        if end > size:
            raise malformed("the properties of a will go beyond the CONNECT")
        for kind, start, stop in walk(packet, i, end, allowed=_OF_WILL):
            if kind in _SWITCHES and int.from_bytes(packet[start + 1 : stop], "big") > 1:
                raise protocol_error("the payload format of a will is neither 0 nor 1")
        properties = packet[i:end]
        i = end
    stop = check_text(packet, i, size)
    topic = packet[i + 2 : stop]
    if not topic or b"#" in topic or b"+" in topic:
        raise malformed("the topic of a will is empty or has a wildcard")
    end = _binary_end(packet, stop, size)
    connect.will = Will(topic, packet[stop + 2 : end], flags >> 3 & 3, bool(flags & 0x20), properties)
    return end


def _binary_end(packet: bytes, i: int, size: int) -> int:
    end = i + 2
    if end <= size:
        end += packet[i] << 8 | packet[i + 1]
    if end > size:
        raise malformed("a field of a CONNECT goes beyond it")
    return end


class ConnectReader:
    """Collects a client's first packet.

    Args:
        bytes_max: a CONNECT longer than this, header included, is refused.
    """

    __slots__ = ("_bytes_max", "_have", "level", "rest")

    def __init__(self, bytes_max: int = CONNECT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._have = b""
        # The version, as soon as it is known: a refusal is written in it. 0 before.
        self.level = 0
        # Bytes behind the CONNECT.
        self.rest = b""

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes kept of an incomplete packet."""
        return len(self._have)

    def feed(self, data: bytes) -> Connect | None:
        """Add the bytes of one read; return the CONNECT when it is complete.

        Raises:
            Refusal: this is not a CONNECT that a client may send.
        """
        # A CONNECT comes in one read, or nearly so. It is bounded, and a client that sends byte by byte runs into the
        # deadline, so joining again for each read is cheap enough.
        have = self._have = self._have + data if self._have else data
        if not have:
            return None
        if have[0] != 0x10:
            raise _stranger(have)
        end = self._end(have)
        if not self.level:
            self.level = _level_of(have)
        if end > self._bytes_max:
            raise Refusal(
                PACKET_TOO_LARGE, f"a CONNECT of {end} bytes was announced; at most {self._bytes_max} are accepted here"
            )
        if not end or len(have) < end:
            return None
        self._have = b""
        self.rest = have[end:]
        return read_connect(have[:end])

    def _end(self, have: bytes) -> int:
        """Return where the packet ends; 0 if its header is not complete."""
        length = shift = 0
        for i in range(1, min(len(have), 5)):
            byte = have[i]
            length |= (byte & 0x7F) << shift
            if byte < 128:
                if byte == 0 and shift:
                    raise malformed("a remaining length is longer than necessary")
                return i + 1 + length
            shift += 7
        if len(have) >= 5:
            raise malformed("a remaining length has five bytes or more; MQTT allows four")
        return 0


def _level_of(have: bytes) -> int:
    """Return the version in the first bytes of a CONNECT; 0 if it is not there yet or not known."""
    i = 1
    while i < len(have) and have[i] > 127:
        i += 1
    i += 1
    if len(have) < i + 2:
        return 0
    at = i + 2 + (have[i] << 8 | have[i + 1])
    if at >= len(have):
        return 0
    level = have[at] & 0x7F
    return level if MQTT_3_1 <= level <= MQTT_5 else 0


def _stranger(have: bytes) -> Refusal:
    for start, what in _STRANGERS:
        if have.startswith(start):
            return protocol_error(f"the client does not begin with CONNECT but with {what}")
    if have[0] >> 4 == 1:
        return malformed(f"the fixed header of CONNECT is {have[0]:#04x}; 0x10 was expected")
    return protocol_error(f"the first packet has type {have[0] >> 4}; CONNECT (type 1) was expected")


def refuse(level: int, reason_code: int, reason: str = "", server_reference: bytes = b"") -> bytes:
    """Return the CONNACK that refuses a client of this version.

    It is empty where the version has no code for the reason: MQTT 3.1.1 then closes without an answer (3.1.4), and so
    does MQTT 5 when CONNECT was late, because 0xA0 belongs to DISCONNECT alone. A client whose version is not known
    gets return code 1, as 3.1.1 has it, for an unknown version, and nothing else.
    """
    if reason_code == CONNECT_TIMEOUT:
        return b""
    if level == MQTT_5:
        properties = b""
        if server_reference:
            properties += b"\x1c" + _binary(server_reference)
        if reason:
            properties += b"\x1f" + _binary(reason.encode()[:1000])
        body = bytes((0, reason_code)) + varint(len(properties)) + properties
        return b"\x20" + varint(len(body)) + body
    code = _RETURN_CODES.get(reason_code)
    if code is None or (level == 0 and code != 1):
        return b""
    return bytes((0x20, 2, 0, code))
