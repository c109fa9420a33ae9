"""Packets for tests of the gateway's sessions, written by hand in all versions of MQTT."""

from hanse.gateway.front.connect import Connect, read_connect
from hanse.mqtt.properties import varint


def text(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def packet(head: int, body: bytes) -> bytes:
    return bytes((head,)) + varint(len(body)) + body


def connect(
    version: int = 5,
    client_id: bytes = b"c1",
    *,
    clean: bool = True,
    keep_alive_s: int = 60,
    properties: bytes = b"",
    will: tuple[bytes, bytes, int] | None = None,
    will_properties: bytes = b"",
) -> Connect:
    flags = 0x02 if clean else 0
    body = b""
    if will is not None:
        flags |= 0x04 | will[2] << 3
        if version == 5:
            body += varint(len(will_properties)) + will_properties
        body += text(will[0]) + text(will[1])
    head = b"\x00\x06MQIsdp" if version == 3 else b"\x00\x04MQTT"
    head += bytes((version, flags)) + keep_alive_s.to_bytes(2, "big")
    if version == 5:
        head += varint(len(properties)) + properties
    return read_connect(packet(0x10, head + text(client_id) + body))


def connack(version: int = 5, code: int = 0, *, present: bool = False, properties: bytes = b"") -> bytes:
    body = bytes((present, code))
    if version == 5:
        body += varint(len(properties)) + properties
    return packet(0x20, body)


def publish(
    topic: bytes,
    payload: bytes,
    qos: int = 0,
    packet_id: int = 0,
    *,
    version: int = 5,
    retain: bool = False,
    dup: bool = False,
    properties: bytes = b"",
) -> bytes:
    body = text(topic)
    if qos:
        body += packet_id.to_bytes(2, "big")
    if version == 5:
        body += varint(len(properties)) + properties
    return packet(0x30 | dup << 3 | qos << 1 | retain, body + payload)


def ack(kind: int, packet_id: int, code: int = 0) -> bytes:
    """PUBACK 0x40, PUBREC 0x50, PUBREL 0x62, PUBCOMP 0x70."""
    body = packet_id.to_bytes(2, "big")
    return packet(kind, body + bytes((code,)) if code else body)


def subscribe(packet_id: int, *filters: tuple[bytes, int], version: int = 5, properties: bytes = b"") -> bytes:
    body = packet_id.to_bytes(2, "big")
    if version == 5:
        body += varint(len(properties)) + properties
    for wanted, options in filters:
        body += text(wanted) + bytes((options,))
    return packet(0x82, body)


def unsubscribe(packet_id: int, *filters: bytes, version: int = 5) -> bytes:
    body = packet_id.to_bytes(2, "big") + (b"\0" if version == 5 else b"")
    return packet(0xA2, body + b"".join(map(text, filters)))


def suback(packet_id: int, *codes: int, version: int = 5) -> bytes:
    return packet(0x90, packet_id.to_bytes(2, "big") + (b"\0" if version == 5 else b"") + bytes(codes))


def unsuback(packet_id: int, *codes: int, version: int = 5) -> bytes:
    return packet(0xB0, packet_id.to_bytes(2, "big") + (b"\0" + bytes(codes) if version == 5 else b""))


def disconnect(code: int = 0) -> bytes:
    return packet(0xE0, bytes((code,)) if code else b"")
