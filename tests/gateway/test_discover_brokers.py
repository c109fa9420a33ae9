"""Brokers found by a scan of this machine, named by a list, or by a manager."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Mosquitto, free_port
from tests.federation import environment
from tests.gateways import Gateway

from hanse.gateway.discovery import brokers as finding
from hanse.gateway.discovery.ranges import Target
from hanse.gateway.placement import Broker

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def open_broker() -> Iterator[Mosquitto]:
    with Mosquitto() as broker:
        yield broker


@pytest.fixture(scope="module")
def closed_broker() -> Iterator[Mosquitto]:
    with Mosquitto(anonymous=False) as broker:
        yield broker


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[int]:
    """Run a server on this machine that ends after its last connection; yield its port."""
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.ensure_future(serve(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    await asyncio.gather(*tasks)
    await asyncio.sleep(0)


def discover(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hanse", "discover", *words],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )


def test_a_scan_tells_brokers_from_everything_else(open_broker: Mosquitto, closed_broker: Mosquitto) -> None:
    ports: dict[str, int] = {"open": open_broker.port, "closed": closed_broker.port, "nobody": free_port()}

    async def run() -> list[finding.Finding]:
        async def strange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-something\r\n")
            await reader.read()

        async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            await reader.read()

        async with served(strange) as stranger, served(silent) as mute:
            ports.update(stranger=stranger, mute=mute)
            return await finding.scan([Target("127.0.0.1", port) for port in ports.values()], timeout_s=2.0)

    found = dict(zip(ports, asyncio.run(run()), strict=True))
    assert {name: one.what for name, one in found.items()} == {
        "open": finding.BROKER,
        "closed": finding.BROKER,
        "nobody": finding.REFUSED,
        "stranger": finding.NOT_MQTT,
        "mute": finding.NO_ANSWER,
    }
    assert (found["open"].version, found["open"].code) == ("5", 0)
    assert (found["closed"].version, found["closed"].code) == ("5", 0x87)
    assert 0 < found["open"].ms < 2_000


def test_a_broker_of_3_1_1_alone_is_found() -> None:
    """A broker that closes on MQTT 5 without an answer, as NATS does."""

    async def run() -> finding.Finding:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            hello = await reader.read(100)
            if hello[8] == 4:
                writer.write(b"\x20\x02\x00\x00")
                await reader.read(100)

        async with served(serve) as port:
            return await finding.look(Target("127.0.0.1", port), 10.0)

    found = asyncio.run(run())
    assert (found.what, found.version, found.code) == (finding.BROKER, "3.1.1", 0)


def test_no_more_connections_than_allowed_are_open_at_once() -> None:
    at_once = most = 0

    async def run() -> list[finding.Finding]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await reader.read(100)
            await asyncio.sleep(0.01)
            writer.write(b"\x20\x03\x00\x00\x00")
            at_once -= 1
            await reader.read(100)

        async with served(serve) as port:
            targets = [Target("127.0.0.1", port)] * 30
            return await finding.scan(targets, concurrency=5, timeout_s=10.0)

    assert [one.what for one in asyncio.run(run())] == [finding.BROKER] * 30
    assert 1 < most <= 5


def test_the_command_prints_what_the_gateway_accepts(open_broker: Mosquitto, closed_broker: Mosquitto) -> None:
    ports = f"{open_broker.port},{closed_broker.port}"
    done = discover("brokers", "--scan", "127.0.0.1", "--port", ports, "--broker", "x=mqtt://10.9.8.7:1883")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "--broker x=mqtt://10.9.8.7:1883"
    url = f"mqtt://127.0.0.1:{open_broker.port}"
    assert lines[1].startswith(f"--broker {url}={url}    MQTT 5, accepts clients without a login, ")
    assert "refuses clients without a login (0x87)" in lines[2]
    assert "2 addresses and ports tried, 2 brokers found" in done.stderr
    shown = json.loads(discover("brokers", "--scan", "127.0.0.1", "--port", ports, "--json").stdout)
    assert shown["outcomes"] == {"broker": 2}
    assert [row["code"] for row in shown["brokers"]] == [0, 0x87]


def test_the_command_refuses_large_ranges_and_no_question() -> None:
    large = discover("brokers", "--scan", "10.0.0.0/8")
    assert (large.returncode, large.stdout) == (2, "")
    assert "would try 16777214 addresses and ports; at most 4096 are allowed" in large.stderr
    assert "Nothing says where to look" in discover("brokers").stderr
    nobody = discover("brokers", "--scan", "127.0.0.1", "--port", str(free_port()))
    assert nobody.returncode == 1


def test_a_gateway_finds_its_brokers_by_a_scan(
    open_broker: Mosquitto, closed_broker: Mosquitto, tmp_path: Path
) -> None:
    words = ("--scan", "127.0.0.1", "--scan-port", f"{open_broker.port},{closed_broker.port},{free_port()}")
    with Gateway(tmp_path, words=words) as gateway:
        assert [one["id"] for one in gateway.health()["brokers"]] == sorted(
            f"mqtt://127.0.0.1:{one.port}" for one in (open_broker, closed_broker)
        )
    for wrong, said in (
        (("--scan", "127.0.0.1", "--scan-port", str(free_port())), "No broker answered at any of 1 addresses"),
        (("--scan", "10.0.0.0/8"), "would try 16777214 addresses and ports"),
        (("--scan", "127.0.0.1", "--broker", "mqtt://127.0.0.1:1"), "come from broker and scan"),
    ):
        refused = Gateway(tmp_path / said[:4], words=wrong)
        with pytest.raises(AssertionError, match="the gateway ended with 2"):
            refused.start()
        assert said in refused.log


def test_a_manager_names_the_brokers_of_its_federators() -> None:
    async def ask(path: str) -> dict[str, Any]:
        assert path == "/api/v1/topology"
        return {
            "epoch": 17,
            "federators": [
                {"id": 0, "ip": "mqtt://10.0.0.1:1883", "state": "up"},
                {"id": 1, "ip": "10.0.0.2", "state": "gone"},
                {"id": 2, "ip": "mqtt://10.0.0.3", "state": "left"},
                {"id": 3, "ip": "http://10.0.0.4", "state": "up"},
                {"id": 4, "state": "up"},
            ],
        }

    version, brokers, problems = asyncio.run(finding.brokers_of_manager(ask))
    assert version == 17
    assert brokers == [Broker("0", "mqtt://10.0.0.1:1883"), Broker("1", "mqtt://10.0.0.2")]
    assert [one.partition(":")[0] for one in problems] == ["federator 3", "federator 4"]
