"""Client and server machines against each other, in memory: no network, no waiting."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import mqtt5
import pytest

from hanse.errors import HanseError, LocalError, RemoteError, Unavailable
from hanse.mqtt.backoff import BackoffSettings
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.connection import Connection
from hanse.mqtt.memory import MemoryTransport, join
from hanse.mqtt.publication import Publication, encode
from hanse.mqtt.server import Server, ServerConnection, ServerGreeting, ServerHandler
from hanse.mqtt.subscriptions import Subscription

TURNS = 500


def accept_anyone(greeting: ServerGreeting, _connect: mqtt5.ConnectPacket) -> None:
    greeting.accept()


async def until(condition: Callable[[], object]) -> None:
    for turn in range(TURNS):
        if condition():
            return
        # The first turns cost no time. A stream that is gathered has pauses.
        await asyncio.sleep(0 if turn < TURNS - 100 else 0.005)
    raise AssertionError("the condition did not become true in time")


class Side(ClientHandler):
    def __init__(self) -> None:
        self.connected: list[bool] = []
        self.disconnected: list[HanseError | None] = []
        self.publications: list[list[Publication]] = []
        self.acknowledged: list[int] = []
        self.refused: list[tuple[int, int]] = []
        self.subscribed: list[tuple[Subscription, int]] = []
        self.credits = 0

    def on_connected(self, session_present: bool) -> None:
        self.connected.append(session_present)

    def on_disconnected(self, error: HanseError | None) -> None:
        self.disconnected.append(error)

    def on_publications(self, publications: list[Publication]) -> None:
        self.publications.append(publications)

    def on_acknowledged(self, numbers: list[int]) -> None:
        self.acknowledged += numbers

    def on_refused(self, refused: list[tuple[int, int]]) -> None:
        self.refused += refused

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        self.subscribed += answers

    def on_credit(self) -> None:
        self.credits += 1


class House(ServerHandler):
    """Server that accepts (or does what `decide` says) and records."""

    def __init__(self) -> None:
        self.decide: Callable[[ServerGreeting, mqtt5.ConnectPacket], None] = self.let_in
        self.connack = mqtt5.ConnAckPacket()
        self.connections: list[ServerConnection] = []
        self.publications: list[list[Publication]] = []
        self.acknowledged: list[int] = []
        self.packets: list[mqtt5.Packet] = []
        self.disconnected: list[HanseError | None] = []
        self.server = Server(self, connections_max=2, packet_bytes_max=5000)

    def let_in(self, greeting: ServerGreeting, connect: mqtt5.ConnectPacket) -> None:
        assert connect.client_id == "ours"
        self.connections.append(greeting.accept(self.connack))

    def on_connect(self, greeting: ServerGreeting, connect: mqtt5.ConnectPacket) -> None:
        self.decide(greeting, connect)

    def on_publications(self, _connection: ServerConnection, publications: list[Publication]) -> None:
        self.publications.append(publications)

    def on_acknowledged(self, _connection: ServerConnection, numbers: list[int]) -> None:
        self.acknowledged += numbers

    def on_packet(self, connection: ServerConnection, packet: mqtt5.Packet) -> None:
        self.packets.append(packet)
        if isinstance(packet, mqtt5.SubscribePacket):
            codes = [mqtt5.SubAckReasonCode(0x87 if f.pattern == "no" else 1) for f in packet.topic_filters]
            connection.write(mqtt5.SubAckPacket(packet.packet_id, codes).write())

    def on_disconnected(self, _connection: ServerConnection, error: HanseError | None) -> None:
        self.disconnected.append(error)


class Scene:
    """One client, one server, and a wire in memory that can be cut."""

    def __init__(self, *, chunk_bytes: int = 65_536, **settings: Any) -> None:
        self.house = House()
        self.side = Side()
        self.wires: list[tuple[MemoryTransport, MemoryTransport]] = []
        self._chunk_bytes = chunk_bytes
        quick = BackoffSettings(first_s=1e-9, max_s=1e-9)
        all_settings: dict[str, Any] = {"keep_alive_s": 0, "session_expiry_s": 60, "backoff": quick} | settings
        self.client = Client(
            ClientSettings(url="mqtt://memory", client_id="ours", **all_settings),
            self.side,
            jitter=lambda: 0.0,
            dial=self._dial,
        )

    async def _dial(self, make: Callable[[], Connection]) -> None:
        self.wires.append(join(make(), self.house.server.listener.make(), chunk_bytes=self._chunk_bytes))

    @property
    def there(self) -> ServerConnection:
        return self.house.connections[-1]

    def cut(self) -> None:
        self.wires[-1][0].abort()


def play(story: Callable[[Scene], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def with_an_end() -> None:
        scene = Scene(**settings)
        try:
            await story(scene)
        finally:
            await scene.client.stop()

    asyncio.run(asyncio.wait_for(with_an_end(), 20))


@pytest.mark.parametrize("chunk_bytes", [1, 7, 65_536])
def test_both_sides_publish_and_acknowledge_for_any_chunk_size(chunk_bytes: int) -> None:
    async def story(scene: Scene) -> None:
        await scene.client.start(must_connect=True)
        run = b"".join(encode(f"t/{n}", b"x" * n, qos=n % 3) for n in range(200))
        scene.client.publish_run(run)
        scene.there.publish_run(run)
        await until(lambda: sum(map(len, scene.house.publications)) == 200)
        await until(lambda: sum(map(len, scene.side.publications)) == 200)
        for batches in (scene.house.publications, scene.side.publications):
            assert b"".join(p.packet for batch in batches for p in batch) == run
        if chunk_bytes == 65_536:
            assert len(scene.house.publications) == 1
        scene.there.ack([p.receipt for batch in scene.house.publications for p in batch if p.qos])
        scene.client.ack([p.receipt for batch in scene.side.publications for p in batch if p.qos])
        await until(lambda: not scene.client.unacknowledged and not scene.there.unacknowledged)
        count = sum(1 for n in range(200) if n % 3)
        assert sorted(scene.side.acknowledged) == sorted(scene.house.acknowledged) == list(range(1, count + 1))

    play(story, chunk_bytes=chunk_bytes)


def test_all_packets_of_one_turn_leave_in_one_write() -> None:
    async def story(scene: Scene) -> None:
        await scene.client.start(must_connect=True)
        before = scene.client.counters.writes
        for n in range(50):
            scene.client.publish("t", str(n).encode(), qos=n % 2)
        scene.client.subscribe([Subscription("a")])
        await until(lambda: sum(map(len, scene.house.publications)) == 50)
        assert scene.client.counters.writes == before + 1

    play(story)


def test_a_cut_wire_loses_nothing_of_qos_1() -> None:
    async def story(scene: Scene) -> None:
        await scene.client.start(must_connect=True)
        scene.client.publish_run(b"".join(encode("t", str(n).encode(), qos=1) for n in range(10)))
        await until(lambda: scene.house.publications)
        scene.there.ack([p.receipt for p in scene.house.publications[0][:4]])
        await until(lambda: len(scene.side.acknowledged) == 4)
        scene.house.connack = mqtt5.ConnAckPacket(session_present=True)
        scene.cut()
        await until(lambda: len(scene.side.connected) == 2)
        await until(lambda: len(scene.house.publications) == 2)
        again = scene.house.publications[1]
        assert [(int(p.payload), p.dup) for p in again] == [(n, True) for n in range(4, 10)]
        scene.there.ack([p.receipt for p in again])
        await until(lambda: scene.client.unacknowledged == 0)
        assert scene.side.acknowledged == list(range(1, 11))

    play(story)


def test_credit_is_back_pressure_and_never_stops_the_reading() -> None:
    async def story(scene: Scene) -> None:
        await scene.client.start(must_connect=True)
        scene.client.publish_run(b"".join(encode("t", b"", qos=1) for _ in range(8)))
        with pytest.raises(Unavailable):
            scene.client.publish("t", b"", qos=1)
        scene.there.publish_run(encode("still", b"read"))
        await until(lambda: scene.side.publications and scene.house.publications)
        scene.there.ack([p.receipt for p in scene.house.publications[0]])
        await until(lambda: scene.side.credits)
        assert scene.client.publish("t", b"", qos=1) == 9

    play(story, held_packets_max=8)


def test_refused_and_granted_subscriptions_are_both_reported() -> None:
    async def story(scene: Scene) -> None:
        await scene.client.start(must_connect=True)
        scene.client.subscribe([Subscription("yes"), Subscription("no")])
        await until(lambda: scene.client.is_subscribed)
        assert [(item.filter, code) for item, code in scene.side.subscribed] == [("yes", 1), ("no", 0x87)]

    play(story)


def test_the_client_obeys_lower_limits_of_the_server() -> None:
    async def story(scene: Scene) -> None:
        scene.house.connack = mqtt5.ConnAckPacket(max_qos=mqtt5.QoS(1), retain_available=False, max_packet_size=60)
        await scene.client.start(must_connect=True)
        first = scene.client.publish_run(encode("t", b"a", qos=2, retain=True) + encode("t", b"x" * 99, qos=1))
        await until(lambda: scene.side.refused and scene.house.publications)
        assert scene.side.refused == [(first + 1, 0x95)]
        assert [(p.qos, p.retain) for p in scene.house.publications[0]] == [(1, False)]

    play(story)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (0x86, LocalError, "user name and password"),
        (0x85, LocalError, "client id"),
        (0x88, Unavailable, "server unavailable"),
        (0x9C, Unavailable, "elsewhere:1883"),
    ],
)
def test_a_refused_connect_says_who_has_to_act(code: int, kind: type[HanseError], words: str) -> None:
    async def story(scene: Scene) -> None:
        connack = mqtt5.ConnAckPacket(reason_code=mqtt5.ConnAckReasonCode(code), server_reference="elsewhere:1883")
        scene.house.decide = lambda greeting, _connect: greeting.refuse(connack)
        with pytest.raises(kind, match=words):
            await scene.client.start(must_connect=True)
        assert scene.house.server.counters.refusals == {"connect": 1}
        await until(lambda: scene.house.server.listener.connections == 0)

    play(story)


def test_the_client_tries_again_until_it_is_let_in() -> None:
    async def story(scene: Scene) -> None:
        busy = mqtt5.ConnAckPacket(reason_code=mqtt5.ConnAckReasonCode.SERVER_BUSY)
        scene.house.decide = lambda greeting, _connect: greeting.refuse(busy)
        await scene.client.start()
        for _ in range(20_000):
            if len(scene.side.disconnected) >= 3:
                break
            await asyncio.sleep(0)
        assert all(isinstance(error, Unavailable) for error in scene.side.disconnected)
        scene.house.decide = scene.house.let_in
        await scene.client.wait_connected(10)

    play(story)


def test_a_decision_may_come_later_and_early_packets_are_kept() -> None:
    async def story(scene: Scene) -> None:
        waiting: list[ServerGreeting] = []
        scene.house.decide = lambda greeting, _connect: waiting.append(greeting)
        left = _Raw()
        join(left, scene.house.server.listener.make())
        left.transport.write(mqtt5.ConnectPacket("early").write() + encode("t", b"1"))
        left.transport.write(encode("t", b"2"))
        await until(lambda: waiting)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not scene.house.publications
        waiting[0].accept()
        assert [p.payload for batch in scene.house.publications for p in batch] == [b"1", b"2"]
        left.transport.abort()

    play(story)


def test_a_disconnect_of_the_server_is_reported_with_its_server_reference() -> None:
    async def story(scene: Scene) -> None:
        await scene.client.start(must_connect=True)
        scene.there.disconnect(0x9D, reason="moved", server_reference="there:1883")
        await until(lambda: scene.side.disconnected)
        assert "moved (use there:1883)" in str(scene.side.disconnected[0])

    play(story)


def test_a_client_that_leaves_sends_disconnect() -> None:
    async def story(scene: Scene) -> None:
        await scene.client.start(must_connect=True)
        there = scene.there
        await scene.client.stop()
        await until(lambda: scene.house.disconnected)
        assert scene.house.disconnected == [None]
        assert there.goodbye is not None
        assert int(there.goodbye.reason_code) == 0
        assert scene.side.disconnected == [None]

    play(story)


def test_a_publication_with_too_many_properties_is_dropped_and_acknowledged_and_the_session_goes_on() -> None:
    async def story(scene: Scene) -> None:
        await scene.client.start(must_connect=True)
        flood = [("", "")] * 1_001
        scene.there.publish_run(
            encode("t", b"bad", qos=1, user_properties=flood)
            + encode("t", b"bad", qos=2, user_properties=flood)
            + encode("t", b"good", qos=1)
        )
        await until(lambda: scene.side.publications)
        assert [p.payload for p in scene.side.publications[0]] == [b"good"]
        assert scene.client.counters.drops == {"properties": 2}
        await until(lambda: scene.there.unacknowledged == 1)
        assert scene.client.is_connected

    play(story)


def test_the_client_disconnects_from_a_server_that_sends_nonsense() -> None:
    class Nonsense(asyncio.Protocol):
        def __init__(self, words: bytes) -> None:
            self.words = words

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport

        def data_received(self, _data: bytes) -> None:
            self.transport.write(self.words)

    async def attempt(words: bytes) -> HanseError:
        async def dial(make: Callable[[], Connection]) -> None:
            join(make(), Nonsense(words))

        client = Client(ClientSettings(url="mqtt://memory", client_id="ours"), Side(), dial=dial)
        with pytest.raises(HanseError) as caught:
            await client.start(must_connect=True)
        return caught.value

    for words in (
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\x20\xff\xff\xff\xff\x01",
        b"\x30\x05\x00\x01a\x00x",
        b"\x20\x00",
    ):
        assert isinstance(asyncio.run(attempt(words)), RemoteError), words


class _Raw(asyncio.Protocol):
    """Peer that sends raw bytes."""

    def __init__(self) -> None:
        self.got = b""
        self.is_lost = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_lost = True


GOOD = mqtt5.ConnectPacket("ours").write()
# Bytes that are sent, last packet of the reply, label of the counter.
OFFENCES: dict[str, tuple[bytes, bytes, str]] = {
    "not connect": (b"\x30\x05\x00\x01a\x00x", b"", "protocol_error"),
    "http": (b"GET / HTTP/1.1\r\n", b"", "protocol_error"),
    "connect too large": (b"\x10\xff\xff\x7f", b"", "packet_too_large"),
    "connect with a length of five bytes": (b"\x10\xff\xff\xff\xff\x01", b"", "malformed"),
    "3.1.1": (b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a", b"\x20\x02\x00\x01", "unsupported_version"),
    "client id not utf-8": (
        b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x02\xff\xfe",
        mqtt5.ConnAckPacket(reason_code=mqtt5.ConnAckReasonCode.MALFORMED_PACKET).write(),
        "malformed",
    ),
    "second connect": (GOOD + GOOD, b"\xe0\x82", "protocol_error"),
    "packet too large": (GOOD + b"\x30\xff\x7f", b"\xe0\x95", "packet_too_large"),
    "five bytes of length": (GOOD + b"\x30\xff\xff\xff\xff\x01", b"\xe0\x81", "malformed"),
    "qos 3": (GOOD + b"\x36\x08\x00\x01a\x00\x01\x00xy", b"\xe0\x81", "malformed"),
    "packet id 0": (GOOD + b"\x32\x08\x00\x01a\x00\x00\x00xy", b"\xe0\x81", "malformed"),
    "puback for id 0": (GOOD + b"\x40\x02\x00\x00", b"\xe0\x82", "protocol_error"),
    "alias 0": (GOOD + b"\x30\x08\x00\x01a\x03\x23\x00\x00x", b"\xe0\x94", "topic_alias"),
    "wildcard": (GOOD + b"\x30\x05\x00\x01#\x00x", b"\xe0\x90", "topic_name"),
    "suback to a server": (GOOD + b"\x90\x04\x00\x01\x00\x00", b"\xe0\x82", "protocol_error"),
    "reserved type 0": (GOOD + b"\x00\x00", b"\xe0\x81", "malformed"),
    "more than the receive maximum": (
        GOOD + b"".join(b"\x32\x06\x00\x01a" + n.to_bytes(2) + b"\x00" for n in range(1, 5)),
        b"\xe0\x93",
        "receive_max",
    ),
}


@pytest.mark.parametrize("name", OFFENCES)
def test_an_offence_ends_the_connection_with_its_reason_code_and_nothing_else(name: str) -> None:
    sent, last, label = OFFENCES[name]

    async def story() -> None:
        house = House()
        house.connack = mqtt5.ConnAckPacket(receive_max=3)
        peer = _Raw()
        join(peer, house.server.listener.make())
        peer.transport.write(sent)
        await until(lambda: peer.is_lost)
        assert house.server.counters.refusals == {label: 1}
        assert house.publications == []
        assert house.server.listener.connections == 0
        if sent.startswith(GOOD):
            connack = house.connack.write()
            assert peer.got.startswith(connack)
            found = peer.got[len(connack) :]
            assert (found[:1], found[2:3]) == (last[:1], last[1:2])
            packet, used = mqtt5.read(memoryview(found))
            assert isinstance(packet, mqtt5.DisconnectPacket)
            assert used == len(found)
            assert isinstance(house.disconnected[0], RemoteError)
        else:
            assert peer.got == last
            assert house.connections == []

    asyncio.run(story())


def test_valid_packets_before_an_offence_are_delivered() -> None:
    async def story() -> None:
        house = House()
        peer = _Raw()
        join(peer, house.server.listener.make())
        peer.transport.write(GOOD + encode("t", b"good") + b"\x30\x05\x00\x01#\x00x" + encode("t", b"after"))
        await until(lambda: peer.is_lost)
        assert [p.payload for batch in house.publications for p in batch] == [b"good"]

    asyncio.run(story())


def test_every_strict_prefix_of_a_conversation_waits_or_ends_cleanly() -> None:
    async def story() -> None:
        talk = GOOD + encode("t/u", b"payload") + mqtt5.SubscribePacket(5, [mqtt5.TopicFilter("a")]).write()
        for cut in range(len(talk)):
            house = House()
            peer = _Raw()
            join(peer, house.server.listener.make())
            peer.transport.write(talk[:cut])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            peer.transport.close()
            await until(lambda house=house, peer=peer: peer.is_lost and not house.server.listener.connections)  # type: ignore[misc]
            assert house.server.counters.refusals == {}

    asyncio.run(story())


def test_every_bit_flip_of_a_conversation_is_survived() -> None:
    async def story() -> None:
        talk = GOOD + encode("t/u", b"payload", user_properties=[("k", "v")])
        for at in range(len(talk)):
            for bit in range(8):
                flipped = bytearray(talk)
                flipped[at] ^= 1 << bit
                house = House()
                house.decide = accept_anyone
                peer = _Raw()
                join(peer, house.server.listener.make())
                peer.transport.write(bytes(flipped))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                peer.transport.close()
                await until(lambda house=house, peer=peer: peer.is_lost and not house.server.listener.connections)  # type: ignore[misc]

    asyncio.run(story())


def test_a_connection_above_the_limit_takes_the_oldest_place_and_is_counted() -> None:
    async def story() -> None:
        house = House()
        peers = [_Raw() for _ in range(3)]
        for peer in peers:
            join(peer, house.server.listener.make())
        await until(lambda: peers[0].is_lost)
        assert house.server.counters.refusals == {"connections": 1}
        assert not peers[1].is_lost
        assert not peers[2].is_lost
        await house.server.stop()
        await until(lambda: peers[1].is_lost and peers[2].is_lost)

    asyncio.run(story())


def test_a_peer_without_a_connect_is_ended_at_the_deadline() -> None:
    async def story() -> None:
        house = House()
        house.server.listener.connect_deadline_s = 0.0
        peer = _Raw()
        join(peer, house.server.listener.make())
        await until(lambda: peer.is_lost)
        assert house.server.counters.refusals == {"connect_deadline": 1}
        assert peer.got == b""

    asyncio.run(story())
