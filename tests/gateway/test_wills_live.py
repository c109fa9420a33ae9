"""Wills of the clients of gateways and workers that are killed, with real federators and brokers."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, Federator, ring, running
from tests.gateway import packets as p
from tests.gateway.test_interest_live import client_at
from tests.gateway.test_workers_live import worker_of, workers_of
from tests.gateways import Gateway, RawClient, wait_until

from hanse.local import ports

pytestmark = pytest.mark.processes
GRACE_S = 3
ROWS = 'hanse_gateway_federator_total{what="will_rows"}'


def is_connected(gateway: Gateway, connections: int) -> bool:
    return gateway.log.count("connected to federator") == connections


@contextmanager
def scene(
    tmp_path: Path, gateways: int, *words: str
) -> Iterator[tuple[ExitStack, list[Mosquitto], list[Federator], list[Gateway]]]:
    """Run two brokers with federators, and gateways that know both."""
    listeners = [f"tcp://127.0.0.1:{port}" for port in ports.free(2)]
    with ExitStack() as stack:
        brokers = [stack.enter_context(Mosquitto(*LOG_LINES)) for _ in listeners]
        asked = [["--gateway-listen", one, "--gateway-token", "secret"] for one in listeners]
        federators = ring(brokers, tmp_path, asked)
        stack.enter_context(running(federators))
        named = [f"{one.url}?federator={at}" for one, at in zip(brokers, listeners, strict=True)]
        more = ("--federator-token", "secret", "--will-grace", f"{GRACE_S}s", *words)
        made = [stack.enter_context(Gateway(tmp_path / f"gateway-{k}", *named, words=more)) for k in range(gateways)]
        workers = 2 if "--workers" in words else 1
        for gateway in made:
            wait_until(partial(is_connected, gateway, 2 * workers), "both federators")
        yield stack, brokers, federators, made


def with_will(stack: ExitStack, gateway: Gateway, name: str, will_properties: bytes = b"") -> RawClient:
    """Connect a client whose will is its name."""
    client = stack.enter_context(RawClient(gateway.port))
    will = (b"wills/" + name.encode(), name.encode(), 1)
    client.send(p.connect(5, name.encode(), will=will, will_properties=will_properties).packet)
    accepted = client.packet()
    assert (accepted[0], accepted[3]) == (0x20, 0)
    return client


def counted(federators: list[Federator], what: str) -> int:
    return sum(one.counters().get(f"gateway_wills_{what}", 0) for one in federators)


def test_killed_gateway_leaves_one_will_for_each_client_that_does_not_come_back(tmp_path: Path) -> None:
    with scene(tmp_path, 2) as (stack, brokers, federators, (first, second)):
        names = [client_at(first, 0, prefix) for prefix in ("gone", "back", "left")]
        at_other = client_at(first, 1, "other")
        watcher = stack.enter_context(Client(brokers[1].port))
        watcher.subscribe("wills/#")
        eventually(lambda: federators[0].knows("wills/#"), "the watcher is known")
        for name in [*names, at_other]:
            with_will(stack, first, name, b"\x03\0\4text\x26\0\1k\0\1v" if name == names[0] else b"")
        wait_until(lambda: first.metric(ROWS) == 4, "all wills are reported")
        first.end(signal.SIGKILL)
        with_will(stack, second, names[1])
        # A client that comes back without a will, and says goodbye, needs none either.
        back = stack.enter_context(RawClient(second.port))
        back.send(p.connect(5, names[2].encode()).packet)
        assert back.packet()[0] == 0x20
        back.send(p.disconnect(0))
        got = watcher.expect(2)
        assert sorted(message.payload.decode() for message in got) == sorted([names[0], at_other])
        rich = next(message for message in got if message.payload.decode() == names[0])
        assert rich.qos == 1
        properties: Any = rich.properties
        assert properties.ContentType == "text"
        assert properties.UserProperty == [("k", "v")]
        eventually(lambda: counted(federators, "cancelled") == 2, "two wills are cancelled")
        assert counted(federators, "published") == 2
        time.sleep(1)
        assert len(watcher.expect(2)) == 2, "nothing comes twice"


def test_killed_worker_leaves_the_wills_of_its_clients_only(tmp_path: Path) -> None:
    with scene(tmp_path, 1, "--workers", "2") as (stack, brokers, federators, (gateway,)):
        watcher = stack.enter_context(Client(brokers[0].port))
        watcher.subscribe("wills/#")
        eventually(lambda: federators[1].knows("wills/#"), "the watcher is known")
        clients = {f"c{k}": with_will(stack, gateway, f"c{k}") for k in range(12)}
        at = {name: worker_of(gateway, one) for name, one in clients.items()}
        victim = workers_of(gateway)[0]
        orphans = sorted(name for name, pid in at.items() if pid == victim)
        assert orphans, "the kernel gave the first worker no client of twelve"
        wait_until(lambda: gateway.metric(ROWS) == 12, "all wills are reported")
        os.kill(victim, signal.SIGKILL)
        back = orphans.pop()
        eventually(clients[back].is_closed, "the worker is gone")
        with_will(stack, gateway, back)
        got = watcher.expect(len(orphans)) if orphans else []
        eventually(lambda: counted(federators, "cancelled") == 1, "the will of the client that is back is cancelled")
        assert sorted(message.payload.decode() for message in got) == orphans
        assert counted(federators, "published") == len(orphans)


@pytest.mark.parametrize("how", ["disconnect", "stop", "off"])
def test_clean_end_and_switch_leave_no_will(tmp_path: Path, how: str) -> None:
    words = ("--no-will-backup",) if how == "off" else ()
    with scene(tmp_path, 1, *words) as (stack, brokers, federators, (gateway,)):
        watcher = stack.enter_context(Client(brokers[0].port))
        watcher.subscribe("wills/#")
        client = with_will(stack, gateway, client_at(gateway, 0, "c"))
        if how != "off":
            wait_until(lambda: gateway.metric(ROWS) == 1, "the will is reported")
        if how == "disconnect":
            client.send(p.disconnect(0))
            wait_until(lambda: gateway.metric(ROWS) == 2, "the will is taken back")
            gateway.end(signal.SIGKILL)
            expected = 0
        elif how == "stop":
            # The gateway itself publishes the will before it ends.
            gateway.end()
            expected = 1
        else:
            gateway.end(signal.SIGKILL)
            expected = 0
        time.sleep(GRACE_S + 1.5)
        assert len(watcher.expect(expected) if expected else watcher.messages) == expected
        assert counted(federators, "published") == counted(federators, "cancelled") == 0
