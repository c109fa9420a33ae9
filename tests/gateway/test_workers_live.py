"""A gateway with several worker processes."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from tests.brokers import Mosquitto
from tests.gateway import packets as p
from tests.gateways import Gateway, RawClient, wait_until

pytestmark = pytest.mark.processes


def workers_of(gateway: Gateway) -> list[int]:
    return [child.pid for child in psutil.Process(gateway.pid).children() if "hanse.gateway.process" in child.cmdline()]


def worker_of(gateway: Gateway, client: RawClient) -> int:
    """Return the process that serves a client."""
    port = client.socket.getsockname()[1]
    for pid in workers_of(gateway):
        for one in psutil.Process(pid).net_connections("tcp"):
            if tuple(one.raddr)[1:] == (port,):
                return pid
    raise AssertionError(f"no worker has the connection from port {port}")


def connected(stack: ExitStack, gateway: Gateway, name: str) -> RawClient:
    client = stack.enter_context(RawClient(gateway.port))
    client.send(p.connect(5, name.encode()).packet)
    return client


def test_clients_are_spread_and_counted_over_workers(tmp_path: Path) -> None:
    words = ("--workers", "3", "--connections-per-address-max", "40")
    with Mosquitto() as broker, Gateway(tmp_path, f"b=mqtt://127.0.0.1:{broker.port}", words=words) as gateway:
        assert len(workers_of(gateway)) == 3
        with ExitStack() as stack:
            clients = [connected(stack, gateway, f"c{k}") for k in range(40)]
            assert all(one.packet()[:1] == b"\x20" for one in clients)
            assert len(Counter(worker_of(gateway, one) for one in clients)) == 3
            wait_until(lambda: gateway.health()["clients"] == 40, "the sum over all workers")
            assert gateway.metric("hanse_gateway_clients") == 40
            assert gateway.metric('hanse_gateway_broker_clients{broker="b"}') == 40
            # Every worker has far fewer than 40, and yet the next client of this address is one too many.
            time.sleep(0.5)
            for _ in range(3):
                assert connected(stack, gateway, "more").packet()[3] == 0x97
        wait_until(lambda: gateway.health()["clients"] == 0, "all are gone")
        with ExitStack() as stack:
            wait_until(lambda: connected(stack, gateway, "again").packet()[3] == 0, "the limit is free again")


def test_a_killed_worker_is_replaced_and_takes_only_its_clients_with_it(tmp_path: Path) -> None:
    with (
        Mosquitto() as broker,
        Gateway(tmp_path, f"b=mqtt://127.0.0.1:{broker.port}", words=("--workers", "2")) as gateway,
        ExitStack() as stack,
    ):
        clients = [connected(stack, gateway, f"c{k}") for k in range(30)]
        assert all(one.packet()[:1] == b"\x20" for one in clients)
        at = {one: worker_of(gateway, one) for one in clients}
        victim = workers_of(gateway)[0]
        wait_until(lambda: gateway.metric("hanse_gateway_connections_total") == 30, "the last report")
        os.kill(victim, signal.SIGKILL)
        # Some of these wait at the dead worker's socket until its successor is there; none is refused.
        more = [connected(stack, gateway, f"d{k}") for k in range(30)]
        assert all(one.packet()[:4][3] == 0 for one in more)
        for one in clients:
            if at[one] == victim:
                assert one.is_closed()
            else:
                one.send(b"\xc0\x00")
                assert one.packet() == b"\xd0\x00"
        wait_until(lambda: gateway.metric("hanse_gateway_worker_restarts_total") == 1, "the restart is counted")
        # A counter does not fall because a worker has died.
        wait_until(lambda: gateway.metric("hanse_gateway_connections_total") == 60, "60 connections")
        assert victim not in workers_of(gateway)
        assert "a worker has ended and is replaced" in gateway.log


def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    with Mosquitto() as broker:
        gateway = Gateway(tmp_path, f"b=mqtt://127.0.0.1:{broker.port}", words=("--workers", "2"))
        with gateway:
            workers = workers_of(gateway)
            gateway.end(signal.SIGKILL)
            wait_until(lambda: not any(psutil.pid_exists(pid) for pid in workers), "the workers have ended")
        with gateway, RawClient(gateway.port) as client:
            client.send(p.connect(5, b"x").packet)
            assert client.packet()[0] == 0x20
            workers = workers_of(gateway)
            os.kill(gateway.pid, signal.SIGTERM)
            assert client.packet() == p.disconnect(0x8B)
            assert gateway.end() == 0
            wait_until(lambda: not any(psutil.pid_exists(pid) for pid in workers), "the workers have ended")


def test_a_second_gateway_on_the_same_port_is_refused(tmp_path: Path) -> None:
    with (
        Mosquitto() as broker,
        Gateway(tmp_path / "a", f"b=mqtt://127.0.0.1:{broker.port}", words=("--workers", "2")) as gateway,
    ):
        second = Gateway(tmp_path / "b", f"b=mqtt://127.0.0.1:{broker.port}", listen=(gateway.urls[0],))
        done = subprocess.run(second.words, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode != 0
        assert "Cannot listen on" in done.stderr
        assert json.loads(gateway.page("/healthz")[1])["workers"] == 2
