"""MQTT 3.1.1 broker in memory that serves one connection at a time, with the habits that a test chooses."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from hanse.mqtt.framing import Splitter
from hanse.mqtt.properties import read_varint, varint
from hanse.protocol.topics import matches


@dataclass
class Habits:
    """Differences between makes of broker.

    Attributes:
           to_five: reply to a CONNECT of MQTT 5: the return code for it, silence, or a closed connection.
           qos_max: highest QoS that the broker grants.
           copies: whether the broker sends a publication once per matching subscription.
           dots: what the broker makes of a dot in a topic.
           refused: last levels of the filters that the broker refuses.
           code: return code of the CONNACK for 3.1.1.
    """

    to_five: Literal["code", "close", "accept"] = "code"
    qos_max: int = 2
    copies: bool = False
    dots: Literal["kept", "refused", "slashes"] = "kept"
    refused: tuple[str, ...] = ()
    code: int = 0
    is_mute: bool = False


@dataclass
class OldBroker:
    """Sessions by client id, and the packets of every connection."""

    habits: Habits = field(default_factory=Habits)
    connects: list[tuple[str, int, bool]] = field(default_factory=list)  # client id, level, clean
    sessions: dict[str, dict[str, int]] = field(default_factory=dict)
    owners: dict[str, "OldConnection"] = field(default_factory=dict)
    published: list[tuple[str, bytes, int, bool]] = field(default_factory=list)  # topic, payload, QoS, DUP
    said: list[bytes] = field(default_factory=list)
    wires: list["OldConnection"] = field(default_factory=list)

    def make(self) -> "OldConnection":
        self.wires.append(OldConnection(self))
        return self.wires[-1]


class OldConnection(asyncio.Protocol):
    def __init__(self, broker: OldBroker) -> None:
        self.broker = broker
        self.client = ""
        self.is_clean = True
        self._splitter = Splitter(1 << 20)
        self._next_id = 1
        self.wire: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.wire = transport

    def connection_lost(self, _error: Exception | None) -> None:
        # Not if the client is already back on another connection.
        if self.is_clean and self.broker.owners.get(self.client) is self:
            self.broker.sessions.pop(self.client, None)

    def data_received(self, data: bytes) -> None:
        found, offsets = self._splitter.feed(data)
        for start, end in offsets:
            packet = found[start:end]
            self.broker.said.append(packet)
            _, at = read_varint(packet, 1, len(packet))
            self._take(packet[0], packet[at:])

    def _take(self, head: int, body: bytes) -> None:
        match head >> 4:
            case 1:
                self._connect(body)
            case 3:
                self._publish(head, body)
            case 6:
                self.wire.write(b"\x70\x02" + body[:2])
            case 8 | 10:
                self._subscribe(head >> 4 == 8, body)
            case 12:
                self.wire.write(b"\xd0\x00")
            case 14:
                assert body == b"", "a 3.1.1 DISCONNECT has no reason"
                self.wire.close()
            case kind:
                assert kind in {4, 5}, kind
                assert len(body) == 2, "acknowledgements have no reason code in 3.1.1"

    def _connect(self, body: bytes) -> None:
        level, flags = body[6], body[7]
        habits = self.broker.habits
        at = 10 + (1 + body[10] if level == 5 else 0)
        self.client = body[at + 2 : at + 2 + int.from_bytes(body[at : at + 2])].decode()
        self.is_clean = bool(flags & 2)
        self.broker.connects.append((self.client, level, self.is_clean))
        if level == 5 and habits.to_five != "accept":
            if habits.to_five == "code":
                self.wire.write(b"\x20\x02\x00\x01")
            self.wire.close()
            return
        if level == 5:
            self.wire.write(b"\x20\x03\x00\x00\x00")
            return
        if habits.code:
            self.wire.write(bytes((0x20, 2, 0, habits.code)))
            self.wire.close()
            return
        self.broker.owners[self.client] = self
        if self.is_clean:
            self.broker.sessions.pop(self.client, None)
        is_present = self.client in self.broker.sessions
        self.broker.sessions.setdefault(self.client, {})
        self.wire.write(bytes((0x20, 2, is_present, 0)))

    def _subscribe(self, is_subscribe: bool, body: bytes) -> None:
        codes = b""
        held = self.broker.sessions[self.client]
        at = 2
        while at < len(body):
            stop = at + 2 + int.from_bytes(body[at : at + 2])
            wanted = body[at + 2 : stop].decode()
            at = stop
            if is_subscribe:
                qos = min(body[stop], self.broker.habits.qos_max)
                at += 1
                is_dotted = "." in wanted and self.broker.habits.dots == "refused"
                if is_dotted or wanted.rsplit("/", 1)[-1] in self.broker.habits.refused:
                    codes += b"\x80"
                else:
                    held[wanted] = qos
                    codes += bytes((qos,))
            else:
                held.pop(wanted, None)
        if not self.broker.habits.is_mute:
            answer = body[:2] + codes
            self.wire.write(bytes((0x90 if is_subscribe else 0xB0,)) + varint(len(answer)) + answer)

    def _publish(self, head: int, body: bytes) -> None:
        qos = head >> 1 & 3
        stop = 2 + int.from_bytes(body[:2])
        topic, rest = body[2:stop].decode(), body[stop:]
        habits = self.broker.habits
        if qos > habits.qos_max or ("." in topic and habits.dots == "refused"):
            self.wire.close()
            return
        if qos:
            self.wire.write(bytes((0x40 if qos == 1 else 0x50, 2)) + rest[:2])
            rest = rest[2:]
        self.broker.published.append((topic, rest, qos, bool(head & 8)))
        self.send(topic.replace(".", "/") if habits.dots == "slashes" else topic, rest, qos)

    def send(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Send to this connection if its subscriptions match."""
        held = self.broker.sessions[self.client]
        granted = [held[wanted] for wanted in held if matches(wanted, topic)]
        for most in granted if self.broker.habits.copies else granted[:1]:
            low = min(qos, most)
            name = topic.encode()
            front = len(name).to_bytes(2) + name
            if low:
                front += self._next_id.to_bytes(2)
                self._next_id += 1
            self.wire.write(bytes((0x30 | low << 1 | retain,)) + varint(len(front + payload)) + front + payload)
