"""Lasting sessions that another gateway finds, with their brokers and subscriptions."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federators import ring, running
from tests.gateway import packets as p
from tests.gateway.placing import name_at
from tests.gateway.test_failover_live import read_until, subscribe
from tests.gateways import Gateway, RawClient, wait_until

from hanse.local import ports

pytestmark = pytest.mark.processes
NAMES = ("a", "b", "c")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_another_gateway_finds_a_displaced_session_and_can_move_it_again(stack: ExitStack, tmp_path: Path) -> None:
    listeners = [f"tcp://127.0.0.1:{port}" for port in ports.free(len(NAMES))]
    asked = [["--interest", "gateway", "--gateway-listen", one, "--gateway-token", "secret"] for one in listeners]
    brokers = {name: stack.enter_context(Mosquitto()) for name in NAMES}
    named = [f"{name}={one.url}?federator={at}" for (name, one), at in zip(brokers.items(), listeners, strict=True)]
    stack.enter_context(running(ring(list(brokers.values()), tmp_path, asked)))
    words = ("--federator-token", "secret", "--drain-rate", "0.5", "--subscribe-barrier")
    first, second = (stack.enter_context(Gateway(tmp_path / name, *named, words=words)) for name in ("one", "two"))
    told = 'hanse_gateway_federator_total{what="interest_snapshots"}'
    wait_until(lambda: first.metric(told) == second.metric(told) == len(NAMES), "all federators are connected")

    def connect(gateway: Gateway) -> tuple[RawClient, bool]:
        client = stack.enter_context(RawClient(gateway.port))
        client.send(p.connect(4, name.encode(), clean=False).packet)
        accepted = client.packet()
        assert (accepted[0], accepted[3]) == (0x20, 0)
        return client, bool(accepted[2])

    def stored(gateway: Gateway) -> float:
        return gateway.metric('hanse_gateway_federator_total{what="session_records"}')

    name = name_at("a", NAMES, "lasting")
    client, is_present = connect(first)
    assert not is_present
    subscribe(client, 4, (b"t", 1))
    writer = stack.enter_context(RawClient(first.port))
    writer.send(p.connect(4, name_at("c", NAMES, "writer").encode()).packet)
    assert writer.packet() == p.connack(4)

    def publish(payload: bytes) -> None:
        writer.send(p.publish(b"t", payload, 1, 1, version=4))
        assert writer.packet() == p.ack(0x40, 1)

    publish(b"1")
    assert read_until(client, b"1", 4) == [b"1"]
    # Broker `a` dies; the client lives on at another one, and goes away there.
    brokers["a"].kill()
    wait_until(lambda: first.metric('hanse_gateway_move_total{what="settled"}') == 1, "the client has moved")
    publish(b"2")
    assert read_until(client, b"2", 4)[-1] == b"2"
    before = stored(first)
    client.send(b"\xe0\x00")
    assert client.is_closed()
    wait_until(lambda: stored(first) > before, "its record is written")
    publish(b"3")
    brokers["a"].restart()
    wait_until(lambda: all(one["takes_clients"] for one in second.health()["brokers"]), "a has returned")
    # The hash says `a`; the record says where the session is.
    client, is_present = connect(second)
    assert is_present
    assert read_until(client, b"3", 4) == [b"3"]
    # The other gateway knows the filters, and takes them along when it brings the client home.
    wait_until(lambda: second.metric('hanse_gateway_broker_clients{broker="a"}') == 1, "the client is at home")
    publish(b"4")
    assert read_until(client, b"4", 4)[-1] == b"4"
