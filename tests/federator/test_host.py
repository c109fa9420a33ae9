"""QoS 2 to the host broker over restarts of the federator: two processes, one journal, a broker in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import mqtt5
import pytest

from hanse.errors import HanseError, Unavailable
from hanse.federator.host import HostSession
from hanse.federator.journal import DeliveryJournal
from hanse.federator.obligations import Obligation
from hanse.federator.ring import DeliveredRing
from hanse.mqtt.client import Client, ClientSettings
from hanse.mqtt.connection import Connection
from hanse.mqtt.memory import MemoryTransport, join
from hanse.mqtt.publication import Publication, encode
from hanse.protocol.messages import Run

ORIGIN, EPOCH = 3, 50


def run_of(first: int, *payloads: bytes, qos: int = 2) -> Run:
    body = b"".join(encode("t", payload, qos=qos) for payload in payloads)
    return Run(ORIGIN, EPOCH, first, len(payloads), qos, 2, ("g",), body)


async def until(condition: Callable[[], object]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come about")


class Broker(asyncio.Protocol):
    """Host broker with QoS 2 by packet identifier (MQTT 5, 4.3.3). It sends only what the test asks for."""

    def __init__(self) -> None:
        self.transport: asyncio.WriteTransport | None = None
        self.has_session = False
        self.answers_publish = True
        self.answers_release = True
        self.refuses = 0
        # Identifiers of unreleased packets that it has; publications passed on to its clients; packets received.
        self.unreleased: set[int] = set()
        self.passed_on: list[bytes] = []
        self.heard: list[tuple[str, int, bool]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport

    def write(self, packet: mqtt5.Packet) -> None:
        assert self.transport is not None
        self.transport.write(packet.write())

    def data_received(self, data: bytes) -> None:
        while data:  # in memory packets come whole
            packet, used = mqtt5.read(memoryview(data))
            data = data[used:]
            self._take(packet)

    def _take(self, packet: Any) -> None:
        if isinstance(packet, mqtt5.ConnectPacket):
            self.write(mqtt5.ConnAckPacket(session_present=self.has_session))
            self.has_session = True
        elif isinstance(packet, mqtt5.PublishPacket):
            assert packet.packet_id is not None
            self.heard.append((bytes(packet.payload or b"").decode(), packet.packet_id, packet.duplicate))
            if packet.packet_id not in self.unreleased and not self.refuses:
                self.unreleased.add(packet.packet_id)
                self.passed_on.append(bytes(packet.payload or b""))
            if self.refuses:
                code = mqtt5.PubRecReasonCode(self.refuses)
                self.write(mqtt5.PubRecPacket(packet.packet_id, reason_code=code))
            elif self.answers_publish:
                self.write(mqtt5.PubRecPacket(packet.packet_id))
        elif isinstance(packet, mqtt5.PubRelPacket):
            self.heard.append(("PUBREL", packet.packet_id, False))
            self.unreleased.discard(packet.packet_id)
            if self.answers_release:
                self.write(mqtt5.PubCompPacket(packet.packet_id))

    def forget(self) -> None:
        """Lose the session."""
        self.has_session = False
        self.unreleased.clear()


class Process:
    """One run of the federator's session, with its journal and ring."""

    def __init__(self, directory: Path, broker: Broker, **settings: Any) -> None:
        self.broker = broker
        self.journal = DeliveryJournal(directory / "journal")
        self.ring = DeliveredRing(directory / "delivered", capacity=1024)
        self.states: list[bool] = []
        self.credits = 0
        self.released: list[int] = []
        self.forgotten = 0
        self.session = HostSession(
            ClientSettings(url="mqtt://memory", client_id="hanse-1", **settings),
            on_publications=self._nothing,
            on_internal=self._nothing,
            on_state=self._note_state,
            on_credit=self._note_credit,
            journal=self.journal,
            ring=self.ring,
            on_forgotten=self._note_forgotten,
        )
        self.client: Client = self.session.client
        self.client._dial = self._dial

    async def _dial(self, make: Callable[[], Connection]) -> None:
        join(make(), self.broker)

    def _nothing(self, publications: list[Publication]) -> None:
        assert not publications

    def _note_state(self, is_up: bool, _error: HanseError | None) -> None:
        self.states.append(is_up)

    def _note_forgotten(self) -> None:
        self.forgotten += 1

    def _note_credit(self) -> None:
        self.credits += 1

    async def connect(self) -> None:
        await self.client.start()
        await until(lambda: self.states)

    def deliver(self, run: Run) -> None:
        obligation = Obligation(lambda: self.released.append(run.first))
        try:
            self.session.deliver_run(run, obligation)
        finally:
            obligation.settle()

    def delivered(self) -> list[tuple[int, int]]:
        return [(first, count) for _, _, first, count in self.ring.entries()]

    async def die(self) -> None:
        """End without a packet to the broker."""
        self.client.abort()
        await self.client.stop()
        self.journal.close()
        self.ring.close()


Steps = Callable[[Callable[..., Process], Broker], Awaitable[None]]


def lives(directory: Path, steps: Steps) -> None:
    async def all_steps() -> None:
        broker = Broker()
        await steps(lambda **settings: Process(directory, broker, **settings), broker)

    asyncio.run(all_steps())


# --- one run ---------------------------------------------------------------------------------------------------------


def test_a_run_is_delivered_when_the_broker_has_completed_all_of_it(tmp_path: Path) -> None:
    async def steps(start: Callable[..., Process], broker: Broker) -> None:
        process = start()
        await process.connect()
        broker.answers_release = False
        process.deliver(run_of(0, b"a", b"b"))
        await until(lambda: broker.heard[-1:] == [("PUBREL", 2, False)])
        assert process.delivered() == [(0, 2)]  # from PUBREC on the broker is responsible
        assert [is_released for _, _, is_released in process.journal.open()] == [True, True]
        assert process.released == []
        broker.write(mqtt5.PubCompPacket(1))
        broker.write(mqtt5.PubCompPacket(2))
        await until(lambda: process.released)
        assert len(process.journal) == 0
        assert process.session._exact == {}
        await process.die()

    lives(tmp_path, steps)


def test_the_journal_contains_a_message_before_it_leaves(tmp_path: Path) -> None:
    async def steps(start: Callable[..., Process], broker: Broker) -> None:
        process = start()
        await process.connect()
        broker.answers_publish = False
        process.deliver(run_of(7, b"a"))
        assert process.journal.open() == [(1, (ORIGIN, EPOCH, 7), False)]
        assert broker.heard == []
        assert process.delivered() == []
        await process.die()

    lives(tmp_path, steps)


def test_the_journal_records_a_release_before_the_ring_does(tmp_path: Path) -> None:
    async def steps(start: Callable[..., Process], broker: Broker) -> None:
        process = start()
        await process.connect()
        seen: list[list[bool]] = []
        add = process.ring.add

        def look_and_add(origin: int, epoch: int, first: int, count: int) -> None:
            seen.append([is_released for _, _, is_released in process.journal.open()])
            add(origin, epoch, first, count)

        process.ring.add = look_and_add  # type: ignore[method-assign]
        broker.answers_release = False
        process.deliver(run_of(7, b"a"))
        await until(lambda: seen)
        assert seen == [[True]]
        await process.die()

    lives(tmp_path, steps)


def test_a_released_message_that_is_not_yet_in_the_ring_is_delivered_once(tmp_path: Path) -> None:
    async def steps(start: Callable[..., Process], broker: Broker) -> None:
        killed = DeliveryJournal(tmp_path / "journal")
        killed.assign(1, ORIGIN, EPOCH, 7)
        killed.release(1)
        killed.close()
        broker.has_session = True
        broker.unreleased.add(1)
        process = start()
        assert process.delivered() == [(7, 1)]  # before the protocol asks about the past
        await process.connect()
        await until(lambda: len(process.journal) == 0)
        assert broker.heard == [("PUBREL", 1, False)]
        await process.die()

    lives(tmp_path, steps)


def test_qos_1_needs_no_journal(tmp_path: Path) -> None:
    async def steps(start: Callable[..., Process], broker: Broker) -> None:
        process = start()
        await process.connect()
        broker.answers_publish = False
        process.deliver(run_of(0, b"a", qos=1))
        await until(lambda: broker.heard)
        assert (len(process.journal), process.session._exact) == (0, {})
        broker.write(mqtt5.PubAckPacket(1))
        await until(lambda: process.released == [0])
        await process.die()

    lives(tmp_path, steps)


def test_a_message_that_the_broker_refuses_is_no_longer_owed(tmp_path: Path) -> None:
    async def steps(start: Callable[..., Process], broker: Broker) -> None:
        process = start()
        await process.connect()
        broker.refuses = 0x87
        process.deliver(run_of(0, b"a"))
        await until(lambda: process.released == [0])
        assert (len(process.journal), process.session._exact, process.delivered()) == (0, {}, [])
        await process.die()

    lives(tmp_path, steps)


def test_a_run_without_capacity_is_refused_as_a_whole_and_later_capacity_is_announced(tmp_path: Path) -> None:
    async def steps(start: Callable[..., Process], broker: Broker) -> None:
        process = start(held_packets_max=2)
        await process.connect()
        broker.answers_publish = False
        process.deliver(run_of(0, b"a"))
        process.deliver(run_of(1, b"b", b"c", b"d"))  # one run may exceed the limit, as a whole
        with pytest.raises(Unavailable, match="Wait for credit"):
            process.deliver(run_of(4, b"e", b"f"))
        await until(lambda: len(broker.heard) == 4)
        assert len(process.journal) == len(process.session._exact) == 4
        assert process.credits == 0
        for packet_id in (1, 2, 3, 4):
            broker.write(mqtt5.PubRecPacket(packet_id))
        await until(lambda: process.credits == 1)
        process.deliver(run_of(4, b"e", b"f"))
        broker.write(mqtt5.PubRecPacket(5))
        broker.write(mqtt5.PubRecPacket(6))
        await until(lambda: 4 in process.released[1:])
        assert broker.passed_on == [b"a", b"b", b"c", b"d", b"e", b"f"]
        await process.die()

    lives(tmp_path, steps)


# --- the next run ----------------------------------------------------------------------------------------------------


def test_unreleased_messages_at_the_broker_are_sent_again_under_their_identifiers(tmp_path: Path) -> None:
    """The broker recognises it by that, and passes it on once."""

    async def steps(start: Callable[..., Process], broker: Broker) -> None:
        former = start()
        await former.connect()
        broker.answers_publish = False
        former.deliver(run_of(0, b"a", b"b"))
        await until(lambda: len(broker.heard) == 2)
        await former.die()
        broker.answers_publish = True
        broker.heard.clear()
        process = start()
        await process.connect()
        assert broker.heard == []  # the holder of custody sends the packets again
        # Beside other packets, and in another order, than before.
        process.deliver(run_of(9, b"new"))
        process.deliver(run_of(1, b"b", b"c"))
        process.deliver(run_of(0, b"a"))
        await until(lambda: len(process.released) == 3)
        publishes = [heard for heard in broker.heard if heard[0] != "PUBREL"]
        assert publishes == [("new", 3, False), ("b", 2, True), ("c", 4, False), ("a", 1, True)]
        assert broker.passed_on == [b"a", b"b", b"new", b"c"]
        assert (len(process.journal), process.session._exact, process.session._reserved) == (0, {}, set())
        assert sorted(process.delivered()) == [(0, 1), (1, 2), (9, 1)]
        await process.die()

    lives(tmp_path, steps)


def test_only_pubrel_is_sent_again_for_released_messages(tmp_path: Path) -> None:
    async def steps(start: Callable[..., Process], broker: Broker) -> None:
        former = start()
        await former.connect()
        broker.answers_release = False
        former.deliver(run_of(0, b"a", b"b"))
        await until(lambda: broker.heard[-1:] == [("PUBREL", 2, False)])
        await former.die()
        broker.heard.clear()
        broker.answers_release = True
        process = start()
        assert set(process.delivered()) == {(0, 2)}  # so the protocol delivers neither again
        await process.connect()
        await until(lambda: len(process.journal) == 0)
        assert broker.heard == [("PUBREL", 1, False), ("PUBREL", 2, False)]
        assert broker.passed_on == [b"a", b"b"]
        assert process.session._exact == {}
        await process.die()

    lives(tmp_path, steps)


def test_repeated_messages_wait_until_the_broker_is_back(tmp_path: Path) -> None:
    async def steps(start: Callable[..., Process], broker: Broker) -> None:
        former = start()
        await former.connect()
        broker.answers_publish = False
        former.deliver(run_of(0, b"a"))
        await until(lambda: broker.heard)
        await former.die()
        broker.answers_publish = True
        process = start()
        process.deliver(run_of(0, b"a", b"b"))
        await process.connect()
        await until(lambda: process.released == [0])
        assert broker.passed_on == [b"a", b"b"]
        await process.die()

    lives(tmp_path, steps)


def test_only_the_loss_of_the_session_is_reported(tmp_path: Path) -> None:
    async def steps(start: Callable[..., Process], broker: Broker) -> None:
        told = []
        for is_lost in (True, False, True):
            if is_lost:
                broker.forget()
            process = start()
            await process.connect()
            told.append(process.forgotten)
            await process.die()
        assert told == [1, 0, 1]

    lives(tmp_path, steps)


def test_a_broker_that_lost_the_session_gets_repeated_messages_as_new(tmp_path: Path) -> None:
    async def steps(start: Callable[..., Process], broker: Broker) -> None:
        former = start()
        await former.connect()
        broker.answers_publish = False
        former.deliver(run_of(0, b"a"))
        former.deliver(run_of(1, b"b"))
        await until(lambda: len(broker.heard) == 2)
        broker.answers_release = False
        broker.write(mqtt5.PubRecPacket(2))
        await until(lambda: broker.heard[-1][0] == "PUBREL")
        await former.die()
        broker.forget()
        broker.heard.clear()
        broker.passed_on.clear()
        broker.answers_publish = broker.answers_release = True
        process = start()
        process.deliver(run_of(0, b"a"))
        await process.connect()
        await until(lambda: process.released == [0])
        assert broker.passed_on == [b"a"]
        assert ("PUBREL", 2, False) not in broker.heard
        # It is unknown whether released packets were passed on. They count as delivered, and nothing is owed for them.
        assert (len(process.journal), process.session._exact) == (0, {})
        await process.die()

    lives(tmp_path, steps)


def test_a_third_run_finishes_the_messages_of_the_second(tmp_path: Path) -> None:
    async def steps(start: Callable[..., Process], broker: Broker) -> None:
        broker.answers_publish = False
        for _ in range(2):
            process = start()
            await process.connect()
            process.deliver(run_of(0, b"a"))
            await until(lambda: broker.heard)
            broker.heard.clear()
            await process.die()
        broker.answers_publish = True
        third = start()
        await third.connect()
        third.deliver(run_of(0, b"a"))
        await until(lambda: third.released == [0])
        assert broker.heard == [("a", 1, True), ("PUBREL", 1, False)]
        assert broker.passed_on == [b"a"]
        await third.die()

    lives(tmp_path, steps)
