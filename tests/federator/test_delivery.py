"""Deliveries to a host broker in memory, for a machine whose neighbour hands in runs."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import mqtt5
import pytest
from tests.protocol.net import Network

from hanse.federator.crossing import Crossing
from hanse.federator.delivery import Delivery
from hanse.federator.echoes import EchoMemory
from hanse.federator.gate import Gate
from hanse.federator.host import HostSession
from hanse.federator.journal import DeliveryJournal
from hanse.federator.retained import RetainedState
from hanse.federator.ring import DeliveredRing
from hanse.mqtt.client import ClientSettings
from hanse.mqtt.connection import Connection
from hanse.mqtt.memory import MemoryTransport, join
from hanse.mqtt.publication import encode
from hanse.protocol.effects import Acknowledge, Effect
from hanse.protocol.messages import HOST, Publication, Run
from hanse.protocol.packets import topic_of
from hanse.protocol.retained import Version
from hanse.protocol.retained.keeper import DUPLICATE
from hanse.protocol.retained.versions import FOUND
from hanse.protocol.settings import MANAGEMENT_GROUP

RECEIPT = 77


class Broker(asyncio.Protocol):
    """Takes publications, and acknowledges those of QoS 1 on request."""

    def __init__(self) -> None:
        self.transport: asyncio.WriteTransport | None = None
        self.taken: list[tuple[str, bytes, int]] = []
        self.unacknowledged: list[int] = []
        self.retained: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        while data:  # in memory packets come whole
            packet, used = mqtt5.read(memoryview(data))
            data = data[used:]
            if isinstance(packet, mqtt5.ConnectPacket):
                self._write(mqtt5.ConnAckPacket())
            elif isinstance(packet, mqtt5.PublishPacket):
                payload = bytes(packet.payload or b"")
                self.taken.append((packet.topic, payload, int(packet.qos)))
                if packet.retain:
                    self.retained.append(packet.topic)
                if packet.packet_id is not None:
                    self.unacknowledged.append(packet.packet_id)

    def acknowledge(self, count: int | None = None) -> None:
        done, self.unacknowledged = self.unacknowledged[:count], self.unacknowledged[count:] if count else []
        for packet_id in done:
            self._write(mqtt5.PubAckPacket(packet_id))

    def _write(self, packet: mqtt5.Packet) -> None:
        assert self.transport is not None
        self.transport.write(packet.write())


class Retained:
    """Decides by the topic, in the place of the keeper of retained state."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[int, ...]]] = []
        self.arrived: list[tuple[str, Version]] = []
        self.what_was_found: list[tuple[str, Version]] = []

    def arrive(self, publications: Sequence[tuple[str, Version, bytes]]) -> list[int | None]:
        self.arrived += [(topic, version) for topic, version, _ in publications]
        decisions = {"new": 7, "old": None, "same": DUPLICATE}
        return [decisions[topic.rpartition("/")[2]] for topic, _, _ in publications]

    def found(self, topic: str, version: Version, packet: bytes) -> None:
        assert topic_of(packet) == topic
        self.what_was_found.append((topic, version))

    def injected(self, numbers: Sequence[int]) -> None:
        self.told.append(("injected", tuple(numbers)))

    def refused(self, numbers: Sequence[int]) -> None:
        self.told.append(("refused", tuple(numbers)))

    def uncertain(self, numbers: Sequence[int]) -> None:
        self.told.append(("uncertain", tuple(numbers)))


class Scene:
    """Federator 1, whose clients want `a/#`; federator 0 hands in what its own publish."""

    def __init__(self, directory: Path, crossing: Crossing | None = None, **settings: Any) -> None:
        self.net = Network(2, [(0, 1)])
        self.net.subscribe(1, "a/#")
        self.net.run(6.0)
        self.machine = self.net.machines[1]
        self.broker = Broker()
        self.counters: Counter[str] = Counter()
        self.echoes = EchoMemory()
        self.ring = DeliveredRing(directory / "delivered", capacity=1024)
        self.effects: list[Effect] = []
        self.internal: list[Run] = []
        self.keeper: Retained | None = None
        self.is_connected = asyncio.Event()
        self.host = HostSession(
            ClientSettings("mqtt://memory", "hanse-1", **settings),
            on_publications=lambda _: None,
            on_internal=lambda _: None,
            on_state=lambda *_: self.is_connected.set(),
            on_credit=lambda: self.delivery.on_credit(),  # noqa: PLW0108 - it is made after the session
            journal=DeliveryJournal(directory / "journal"),
            ring=self.ring,
        )
        self.host.client._dial = self._dial
        self.delivery = Delivery(
            self.machine,
            self.host,
            gate=Gate(self.counters),
            crossing=crossing or Crossing(),
            echoes=self.echoes,
            ring=self.ring,
            counters=self.counters,
            clock=lambda: self.net.now,
            on_taken=lambda way, tokens: self._carry_out(self.machine.acknowledged(self.net.now, way, tokens)),
            take_internal=self.internal.append,
            retained=self._retained,
        )

    def _retained(self) -> RetainedState:
        assert self.keeper is not None, "nothing here is retained"
        return cast("RetainedState", self.keeper)

    async def _dial(self, make: Callable[[], Connection]) -> None:
        join(make(), self.broker)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        self.effects += effects

    def hand_in(self, *publications: tuple[str, bytes, int]) -> None:
        """Publish for clients of federator 0 in one read, and deliver the result."""
        packets = [Publication(topic, qos, encode(topic, payload, qos=qos)) for topic, payload, qos in publications]
        runs = self.net.machines[0].publish(self.net.now, packets, 5).frames[1]
        routed = self.machine.forward(self.net.now, 0, runs, RECEIPT)
        self._carry_out(routed.effects)
        self.delivery.deliver(routed.deliveries, routed.tokens.get(HOST, 0))

    def hand_in_stamped(self, *publications: tuple[str, bytes, int, bool], stamp: int = 1_000) -> None:
        packets = [
            Publication(topic, qos, encode(topic, payload, qos=qos, retain=is_retained))
            for topic, payload, qos, is_retained in publications
        ]
        runs = self.net.machines[0].publish(self.net.now, packets, 5, None, stamp).frames[1]
        routed = self.machine.forward(self.net.now, 0, runs, RECEIPT)
        self._carry_out(routed.effects)
        self.delivery.deliver(routed.deliveries, routed.tokens.get(HOST, 0))

    def measured(self, measure: str) -> int:
        return sum(row.publications for row in self.machine.accounts.rows() if row.measure == measure)

    @property
    def acknowledged(self) -> list[Effect]:
        return [effect for effect in self.effects if isinstance(effect, Acknowledge)]


def play(directory: Path, steps: Callable[[Scene], Awaitable[None]], **more: Any) -> None:
    async def all_steps() -> None:
        scene = Scene(directory, **more)
        await scene.host.client.start()
        await scene.is_connected.wait()
        await steps(scene)
        scene.host.client.abort()
        await scene.host.client.stop()

    asyncio.run(all_steps())


async def until(condition: Callable[[], object]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come about")


def test_a_neighbour_is_acknowledged_when_the_broker_has_all_of_its_batch(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        scene.hand_in(("a/x", b"1", 1), ("a/y", b"2", 1), ("a/z", b"3", 0))
        await until(lambda: len(scene.broker.taken) == 3)
        assert scene.acknowledged == []
        assert list(scene.ring.entries()) == []
        scene.broker.acknowledge()
        await until(lambda: scene.acknowledged)
        assert scene.acknowledged == [Acknowledge(0, (RECEIPT,))]
        assert sum(count for *_, count in scene.ring.entries()) == 2
        assert scene.counters["delivered"] == scene.measured("delivered") == 3

    play(tmp_path, steps)


def test_publications_wait_in_order_while_the_broker_has_no_room(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        for number in range(4):
            scene.hand_in((f"a/{number}", b"", 1))
        scene.delivery.deliver_own(encode("own", b"", qos=1), 1)
        expected = ["a/0", "a/1", "a/2", "a/3", "own"]
        for _ in expected:
            await until(lambda: scene.broker.unacknowledged)
            assert len(scene.broker.unacknowledged) == 1
            scene.broker.acknowledge()
        assert [topic for topic, _, _ in scene.broker.taken] == expected

    play(tmp_path, steps, held_packets_max=1)


def test_nothing_overtakes_waiting_batches(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        for number in range(5):
            scene.hand_in((f"a/{number}", b"", 1))
        await until(lambda: len(scene.broker.taken) == 4)
        scene.broker.acknowledge(1)
        await until(lambda: scene.host.client.unacknowledged == 3)  # room for one, and the waiting are not told yet
        scene.hand_in(("a/5", b"", 1))
        scene.broker.acknowledge()
        await until(lambda: len(scene.broker.taken) == 6)
        assert [topic for topic, _, _ in scene.broker.taken] == [f"a/{number}" for number in range(6)]

    play(tmp_path, steps, held_packets_max=4)


def test_what_may_not_enter_is_kept_out_and_counted_and_the_neighbour_is_acknowledged(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        scene.hand_in(("a/no", b"1", 1))
        assert scene.acknowledged == [Acknowledge(0, (RECEIPT,))]
        assert scene.measured("dropped:import") == 1
        scene.hand_in(("a/no", b"2", 0), ("a/yes", b"3", 0))
        await until(lambda: scene.broker.taken)
        assert scene.broker.taken == [("a/yes", b"3", 0)]
        assert scene.measured("dropped:import") == 2
        assert scene.counters["delivered"] == scene.measured("delivered") == 1

    play(tmp_path, steps, crossing=Crossing(import_deny=("a/no",)))


def test_what_no_broker_takes_stops_at_the_gate(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        scene.hand_in(("a/\x01", b"", 0), ("a/b", b"", 0))
        await until(lambda: scene.broker.taken)
        assert scene.broker.taken == [("a/b", b"", 0)]
        assert scene.counters["gate_unportable"] == 1

    play(tmp_path, steps)


def test_an_echo_from_a_joined_federator_is_cancelled_once(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        scene.echoes.expect_from(frozenset({0}), is_bridged=True)
        scene.delivery.deliver_own(encode("a/x", b"1"), 0)
        scene.hand_in(("a/x", b"1", 0))
        scene.hand_in(("a/x", b"1", 0))
        await until(lambda: len(scene.broker.taken) == 2)
        assert scene.counters["echoes_cancelled"] == scene.measured("dropped:echo") == 1

    play(tmp_path, steps)


def test_a_message_to_federators_reaches_no_broker(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        body = encode(MANAGEMENT_GROUP, b"{}", qos=1)
        told = Run(0, 1, 0, 1, 1, 1, (MANAGEMENT_GROUP,), body)
        telemetry = Run(0, 1, 1, 1, 0, 1, ("$hanse/telemetry/#",), encode("$hanse/telemetry/v1/x/0", b""))
        scene.delivery.deliver([told, telemetry], 0)
        await until(lambda: scene.broker.taken)
        assert scene.internal == [told]
        assert [topic for topic, _, _ in scene.broker.taken] == ["$hanse/telemetry/v1/x/0"]

    play(tmp_path, steps)


def test_the_journal_and_the_ring_name_what_was_delivered_where_a_crossing_leaves_something_out(tmp_path: Path) -> None:
    """The second and the fourth of five QoS 2 publications may not enter this broker."""

    async def steps(scene: Scene) -> None:
        names = ("yes", "no", "yes", "no", "yes")
        packets = [encode(name, b"%d" % number, qos=2) for number, name in enumerate(names)]
        scene.delivery.deliver([Run(8, 50, 10, 5, 2, 3, ("#",), b"".join(packets))], 1)
        assert sorted(message for message, _ in scene.host._exact.values()) == [(8, 50, 10), (8, 50, 12), (8, 50, 14)]
        assert scene.host.client.unacknowledged == 3
        scene.host.on_received([(number, number) for number in scene.host._exact])
        assert sorted(scene.ring.entries()) == [(8, 50, 10, 1), (8, 50, 12, 1), (8, 50, 14, 1)]

    play(tmp_path, steps, crossing=Crossing(import_deny=("no",)))


@pytest.mark.parametrize("qos", [0, 1])
def test_what_is_retained_is_published_as_its_version_decides(tmp_path: Path, qos: int) -> None:
    async def steps(scene: Scene) -> None:
        scene.keeper = Retained()
        scene.hand_in_stamped(
            ("a/new", b"1", qos, True),
            ("a/live", b"2", qos, False),
            ("a/old", b"3", qos, True),
            ("a/same", b"4", qos, True),
        )
        await until(lambda: len(scene.broker.taken) == (3 if qos else 4))
        fence = [] if qos else [("hanse/probe/self/retained", b"", 1)]
        sent = [("a/new", b"1", qos), ("a/live", b"2", qos), ("a/old", b"3", qos)]
        assert [one for one in scene.broker.taken if one not in fence] == sent
        assert scene.broker.retained == ["a/new"]
        assert scene.keeper.arrived == [
            ("a/new", Version(1_000, 0)),
            ("a/old", Version(1_002, 0)),
            ("a/same", Version(1_003, 0)),
        ]
        assert scene.measured("merged") == 1
        assert scene.keeper.told == []
        scene.broker.acknowledge()
        await until(lambda: scene.keeper is not None and scene.keeper.told)
        assert scene.keeper.told == [("injected", (7,))]
        assert scene.acknowledged == [Acknowledge(0, (RECEIPT,))]

    play(tmp_path, steps)


def test_what_a_look_found_elsewhere_is_not_delivered(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        scene.keeper = Retained()
        scene.hand_in_stamped(("a/new", b"1", 1, True), stamp=FOUND + 5)
        assert scene.keeper.what_was_found == [("a/new", Version(5, 0))]
        assert scene.acknowledged == [Acknowledge(0, (RECEIPT,))]
        assert scene.broker.taken == []

    play(tmp_path, steps)


def test_an_injection_of_qos_0_is_uncertain_when_the_connection_ends(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        scene.keeper = Retained()
        scene.delivery.inject(encode("a/new", b"1", retain=True), 7)
        await until(lambda: len(scene.broker.taken) == 2)
        scene.delivery.lose_host()
        assert scene.keeper.told == [("uncertain", (7,))]
        scene.broker.acknowledge()
        for _ in range(20):
            await asyncio.sleep(0)
        assert scene.keeper.told == [("uncertain", (7,))]

    play(tmp_path, steps)


def test_an_injection_that_the_host_refuses_gets_that_outcome(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        scene.keeper = Retained()
        scene.delivery.inject(encode("a/new", b"1", qos=1, retain=True), 7)
        await until(lambda: scene.broker.unacknowledged)
        (packet_id,) = scene.broker.unacknowledged
        scene.broker._write(mqtt5.PubAckPacket(packet_id, reason_code=mqtt5.PubAckReasonCode.NOT_AUTHORIZED))
        await until(lambda: scene.keeper is not None and scene.keeper.told)
        assert scene.keeper.told == [("refused", (7,))]

    play(tmp_path, steps)
