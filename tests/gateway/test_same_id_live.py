"""One client id through two gateways that see its broker differently: the older connection ends."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federators import ring, running
from tests.gateway import packets as p
from tests.gateway.placing import name_at
from tests.gateway.relay import Relay
from tests.gateways import Gateway, RawClient, wait_until

from hanse.local import ports

pytestmark = pytest.mark.processes
NAMES = ("a", "b", "c")
TAKEN_OVER = b"\xe0\x01\x8e"


class Scene:
    """Three brokers with federators. Gateway `far` reaches broker `a` through a relay that may fall silent."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        self.stack = stack
        listeners = [f"tcp://127.0.0.1:{port}" for port in ports.free(len(NAMES))]
        asked = [["--interest", "gateway", "--gateway-listen", one, "--gateway-token", "secret"] for one in listeners]
        brokers = self.brokers = {name: stack.enter_context(Mosquitto(quiet=False)) for name in NAMES}
        self.relay = stack.enter_context(Relay(brokers["a"].port))
        stack.enter_context(running(ring(list(brokers.values()), path, asked)))
        words = ("--federator-token", "secret", "--health-timeout", "500ms")

        def gateway(name: str, address_of_a: str) -> Gateway:
            urls = {**{one: broker.url for one, broker in brokers.items()}, "a": address_of_a}
            named = [f"{one}={url}?federator={at}" for (one, url), at in zip(urls.items(), listeners, strict=True)]
            return stack.enter_context(Gateway(path / name, *named, words=words))

        self.far = gateway("far", f"mqtt://127.0.0.1:{self.relay.port}")
        self.near = gateway("near", brokers["a"].url)
        wait_until(
            lambda: all(_what(one, "interest_snapshots") == len(NAMES) for one in (self.far, self.near)),
            "all federators are connected",
        )

    def connect(self, gateway: Gateway, name: str, level: int = 5) -> RawClient:
        client = self.stack.enter_context(RawClient(gateway.port))
        before = _what(gateway, "clients_reported")
        client.send(p.connect(level, name.encode()).packet)
        assert client.packet()[:1] == b"\x20"
        wait_until(lambda: _what(gateway, "clients_reported") > before, "it is reported")
        return client

    def cut(self) -> None:
        self.relay.cut()
        wait_until(lambda: _verdicts(self.far)["a"] != "up", "down for the far gateway")

    @property
    def ended(self) -> float:
        return _what(self.far, "clients_taken_over") + _what(self.near, "clients_taken_over")


def _what(gateway: Gateway, what: str) -> float:
    return gateway.metric(f'hanse_gateway_federator_total{{what="{what}"}}')


def _verdicts(gateway: Gateway) -> dict[str, str]:
    return {row["id"]: row["verdict"] for row in gateway.health()["brokers"]}


def _at(gateway: Gateway, broker: str) -> float:
    return gateway.metric(f'hanse_gateway_broker_clients{{broker="{broker}"}}')


def _lives(client: RawClient) -> bool:
    client.send(b"\xc0\x00")
    return client.packet() == b"\xd0\x00"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack, tmp_path)


def test_the_older_connection_ends_at_the_gateway_that_displaced_it_and_at_the_other(scene: Scene) -> None:
    name = name_at("a", NAMES)
    displaced = scene.connect(scene.far, name)
    old = scene.connect(scene.far, name_at("a", NAMES, "old"), 4)
    scene.cut()
    wait_until(lambda: _at(scene.far, "a") == 0 and scene.far.metric("hanse_gateway_clients") == 2, "both are moved")
    assert _lives(displaced)
    # The near gateway places it at `a`, which is up there.
    home = scene.connect(scene.near, name)
    began = time.monotonic()
    assert displaced.packet() == TAKEN_OVER
    assert displaced.is_closed()
    assert time.monotonic() - began < 5, "within a second, on a machine that is not busy"
    assert _lives(home)
    # Before MQTT 5 it is a bare end.
    assert _lives(old)
    scene.connect(scene.near, name_at("a", NAMES, "old"), 4)
    assert old.is_closed()
    # The reverse: the newer connection is the displaced one.
    displaced = scene.connect(scene.far, name)
    assert home.packet() == TAKEN_OVER
    assert home.is_closed()
    # And a client that comes back through its own gateway stays, whether its former connection is open or not.
    again = scene.connect(scene.far, name)
    assert displaced.is_closed(), "Mosquitto ends it, without a reason"
    again.send(b"\xe0\x00")
    assert again.is_closed()
    again = scene.connect(scene.far, name)
    time.sleep(0.5)
    assert _lives(again)
    assert scene.ended == 3


@pytest.mark.parametrize("level", [4, 5])
def test_neither_a_will_nor_a_session_is_left_when_a_client_connects_elsewhere(scene: Scene, level: int) -> None:
    name = name_at("a", NAMES)
    watcher = scene.connect(scene.near, "watcher")
    watcher.send(p.subscribe(1, (b"will", 1)))
    assert watcher.packet()[0] == 0x90
    displaced = scene.stack.enter_context(RawClient(scene.far.port))
    lasting = b"\x11\0\0\0\x3c"
    will = (b"will", b"dead", 1)
    displaced.send(p.connect(level, name.encode(), clean=level == 5, properties=lasting, will=will).packet)
    assert displaced.packet()[0] == 0x20
    scene.cut()
    wait_until(lambda: sum(_at(scene.far, one) for one in NAMES if one != "a") == 1 and _lives(displaced), "moved")
    (broker,) = (scene.brokers[one] for one in NAMES if _at(scene.far, one) == 1)
    scene.connect(scene.near, name, level)
    if level == 5:
        assert displaced.packet() == TAKEN_OVER
    assert displaced.is_closed()
    wait_until(lambda: scene.far.metric("hanse_gateway_clients") == 0, "it is gone")
    time.sleep(0.3)
    watcher.send(p.publish(b"will", b"probe", 1, 1))
    received = [watcher.packet() for _ in range(2)]
    assert not any(b"dead" in one for one in received)
    assert any(b"probe" in one for one in received)
    # The displaced session has ended with its connection: the far gateway finds none.
    last = scene.stack.enter_context(RawClient(scene.far.port))
    if level == 4:
        # Only a clean connection ends such a session.
        wait_until(lambda: f" as {name} (p2, c1," in broker.log, "the session is ended")
    last.send(p.connect(level, name.encode(), clean=False, properties=lasting).packet)
    accepted = last.packet()
    assert (accepted[0], accepted[2], accepted[3]) == (0x20, 0, 0)


def test_one_gateway_ends_the_older_connection_that_its_policy_has_placed_elsewhere(tmp_path: Path) -> None:
    words = ("--policy", "round-robin")
    with (
        Mosquitto() as a,
        Mosquitto() as b,
        Gateway(tmp_path, a.url, b.url, words=words) as gateway,
        RawClient(gateway.port) as first,
        RawClient(gateway.port) as second,
    ):
        for one in (first, second):
            one.send(p.connect(5, b"c").packet)
            assert one.packet()[0] == 0x20
        assert first.packet() == TAKEN_OVER
        assert first.is_closed()
        assert _lives(second)
