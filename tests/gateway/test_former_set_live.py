"""Persistent sessions are found again after the set of brokers has changed."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.gateway import packets as p
from tests.gateway.placing import place
from tests.gateways import Gateway, RawClient, wait_until

from hanse.gateway.front.connect import Connect

pytestmark = pytest.mark.processes


def keeping(version: int, name: str) -> Connect:
    """Return a CONNECT that keeps its session, and has a will that no search for the session may publish."""
    properties = b"\x11\0\0\x0e\x10" if version == 5 else b""
    return p.connect(version, name.encode(), clean=False, properties=properties, will=(b"will", b"no", 0))


def moved_name(version: int) -> str:
    """Return a client id that two brokers place at `b`, and three at `c`."""
    names = (f"moved-{version}-{k}" for k in range(1_000))
    return next(name for name in names if (place(name, "ab"), place(name, "abc")) == ("b", "c"))


@pytest.mark.parametrize("version", [4, 5])
def test_a_session_is_found_at_the_broker_of_the_former_set(tmp_path: Path, version: int) -> None:
    name = moved_name(version)
    with ExitStack() as stack:
        brokers = {one: stack.enter_context(Mosquitto()) for one in "abc"}
        urls = {one: f"{one}=mqtt://127.0.0.1:{broker.port}" for one, broker in brokers.items()}
        watcher = stack.enter_context(RawClient(brokers["b"].port))
        watcher.send(p.connect(4, b"watcher").packet + p.subscribe(1, (b"will", 0), version=4))
        assert watcher.packet()[0] == 0x20
        assert watcher.packet()[0] == 0x90
        with Gateway(tmp_path, urls["a"], urls["b"]) as gateway, RawClient(gateway.port) as client:
            client.send(keeping(version, name).packet + p.subscribe(1, (b"q", 1), version=version))
            assert client.packet()[2:4] == b"\0\0"
            assert client.packet()[0] == 0x90
            client.send(p.disconnect())
            assert client.is_closed()
        with RawClient(brokers["b"].port) as writer:
            writer.send(p.connect(4, b"writer").packet)
            assert writer.packet()[0] == 0x20
            for k in range(5):
                writer.send(p.publish(b"q", b"%d" % k, 1, k + 1, version=4))
                assert writer.packet()[0] == 0x40
        fresh = f"fresh-{name}"
        with Gateway(tmp_path, *urls.values()) as gateway:
            with RawClient(gateway.port) as client:
                client.send(keeping(version, name).packet)
                assert client.packet()[2:4] == b"\1\0", "session present"
                got = []
                for _ in range(5):
                    one = client.packet()
                    at = 2 + 2 + 1
                    client.send(p.ack(0x40, int.from_bytes(one[at : at + 2], "big")))
                    got.append(one[-1:])
                assert got == [b"0", b"1", b"2", b"3", b"4"]
                assert gateway.metric('hanse_gateway_moved_total{reason="found_at_former"}') == 1
                client.send(p.disconnect())
                assert client.is_closed()
            # The search for a new client leaves nothing at the broker.
            fresh = next(f"{fresh}-{k}" for k in range(1_000) if place(f"{fresh}-{k}", "ab") == "b"
                         and place(f"{fresh}-{k}", "abc") == "c")  # fmt: skip
            with RawClient(gateway.port) as client:
                client.send(keeping(version, fresh).packet)
                assert client.packet()[2:4] == b"\0\0"
                assert gateway.metric('hanse_gateway_broker_clients{broker="c"}') == 1
                client.send(p.disconnect())
                assert client.is_closed()
        with RawClient(brokers["b"].port) as client:
            client.send(keeping(version, fresh).packet)
            assert client.packet()[2:4] == b"\0\0", "no session was left"
            client.send(p.disconnect())
            assert client.is_closed()
        wait_until(lambda: f"as {fresh} " in brokers["b"].log, "it was looked for there")
        watcher.send(b"\xc0\x00")
        assert watcher.packet() == b"\xd0\x00", "no will was published"
