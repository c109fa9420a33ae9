"""Clients of a real gateway when real brokers die, hang or are drained. No federators: the replay has its own tests."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.gateway import packets as p
from tests.gateway.placing import name_at
from tests.gateways import Gateway, RawClient, wait_until

from hanse.gateway.session.publication import read_publish

pytestmark = pytest.mark.processes

BROKERS = ("a", "b")


class Scene:
    """Two brokers and a gateway; `client` gives a client at broker `a`."""

    def __init__(self, stack: ExitStack, directory: Path, *words: str) -> None:
        self.stack = stack
        self.brokers = {name: stack.enter_context(Mosquitto()) for name in BROKERS}
        urls = [f"{name}=mqtt://127.0.0.1:{one.port}" for name, one in self.brokers.items()]
        # A returned broker gets its clients back slowly enough for the test to end first.
        more = ("--health-timeout", "500ms", *(words or ("--drain-rate", "0.1")))
        self.gateway = stack.enter_context(Gateway(directory, *urls, words=more))
        self._count = 0
        # The id of the last client.
        self.name = ""

    def client(self, version: int = 5, **more: object) -> RawClient:
        self._count += 1
        name = self.name = name_at("a", BROKERS, f"c{self._count}x")
        made = self.stack.enter_context(RawClient(self.gateway.port))
        made.send(p.connect(version, name.encode(), **more).packet)  # type: ignore[arg-type]
        accepted = made.packet()
        assert (accepted[0], accepted[3]) == (0x20, 0)
        return made

    def direct(self, name: str) -> RawClient:
        """Return a client of a broker itself."""
        made = self.stack.enter_context(RawClient(self.brokers[name].port))
        made.send(p.connect(4, b"direct").packet)
        assert made.packet() == p.connack(4)
        return made

    def moved(self) -> float:
        return self.gateway.metric('hanse_gateway_moved_total{reason="broker_down"}')


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def subscribe(client: RawClient, version: int, *filters: tuple[bytes, int]) -> None:
    client.send(p.subscribe(1, *filters, version=version))
    assert client.packet()[0] == 0x90


def read_until(client: RawClient, last: bytes, version: int) -> list[bytes]:
    """Return the payloads up to a last one; finish every exchange."""
    got: list[bytes] = []
    begun: set[int] = set()
    while begun or not got or got[-1] != last:
        found = client.packet()
        assert found, f"the client was closed after {got}"
        if found[0] & 0xF0 == 0x30:
            publication = read_publish(found, version)
            got.append(publication.payload)
            if publication.qos == 1:
                client.send(p.ack(0x40, publication.packet_id))
            elif publication.qos == 2:
                begun.add(publication.packet_id)
                client.send(p.ack(0x50, publication.packet_id))
        else:
            assert found[0] == 0x62, found
            begun.remove(found[2] << 8 | found[3])
            client.send(p.ack(0x70, found[2] << 8 | found[3]))
    return got


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("fault", ["kill", "hang", "stop"])
def test_clients_do_not_notice_that_their_broker_is_lost(
    stack: ExitStack, tmp_path: Path, version: int, fault: str
) -> None:
    scene = Scene(stack, tmp_path)
    reader = scene.client(version, will=(b"w", b"reader", 1))
    subscribe(reader, version, (b"t/#", 2))
    writer = scene.client(version, will=(b"w", b"writer", 0))
    watcher = scene.direct("b")
    watcher.send(p.subscribe(1, (b"w", 2), version=4))
    assert watcher.packet()[0] == 0x90
    writer.send(p.publish(b"t/1", b"before", 1, 7, version=version))
    assert writer.packet() == p.ack(0x40, 7)
    before = read_publish(reader.packet(), version)
    assert before.payload == b"before"

    broker = scene.brokers["a"]
    if fault == "kill":
        broker.kill()
    elif fault == "stop":
        broker.stop()
    else:
        os.kill(broker.pid, signal.SIGSTOP)
    began = time.monotonic()
    # Unacknowledged at the reader, and sent by the writer while nobody serves it.
    writer.send(p.publish(b"t/2", b"during", 2, 8, version=version) + b"\xc0\x00")
    answers = [writer.packet(), writer.packet()]
    assert sorted(answers) == [p.ack(0x50, 8), b"\xd0\x00"]
    writer.send(p.ack(0x62, 8))
    assert writer.packet() == p.ack(0x70, 8)
    took_s = time.monotonic() - began
    assert took_s < 10
    if fault == "hang":
        os.kill(broker.pid, signal.SIGCONT)
    reader.send(p.ack(0x40, before.packet_id))
    # The broker that was lost has acknowledged "before" a moment earlier, so the gateway sends it again.
    got = read_until(reader, b"during", version)
    assert got.count(b"during") == 1
    assert set(got) <= {b"before", b"during"}
    # Both clients go on, and no broker publishes a will.
    writer.send(p.publish(b"w", b"end", 1, 9, version=version))
    assert writer.packet() == p.ack(0x40, 9)
    assert watcher.packet() == p.publish(b"w", b"end", 1, 1, version=4)
    watcher.send(p.ack(0x40, 1))
    # A client that really dies has its will published, once.
    reader.socket.close()
    found = watcher.packet()
    assert found[-6:] == b"reader"
    watcher.send(p.ack(0x40, found[5] << 8 | found[6]))
    writer.send(p.disconnect() if version == 5 else b"\xe0\x00")
    assert writer.is_closed()
    watcher.send(b"\xc0\x00")
    assert watcher.packet() == b"\xd0\x00"
    # A client that sends DISCONNECT and does not close is cut off after a second.
    wait_until(lambda: scene.gateway.health()["clients"] == 0, "no clients", 4.0)


def test_a_drain_repeats_nothing_and_loses_nothing(stack: ExitStack, tmp_path: Path) -> None:
    scene = Scene(stack, tmp_path)
    readers = [scene.client(5) for _ in range(10)]
    for one in readers:
        subscribe(one, 5, (b"t", 2))
    writer = scene.client(5)
    writer.send(p.publish(b"t", b"first", 2, 1))
    assert writer.packet() == p.ack(0x50, 1)
    # The exchange is outstanding when the drain begins, and is finished first.
    assert scene.gateway.command("drain", "a", "--rate", "500").returncode == 0
    writer.send(p.ack(0x62, 1))
    assert writer.packet() == p.ack(0x70, 1)
    wait_until(lambda: scene.gateway.metric('hanse_gateway_broker_clients{broker="b"}') == 11, "all at b")
    writer.send(p.publish(b"t", b"second", 2, 2))
    assert writer.packet() == p.ack(0x50, 2)
    writer.send(p.ack(0x62, 2))
    assert writer.packet() == p.ack(0x70, 2)
    for one in readers:
        got = read_until(one, b"second", 5)
        # The first one was published while some readers were on their way; without a federator nobody repeats it.
        assert got in ([b"first", b"second"], [b"second"])


def test_a_publication_that_offends_a_broker_ends_its_client_alone(stack: ExitStack, tmp_path: Path) -> None:
    scene = Scene(stack, tmp_path)
    good = scene.client(5)
    bad = scene.client(5)
    # Mosquitto ends a client that publishes to a topic with a wildcard.
    bad.send(p.publish(b"a/#", b"x", 1, 1))
    found = bad.packet()
    while found and found[0] != 0xE0:
        found = bad.packet()
    assert bad.is_closed()
    good.send(b"\xc0\x00")
    assert good.packet() == b"\xd0\x00"
    assert scene.moved() == 0


@pytest.mark.parametrize("version", [4, 5])
def test_a_lasting_session_is_resumed_when_its_broker_returns(stack: ExitStack, tmp_path: Path, version: int) -> None:
    # A client goes back two seconds after its broker.
    scene = Scene(stack, tmp_path, "--drain-rate", "0.5")
    expiry = {"properties": b"\x11\0\0\x0e\x10"} if version == 5 else {}
    reader = scene.client(version, clean=False, **expiry)
    subscribe(reader, version, (b"t", 2))
    broker = scene.brokers["a"]
    direct = scene.direct("a")
    direct.send(p.publish(b"t", b"0", 1, 1, version=4))
    assert read_until(reader, b"0", version) == [b"0"]
    assert direct.packet() == p.ack(0x40, 1)
    os.kill(broker.pid, signal.SIGSTOP)
    wait_until(lambda: scene.moved() == 1, "the client has moved")
    wait_until(lambda: scene.gateway.metric('hanse_gateway_move_total{what="settled"}') == 1, "it is there")
    other = scene.direct("b")
    other.send(p.publish(b"t", b"1", 1, 1, version=4))
    assert read_until(reader, b"1", version) == [b"1"]
    os.kill(broker.pid, signal.SIGCONT)
    # Queue of the session: one message that the client got elsewhere, as a federator would deliver it, and new ones.
    for k in range(1, 6):
        direct.send(p.publish(b"t", b"%d" % k, 1 + k % 2, 1 + k, version=4))
        assert direct.packet() == p.ack(0x40 if k % 2 == 0 else 0x50, 1 + k)
        if k % 2:
            direct.send(p.ack(0x62, 1 + k))
            assert direct.packet() == p.ack(0x70, 1 + k)
    assert read_until(reader, b"5", version) == [b"2", b"3", b"4", b"5"]
    wait_until(lambda: scene.gateway.metric('hanse_gateway_broker_clients{broker="a"}') == 1, "the client is back")
    # No session stays behind at the other broker. Before MQTT 5 a second connection ends it.
    connections = 2 if version == 4 else 1
    wait_until(lambda: scene.brokers["b"].log.count(f" as {scene.name} ") == connections, "the session has been ended")
    left = stack.enter_context(RawClient(scene.brokers["b"].port))
    left.send(p.connect(version, scene.name.encode(), clean=False).packet)
    assert left.packet()[2] == 0
    reader.send(b"\xc0\x00")
    assert reader.packet() == b"\xd0\x00"
