"""`hanse gateway drain` and `undrain`, with real brokers."""

import json
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.gateway import packets as p
from tests.gateways import Gateway, RawClient, wait_until

pytestmark = pytest.mark.processes


def clients_at(gateway: Gateway) -> dict[str, int]:
    return {one["id"]: one["clients"] for one in gateway.health()["brokers"]}


class Returning:
    """Clients that connect again whenever they are disconnected, as real ones do."""

    def __init__(self, stack: ExitStack, gateway: Gateway, count: int) -> None:
        self._stack = stack
        self._gateway = gateway
        self._clients = [self._connect(k) for k in range(count)]
        self.reasons: list[int] = []

    def _connect(self, k: int) -> RawClient:
        client = self._stack.enter_context(RawClient(self._gateway.port))
        client.send(p.connect(5, b"r%d" % k).packet)
        assert client.packet()[3] == 0
        client.socket.setblocking(False)
        return client

    def look(self) -> int:
        """Connect disconnected clients again; return their number."""
        ended = 0
        for k, client in enumerate(self._clients):
            try:
                got = client.socket.recv(100)
            except BlockingIOError:
                continue
            if got:
                assert got[0] == 0xE0
                self.reasons.append(got[2])
            client.socket.close()
            self._clients[k] = self._connect(k)
            ended += 1
        return ended


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_drain_moves_clients_at_its_rate_and_survives_a_restart(tmp_path: Path, workers: str) -> None:
    with Mosquitto() as first, Mosquitto() as second, ExitStack() as stack:
        urls = [f"{name}=mqtt://127.0.0.1:{one.port}" for name, one in (("a", first), ("b", second))]
        gateway = Gateway(tmp_path, *urls, words=("--workers", workers, "--no-failover"))
        with gateway:
            clients = Returning(stack, gateway, 60)
            wait_until(lambda: sum(clients_at(gateway).values()) == 60, "60 clients")
            before = clients_at(gateway)
            assert min(before.values()) > 10
            began = time.monotonic()
            done = gateway.command("drain", "a", "--rate", "20")
            assert done.returncode == 0, done.stderr
            assert f"it has {before['a']} clients" in done.stdout
            moved = 0
            while moved < before["a"]:
                moved += clients.look()
                assert time.monotonic() - began < 30
                time.sleep(0.02)
            took_s = time.monotonic() - began
            # At 20 per second; a slow machine takes longer, and no machine is quicker. The first tick is free.
            assert took_s > (before["a"] - 4) / 20
            wait_until(lambda: clients_at(gateway) == {"a": 0, "b": 60}, "all at b")
            assert moved == before["a"], "nobody is moved twice, and nobody from b"
            assert set(clients.reasons) <= {0x8B, 0x9C}
            shown = gateway.command("explain", "--client", "r1")
            assert "it is drained" in shown.stdout
            assert gateway.command("drain", "c").returncode != 0
            os.kill(gateway.pid, signal.SIGKILL)
            gateway.end()
        with gateway:
            one = stack.enter_context(RawClient(gateway.port))
            assert gateway.page("/healthz")[0] == 200
            for k in range(10):
                one = stack.enter_context(RawClient(gateway.port))
                one.send(p.connect(4, b"after%d" % k).packet)
                assert one.packet()[3] == 0
            wait_until(lambda: clients_at(gateway) == {"a": 0, "b": 10}, "a is still drained")
            assert gateway.command("undrain", "a").returncode == 0
            wait_until(lambda: gateway.health()["brokers"][0]["takes_clients"], "a takes clients")
            assert not json.loads((gateway.state_dir / "drains.json").read_text())["a"]["drained"]


def test_clients_go_back_to_a_broker_that_is_no_longer_drained(tmp_path: Path) -> None:
    with Mosquitto() as first, Mosquitto() as second, ExitStack() as stack:
        urls = [f"{name}=mqtt://127.0.0.1:{one.port}" for name, one in (("a", first), ("b", second))]
        gateway = stack.enter_context(Gateway(tmp_path, *urls, words=("--drain-rate", "200")))
        clients = Returning(stack, gateway, 40)
        wait_until(lambda: sum(clients_at(gateway).values()) == 40, "40 clients")
        before = clients_at(gateway)
        for command, then in (("drain", {"a": 0, "b": 40}), ("undrain", before)):
            assert gateway.command(command, "a").returncode == 0

            def moved(then: dict[str, int] = then) -> bool:
                clients.look()
                return clients_at(gateway) == then

            wait_until(moved, command)
        assert gateway.metric('hanse_gateway_moved_total{reason="moved"}') == 2 * before["a"]


def test_the_last_broker_keeps_its_clients_when_it_is_drained(tmp_path: Path) -> None:
    with (
        Mosquitto() as broker,
        Gateway(tmp_path, f"a=mqtt://127.0.0.1:{broker.port}") as gateway,
        RawClient(gateway.port) as client,
    ):
        client.send(p.connect(4, b"x").packet)
        assert client.packet()[3] == 0
        assert gateway.command("drain", "a", "--rate", "1000").returncode == 0
        assert gateway.page("/healthz")[0] == 503
        time.sleep(0.5)
        client.send(b"\xc0\x00")
        assert client.packet() == b"\xd0\x00"
