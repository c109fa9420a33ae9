"""The wording of the Mosquitto that is installed here, by topic and by file, with ordinary clients."""

import asyncio
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hanse.interest import (
    BridgeSeen,
    ClientBack,
    ClientLeft,
    InterestRegistry,
    MosquittoFileAdapter,
    MosquittoLogAdapter,
    Report,
    Session,
    Subscribed,
    Unsubscribed,
    vendor,
)
from hanse.interest.follow import LogFollower, Read
from hanse.local import mosquitto, ports
from hanse.local.client import Connection, broker_answers
from hanse.local.processes import ProcessSettings, SupervisedProcess

pytestmark = pytest.mark.processes
DEADLINE_S = 20
OWN = "hanse-test-"


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def packet(kind: int, body: bytes) -> bytes:
    assert len(body) < 16384
    return bytes([kind, len(body) & 0x7F | 0x80, len(body) >> 7]) + body


class RawClient:
    """Minimal 3.1.1 client that can misbehave as tests need."""

    def __init__(
        self, port: int, client_id: str, *, clean: bool = True, keep_alive_s: int = 60, level: int = 4
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        head = text("MQTT") + bytes([level, 2 if clean else 0]) + struct.pack(">H", keep_alive_s)
        self.socket.sendall(packet(0x10, head + text(client_id)))
        assert self.socket.recv(4)[3] == 0

    def subscribe(self, wanted: str, qos: int) -> None:
        self.socket.sendall(packet(0x82, b"\0\1" + text(wanted) + bytes([qos])))
        assert self.socket.recv(5)[4] == qos

    def unsubscribe(self, given_up: str) -> None:
        self.socket.sendall(packet(0xA2, b"\0\2" + text(given_up)))
        assert self.socket.recv(4)[0] == 0xB0

    def disconnect(self) -> None:
        self.socket.sendall(b"\xe0\0")
        self.socket.close()


@dataclass
class Watched:
    port: int
    directory: Path
    adapter: MosquittoLogAdapter
    reports: list[Report] = field(default_factory=list)

    async def until(self, condition: Callable[[list[Report]], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition(self.reports):  # noqa: ASYNC110 - the test waits for the broker
                await asyncio.sleep(0.01)

    async def until_seen(self, *expected: Report) -> None:
        await self.until(lambda seen: all(report in seen for report in expected))


@asynccontextmanager
async def watched_broker(tmp_path: Path, *extra: str, only: str | None = None) -> AsyncIterator[Watched]:
    port = ports.free(1)[0]
    url = f"mqtt://127.0.0.1:{port}"
    settings = mosquitto.BrokerSettings(port, tmp_path, persistence=False, extra=extra)
    command = mosquitto.command(settings)
    if only is not None:
        Path(command[-1]).write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nuser root\n{only}")  # noqa: ASYNC240
    broker = SupervisedProcess("broker", command, tmp_path / "output.log", ProcessSettings(restarts=False))
    await broker.start()
    try:
        await broker.wait_ready(lambda: broker_answers(url), DEADLINE_S)
        watched = Watched(port, tmp_path, MosquittoLogAdapter(OWN))
        async with Connection(url, client_id=OWN + "watcher") as connection:
            await connection.subscribe(watched.adapter.topics(), qos=2)

            async def watch() -> None:
                async for message in connection.messages():
                    watched.reports += watched.adapter.message(message.topic, message.payload)

            task = asyncio.create_task(watch())
            try:
                yield watched
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
    finally:
        await broker.stop()


def test_every_kind_of_connect_and_disconnect_is_reported(tmp_path: Path) -> None:
    async def run() -> None:
        async with watched_broker(tmp_path) as watched:
            port = watched.port
            clean = RawClient(port, "my client 1 x")
            clean.subscribe("a b/+/#", 1)
            clean.subscribe("$share/g one/s/#", 2)
            clean.unsubscribe("a b/+/#")
            clean.disconnect()
            kept = RawClient(port, "pers", clean=False)
            kept.subscribe("p/#", 2)
            kept.disconnect()
            dropped = RawClient(port, "dropped")
            dropped.subscribe("d", 0)
            dropped.socket.close()
            old = RawClient(port, "dup")
            old.subscribe("d/1", 0)
            new = RawClient(port, "dup")
            new.subscribe("d/2", 0)
            broken = RawClient(port, "broken")
            broken.socket.sendall(b"\xf1\0")
            bridge = RawClient(port, "bridgey", level=0x84)
            bridge.subscribe("over/#", 1)
            silent = RawClient(port, "silent", keep_alive_s=1)
            silent.subscribe("s", 1)
            await watched.until_seen(
                ClientBack("my client 1 x", session_kept=False),
                Subscribed("my client 1 x", "a b/+/#", 1),
                Subscribed("my client 1 x", "$share/g one/s/#", 2),
                Unsubscribed("my client 1 x", "a b/+/#"),
                ClientLeft("my client 1 x", Session.ENDED),
                Subscribed("pers", "p/#", 2),
                ClientLeft("pers", Session.KEPT),
                ClientLeft("dropped", Session.ENDED),
                ClientLeft("broken", Session.ENDED),
                Subscribed("bridgey", "over/#", 1),
                ClientLeft("silent", Session.ENDED),  # the keep-alive expired
            )
            # A take-over: the new session's subscription remains, the old one's ended with its session.
            registry = InterestRegistry()
            registry.apply(0, "log", watched.reports)
            registry.expire(3)
            assert registry.filters() == {"d/2": 0, "over/#": 1, "p/#": 2}
            assert watched.adapter.counters["lines_cut"] == 0
            for client in (old, new, bridge, silent, broken):
                client.socket.close()

            # The log file gives the same reports, in the same order.
            await watched.until_seen(ClientLeft("dup", Session.ENDED), ClientLeft("bridgey", Session.ENDED))
            follower, by_file = LogFollower(tmp_path / "mosquitto.log"), MosquittoFileAdapter(OWN)
            reports: list[Report] = []
            while isinstance(found := follower.poll(), Read):
                reports += by_file.feed(found.chunk)
            follower.close()
            # The broker's own probe connections came before the watcher subscribed.
            probes = {report.client for report in reports if isinstance(report, ClientBack)} - {
                report.client for report in watched.reports if isinstance(report, ClientBack)
            }
            assert [r for r in reports if getattr(r, "client", "") not in probes] == watched.reports

    asyncio.run(run())


def test_the_printed_configuration_is_all_that_a_broker_needs(tmp_path: Path) -> None:
    async def run() -> None:
        async with watched_broker(tmp_path, only=vendor.lines("mosquitto")) as watched:
            client = RawClient(watched.port, "c")
            client.subscribe("t/#", 1)
            client.unsubscribe("t/#")
            client.disconnect()
            await watched.until(lambda seen: len(seen) == 4)
            assert watched.reports == [
                ClientBack("c", session_kept=False),
                Subscribed("c", "t/#", 1),
                Unsubscribed("c", "t/#"),
                ClientLeft("c", Session.ENDED),
            ]

    asyncio.run(run())


def test_a_filter_too_long_for_the_log_is_refused_not_guessed(tmp_path: Path) -> None:
    async def run() -> None:
        async with watched_broker(tmp_path) as watched:
            client = RawClient(watched.port, "long")
            client.subscribe("x" * 1200, 1)
            client.subscribe("after", 1)
            await watched.until_seen(Subscribed("long", "after", 1))
            assert watched.adapter.counters["lines_cut"] == 1
            assert not any(isinstance(r, Subscribed) and r.filter.startswith("x") for r in watched.reports)
            client.disconnect()

    asyncio.run(run())


def test_an_mqtt_5_client_is_reported_and_its_sessions_fate_is_unknown(tmp_path: Path) -> None:
    async def run() -> None:
        async with watched_broker(tmp_path) as watched:
            command = ["mosquitto_sub", "-p", str(watched.port), "-V", "5", "-i", "five", "-q", "1", "-t", "v/5"]
            with subprocess.Popen([*command, "-u", "user (p2, c1, k6)"]) as client:  # noqa: ASYNC220
                await watched.until_seen(ClientBack("five", session_kept=False), Subscribed("five", "v/5", 1))
                client.terminate()
                await watched.until_seen(ClientLeft("five", Session.UNKNOWN))

    asyncio.run(run())


def test_a_session_that_expires_is_reported_as_ended(tmp_path: Path) -> None:
    async def run() -> None:
        async with watched_broker(tmp_path) as watched:
            command = ["mosquitto_sub", "-p", str(watched.port), "-V", "5", "-i", "brief", "-q", "1", "-t", "v/5"]
            with subprocess.Popen([*command, "-c", "-x", "1"]) as client:  # noqa: ASYNC220
                await watched.until_seen(ClientBack("brief", session_kept=True), Subscribed("brief", "v/5", 1))
                client.terminate()
                await watched.until_seen(ClientLeft("brief", Session.UNKNOWN), ClientLeft("brief", Session.ENDED))

    asyncio.run(run())


def test_a_bridge_of_the_broker_is_seen(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "far").mkdir()
        (tmp_path / "near").mkdir()
        async with watched_broker(tmp_path / "far") as far:
            lines = (
                "connection to-far",
                f"address 127.0.0.1:{far.port}",
                "topic # out 0",
                "remote_clientid the-bridge",
                "local_clientid local-bridge",
            )
            async with watched_broker(tmp_path / "near", *lines) as near:
                await near.until(lambda seen: any(isinstance(report, BridgeSeen) for report in seen))
                # To the remote broker, the bridge is a client with a session that is kept.
                await far.until_seen(ClientBack("the-bridge", session_kept=True))

    asyncio.run(run())
