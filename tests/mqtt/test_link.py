"""Links of two federators against each other, in memory."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import mqtt5
import pytest

from hanse.errors import HanseError, LocalError, Unavailable
from hanse.mqtt.backoff import BackoffSettings
from hanse.mqtt.connection import Connection
from hanse.mqtt.endpoints import ID_PROPERTY, LinkDialler, LinkGreeting, LinkListener, LinkListenerHandler
from hanse.mqtt.limits import LINK_TRANSPORT_BYTES, LINK_WINDOW, PACKET_BYTES_MAX
from hanse.mqtt.link import Frame, Link
from hanse.mqtt.memory import MemoryTransport, join


async def until(condition: Callable[[], object]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition did not become true in time")


class Federator(LinkListenerHandler):
    def __init__(self) -> None:
        self.links: list[Link] = []
        self.reads: list[list[Frame]] = []
        self.acknowledged: list[int] = []
        self.closed: list[tuple[HanseError | None, list[int]]] = []
        self.credits = 0
        self.refusal: tuple[int, str] | None = None
        self.acks_at_once = True

    @property
    def link(self) -> Link:
        return self.links[-1]

    @property
    def frames(self) -> list[Frame]:
        return [frame for read in self.reads for frame in read]

    def on_greeting(self, greeting: LinkGreeting) -> None:
        if self.refusal is not None:
            greeting.refuse(*self.refusal)
        else:
            greeting.accept({"epoch": "7", "heard": greeting.peer.get("epoch", "")})

    def on_link(self, link: Link) -> None:
        self.links.append(link)

    def on_frames(self, link: Link, frames: list[Frame]) -> None:
        self.reads.append(frames)
        if self.acks_at_once:
            link.ack([frame.receipt for frame in frames])

    def on_acknowledged(self, _link: Link, numbers: list[int]) -> None:
        self.acknowledged += numbers

    def on_credit(self, _link: Link) -> None:
        self.credits += 1

    def on_closed(self, _link: Link, error: HanseError | None, unacknowledged: list[int]) -> None:
        self.closed.append((error, unacknowledged))


class Scene:
    def __init__(self) -> None:
        self.here = Federator()
        self.there = Federator()
        self.failures: list[HanseError] = []
        self.wires: list[tuple[MemoryTransport, MemoryTransport]] = []
        self.listener = LinkListener("two", self.there)
        self.dialler = LinkDialler(
            "mqtt://memory",
            "one",
            self.here,
            properties=lambda: {"epoch": "3", "federation": "test"},
            on_failed=self.failures.append,
            keep_alive_s=0,
            backoff=BackoffSettings(first_s=1e-9, max_s=1e-9),
            jitter=lambda: 0.0,
            dial=self._dial,
        )

    async def _dial(self, make: Callable[[], Connection]) -> None:
        self.wires.append(join(make(), self.listener.listener.make()))

    async def up(self) -> None:
        self.dialler.start()
        await until(lambda: self.here.links and self.there.links)


def play(story: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def with_an_end() -> None:
        scene = Scene()
        try:
            await story(scene)
        finally:
            await scene.dialler.stop()

    asyncio.run(asyncio.wait_for(with_an_end(), 20))


def test_the_handshake_tells_ids_and_properties_both_ways() -> None:
    async def story(scene: Scene) -> None:
        await scene.up()
        assert (scene.here.link.peer_id, scene.here.link.peer) == ("two", {"epoch": "7", "heard": "3"})
        assert scene.there.link.peer_id == "one"
        assert scene.there.link.peer == {"epoch": "3", "federation": "test"}
        assert scene.here.link.is_dialled
        assert not scene.there.link.is_dialled

    play(story)


def test_both_sides_send_frames_and_learn_of_their_arrival() -> None:
    async def story(scene: Scene) -> None:
        await scene.up()
        for sender, receiver in ((scene.here, scene.there), (scene.there, scene.here)):
            payloads = [bytes([n]) * n * 10 for n in range(100)]
            numbers = [sender.link.send("hanse/data", payload) for payload in payloads]
            await until(lambda sender=sender: len(sender.acknowledged) == 100)  # type: ignore[misc]
            assert [frame.payload for frame in receiver.frames] == payloads
            assert {frame.topic for frame in receiver.frames} == {"hanse/data"}
            assert sender.acknowledged == numbers == list(range(1, 101))
            assert len(receiver.reads) == 1, "one list per read"
            assert sender.link.unacknowledged == 0

    play(story)


def test_a_separate_body_follows_its_payload_even_if_it_had_to_wait() -> None:
    async def story(scene: Scene) -> None:
        await scene.up()
        link = scene.here.link
        assert link._connection is not None
        link.send("d", b"at once ", body=bytes(9_000))
        link._connection.pause_writing()
        link.send("d", b"queued ", body=bytes(9_000))
        link.send("d", bytes(2_000), body=b"short")
        assert link.queued_bytes > 11_000
        link._connection.resume_writing()
        await until(lambda: len(scene.there.frames) == 3)
        found = [frame.payload for frame in scene.there.frames]
        assert found == [b"at once " + bytes(9_000), b"queued " + bytes(9_000), bytes(2_000) + b"short"]
        with pytest.raises(LocalError, match="Split it"):
            link.send("d", b"", body=bytes(PACKET_BYTES_MAX))

    play(story)


def test_the_receiver_may_acknowledge_in_any_order() -> None:
    async def story(scene: Scene) -> None:
        await scene.up()
        scene.there.acks_at_once = False
        numbers = [scene.here.link.send("d", str(n).encode()) for n in range(3)]
        await until(lambda: len(scene.there.frames) == 3)
        assert scene.here.acknowledged == []
        receipts = [frame.receipt for frame in scene.there.frames]
        scene.there.link.ack([receipts[2], receipts[0]])
        await until(lambda: len(scene.here.acknowledged) == 2)
        assert scene.here.acknowledged == [numbers[2], numbers[0]]
        scene.there.link.ack([receipts[0]])
        assert scene.listener.counters.refusals == {"stale_receipt": 1}

    play(story)


def test_qos_0_frames_need_no_acknowledgement() -> None:
    async def story(scene: Scene) -> None:
        await scene.up()
        assert scene.here.link.send("d", b"x", qos=0) == 0
        await until(lambda: scene.there.frames)
        assert [(one.topic, one.payload, one.receipt) for one in scene.there.frames] == [("d", b"x", 0)]
        assert scene.here.link.unacknowledged == 0

    play(story)


def test_control_overtakes_megabytes_of_data() -> None:
    async def story(scene: Scene) -> None:
        await scene.up()
        wire = scene.wires[-1][0]
        wire.is_held = True
        for _ in range(64):
            scene.here.link.send("data", bytes(128 * 1024))
        for _ in range(5):
            await asyncio.sleep(0)
        assert wire.get_write_buffer_size() < 512 * 1024
        number = scene.here.link.send("control", b"now", control=True)
        await asyncio.sleep(0)
        assert scene.here.link.queued_bytes > 7 * 1024 * 1024
        while wire.is_held or len(scene.there.frames) < 65:
            wire.is_held = False
            wire.deliver()
            scene.here.link.on_writable()
            await asyncio.sleep(0)
        topics = [frame.topic for frame in scene.there.frames]
        assert topics.index("control") <= 4
        await until(lambda: len(scene.here.acknowledged) == 65)
        assert number in scene.here.acknowledged

    play(story)


def test_data_that_fills_the_window_leaves_capacity_for_control() -> None:
    async def story(scene: Scene) -> None:
        await scene.up()
        scene.there.acks_at_once = False
        for _ in range(LINK_WINDOW + 10):
            scene.here.link.send("data", b"")
        await until(lambda: len(scene.there.frames) == LINK_WINDOW - 256)
        scene.here.link.send("control", b"", control=True)
        await until(lambda: any(frame.topic == "control" for frame in scene.there.frames))
        assert len(scene.there.frames) == LINK_WINDOW - 256 + 1
        scene.there.link.ack([frame.receipt for frame in scene.there.frames])
        await until(lambda: len(scene.there.frames) == LINK_WINDOW + 11)

    play(story)


def test_a_full_queue_refuses_and_credit_comes_back() -> None:
    async def story(scene: Scene) -> None:
        await scene.up()
        link = scene.here.link
        link._data_bytes_max = 1000
        assert link._connection is not None
        link._connection.pause_writing()
        link.send("d", bytes(900))
        with pytest.raises(Unavailable, match="credit"):
            link.send("d", bytes(200))
        assert link.credit_bytes < 100
        assert scene.dialler.counters.refusals == {"link_data_full": 1}
        link._connection.resume_writing()
        await until(lambda: scene.here.credits == 1)
        assert link.credit_bytes == 1000
        link.send("d", bytes(200))

    play(story)


def test_a_frame_above_the_peers_limit_is_a_local_error() -> None:
    async def story(scene: Scene) -> None:
        await scene.up()
        with pytest.raises(LocalError, match="Split it"):
            scene.here.link.send("d", bytes(17 * 1024 * 1024))
        with pytest.raises(LocalError, match="plain name"):
            scene.here.link.send("d/#", b"")

    play(story)


def test_a_cut_link_names_what_is_unknown_and_is_dialled_again() -> None:
    async def story(scene: Scene) -> None:
        await scene.up()
        scene.there.acks_at_once = False
        first = scene.here.link
        numbers = [first.send("d", str(n).encode()) for n in range(4)]
        await until(lambda: len(scene.there.frames) == 4)
        scene.there.link.ack([scene.there.frames[1].receipt])
        await until(lambda: scene.here.acknowledged)
        scene.wires[-1][0].abort()
        await until(lambda: scene.here.closed)
        error, unacknowledged = scene.here.closed[0]
        assert isinstance(error, Unavailable)
        assert unacknowledged == [numbers[0], numbers[2], numbers[3]]
        assert not first.is_open
        with pytest.raises(Unavailable, match="has ended"):
            first.send("d", b"")
        await until(lambda: len(scene.here.links) == 2 and len(scene.there.links) == 2)
        assert scene.here.link.send("d", b"again") == 1

    play(story)


def test_a_refused_link_says_why_and_is_tried_again() -> None:
    async def story(scene: Scene) -> None:
        scene.there.refusal = (0x87, "the token has expired")
        scene.dialler.start()
        for _ in range(50_000):
            if len(scene.failures) >= 2:
                break
            await asyncio.sleep(0)
        assert "the token has expired" in str(scene.failures[0])
        scene.there.refusal = None
        for _ in range(50_000):
            if scene.here.links:
                break
            await asyncio.sleep(0)
        assert scene.here.links

    play(story)


def test_an_orderly_close_of_a_link_is_reported_on_both_sides() -> None:
    async def story(scene: Scene) -> None:
        await scene.up()
        goodbye = scene.there.link
        scene.there.link.close()
        await until(lambda: scene.here.closed and scene.there.closed)
        assert scene.here.closed[0] == (None, [])
        assert scene.there.closed[0] == (None, [])
        assert not goodbye.is_open

    play(story)


def test_the_reason_for_closing_is_reported() -> None:
    async def story(scene: Scene) -> None:
        await scene.up()
        scene.there.link.close(0x98, "duplicate id")
        await until(lambda: scene.here.closed)
        assert "duplicate id" in str(scene.here.closed[0][0])

    play(story)


def test_a_peer_without_an_id_is_not_a_federator() -> None:
    async def story(scene: Scene) -> None:
        class Broker(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                transport.write(mqtt5.ConnAckPacket().write())

        async def dial(make: Callable[[], Connection]) -> None:
            join(make(), Broker())

        scene.dialler._dial = dial
        scene.dialler.start()
        await until(lambda: scene.failures)
        assert "is not a federator" in str(scene.failures[0])

    play(story)


HELLO = mqtt5.ConnectPacket("one", user_properties=[("epoch", "1")], receive_max=100).write()
OFFENCES = {
    "attack_no_id": (mqtt5.ConnectPacket("").write(), 0x85),
    "attack_property_twice": (mqtt5.ConnectPacket("x", user_properties=[("a", "1"), ("a", "2")]).write(), 0x85),
    "subscribe": (HELLO + mqtt5.SubscribePacket(1, [mqtt5.TopicFilter("#")]).write(), 0x82),
    "qos 2": (HELLO + b"\x34\x06\x00\x01d\x00\x01\x00", 0x82),
    "properties": (HELLO + b"\x30\x06\x00\x01d\x02\x01\x01", 0x82),
    "id 0": (HELLO + b"\x32\x06\x00\x01d\x00\x00\x00", 0x82),
    "id in use": (HELLO + b"\x32\x06\x00\x01d\x00\x01\x00" * 2, 0x82),
    "wildcard": (HELLO + b"\x30\x04\x00\x01#\x00", 0x90),
    "empty topic": (HELLO + b"\x30\x03\x00\x00\x00", 0x90),
    "not utf-8": (HELLO + b"\x30\x04\x00\x01\xff\x00", 0x81),
    "cut off": (HELLO + b"\x30\x02\x00\x09", 0x81),
    "pingresp from the dialler": (HELLO + b"\xd0\x00", 0x82),
    "too many unacknowledged": (
        HELLO + b"".join(b"\x32\x06\x00\x01d" + n.to_bytes(2) + b"\x00" for n in range(1, LINK_WINDOW + 2)),
        0x93,
    ),
}


@pytest.mark.parametrize("name", OFFENCES)
def test_an_offence_on_a_link_ends_it_with_its_reason_code(name: str) -> None:
    sent, code = OFFENCES[name]

    class Raw(asyncio.Protocol):
        got = b""
        is_lost = False

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(sent)

        def data_received(self, data: bytes) -> None:
            self.got += data

        def connection_lost(self, _error: Exception | None) -> None:
            self.is_lost = True

    async def story() -> None:
        federator = Federator()
        federator.acks_at_once = False
        listener = LinkListener("two", federator)
        peer = Raw()
        join(peer, listener.listener.make())
        await until(lambda: peer.is_lost)
        packet, used = mqtt5.read(memoryview(peer.got))
        assert isinstance(packet, mqtt5.ConnAckPacket)
        if sent.startswith(HELLO):
            assert dict(packet.user_properties)[ID_PROPERTY] == "two"
            packet, _ = mqtt5.read(memoryview(peer.got[used:]))
            assert isinstance(packet, mqtt5.DisconnectPacket)
            assert sum(listener.counters.refusals.values()) == 1
            assert len(federator.closed) == 1
        assert int(packet.reason_code) == code

    asyncio.run(story())


def test_the_listener_answers_pings_and_survives_an_unknown_puback() -> None:
    class Raw(asyncio.Protocol):
        got = b""
        transport: asyncio.Transport

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport
            transport.write(HELLO + b"\xc0\x00" + b"\x40\x02\x00\x09")

        def data_received(self, data: bytes) -> None:
            self.got += data

    async def story() -> None:
        federator = Federator()
        listener = LinkListener("two", federator)
        peer = Raw()
        join(peer, listener.listener.make())
        await until(lambda: peer.got.endswith(b"\xd0\x00"))
        assert listener.counters.refusals == {"unknown_acknowledgement": 1}
        assert federator.link.is_open
        peer.transport.abort()
        await until(lambda: federator.closed)

    asyncio.run(story())


def test_an_unreachable_peer_and_a_silent_one_are_distinguished() -> None:
    async def story() -> None:
        failures: list[HanseError] = []

        async def nobody(_make: Callable[[], Connection]) -> None:
            raise ConnectionRefusedError(111, "Connection refused")

        async def mute(make: Callable[[], Connection]) -> None:
            join(make(), asyncio.Protocol())

        for dial in (nobody, mute):
            dialler = LinkDialler(
                "mqtt://memory", "one", Federator(), on_failed=failures.append, connect_timeout_s=0.0, dial=dial
            )
            if dial is nobody:
                dialler._connect_timeout_s = 5.0
            dialler.start()
            count = len(failures)
            await until(lambda count=count: len(failures) > count)  # type: ignore[misc]
            await dialler.stop()
        assert "cannot be reached: Connection refused" in str(failures[0])
        assert "did not answer within 0.0 s" in str(failures[1])

    asyncio.run(story())


def test_a_full_control_queue_refuses_as_well() -> None:
    async def story(scene: Scene) -> None:
        await scene.up()
        scene.wires[-1][0].is_held = True
        scene.here.link.send("d", bytes(LINK_TRANSPORT_BYTES))
        scene.here.link.send("control", bytes(4_000_000), control=True)
        with pytest.raises(Unavailable, match="of control wait"):
            scene.here.link.send("control", bytes(400_000), control=True)
        assert scene.dialler.counters.refusals == {"link_control_full": 1}
        scene.here.link.abort()
        await until(lambda: scene.here.closed)

    play(story)
