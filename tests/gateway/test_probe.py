"""The health session at real brokers that are killed, stopped, restarted, or want a login."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.brokers import Mosquitto, free_port
from tests.gateway.test_discover_brokers import served

from hanse.errors import Unavailable
from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.brokers.health import suspects_to_judge
from hanse.gateway.brokers.probe import Probe
from hanse.gateway.placement import Broker
from hanse.mqtt.properties import varint
from hanse.mqtt.tls import TlsSettings

pytestmark = [pytest.mark.processes, pytest.mark.anyio]

TIMEOUT_S = 0.5
WAIT_S = 30.0


class Watched:
    """A probe, and its reports."""

    def __init__(self, url: str, username: str | None = None) -> None:
        self.verdicts: list[str] = []
        self.connacks: list[tuple[bytes, int]] = []
        self.probe = Probe(
            Broker("a", url),
            Dialler(TlsSettings()),
            "hanse-health",
            username=username,
            password=None,
            interval_s=0.05,
            timeout_s=TIMEOUT_S,
            on_changed=lambda probe: self.verdicts.append(probe.health.verdict),
            on_connack=lambda _probe, packet, level: self.connacks.append((packet, level)),
            clock=time.monotonic,
        )

    def judge(self) -> None:
        # Two healthy neighbours, so that one suspect is not more than half.
        health = self.probe.health
        named = [("a", health), ("b", type(health)()), ("c", type(health)())]
        for _ in suspects_to_judge(named, time.monotonic(), TIMEOUT_S)[0]:
            health.hung(TIMEOUT_S)
            self.verdicts.append(health.verdict)


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[Watched]:
    watched = Watched(url)
    watched.probe.start()
    try:
        yield watched
    finally:
        await watched.probe.stop()


async def until(condition: Callable[[], bool], what: str, each: Callable[[], None] = lambda: None) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        each()
        await asyncio.sleep(0.01)


async def test_a_refusal_with_a_long_reason_is_a_refusal() -> None:
    """A CONNACK of 128 bytes or more has a longer header, so its code stands one byte later."""
    reason = b"\x1f" + (200).to_bytes(2, "big") + b"r" * 200
    answer = b"\x20" + varint(2 + 2 + len(reason)) + b"\x00\x88" + varint(len(reason)) + reason

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        await reader.read(1000)
        writer.close()

    async with served(serve) as port, watching(f"mqtt://127.0.0.1:{port}") as watched:
        await until(lambda: watched.probe.health.verdict == "refused", "refused")
        assert watched.connacks == []


async def test_a_killed_broker_is_refused_and_comes_back() -> None:
    with Mosquitto() as broker:
        async with watching(f"mqtt://127.0.0.1:{broker.port}") as watched:
            health = watched.probe.health
            await until(lambda: health.rtt_s is not None and bool(watched.connacks), "an answer")
            assert watched.connacks[0][1] == 5
            broker.kill()
            await until(lambda: health.verdict == "refused", "refused")
            broker.restart()
            await until(lambda: health.verdict == "up", "up again")
            assert watched.verdicts == ["refused", "up"]


async def test_a_stopped_broker_is_hung_and_comes_back() -> None:
    with Mosquitto() as broker:
        async with watching(f"mqtt://127.0.0.1:{broker.port}") as watched:
            health = watched.probe.health
            await until(lambda: health.rtt_s is not None, "an answer")
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                await until(lambda: health.verdict == "hung", "hung", watched.judge)
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            await until(lambda: health.verdict == "up", "up again", watched.judge)


async def test_a_restart_is_noticed_although_the_broker_is_up() -> None:
    with Mosquitto() as broker:
        async with watching(f"mqtt://127.0.0.1:{broker.port}") as watched:
            health = watched.probe.health
            await until(lambda: health.rtt_s is not None, "an answer")
            before = health.incarnation
            broker.restart()
            await until(lambda: health.incarnation > before and health.verdict == "up", "another incarnation")


async def test_a_broker_that_wants_a_login_is_up(tmp_path: Path) -> None:
    (tmp_path / "passwords").write_text("")
    with Mosquitto(f"password_file {tmp_path / 'passwords'}", anonymous=False) as broker:
        async with watching(f"mqtt://127.0.0.1:{broker.port}") as watched:
            health = watched.probe.health
            await until(lambda: health.rtt_s is not None, "an answer")
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                await until(lambda: health.verdict == "hung", "hung", watched.judge)
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            await until(lambda: health.verdict == "up", "up again", watched.judge)


async def test_a_broker_that_refuses_the_login_is_asked_less_and_less_often() -> None:
    asked: list[float] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        asked.append(time.monotonic())
        writer.write(b"\x20\x03\x00\x86\x00")
        await reader.read(1000)
        writer.close()

    async with served(serve) as port, watching(f"mqtt://127.0.0.1:{port}") as watched:
        await until(lambda: len(asked) >= 5, "five attempts")
        assert watched.probe.health.verdict == "up"
        # The pauses are 0.05, 0.1, 0.2 and 0.4 s.
        assert asked[4] - asked[3] > 0.3


async def test_a_broker_that_was_never_there_is_refused() -> None:
    async with watching(f"mqtt://127.0.0.1:{free_port()}") as watched:
        await until(lambda: watched.probe.health.verdict == "refused", "refused")
        assert "cannot be reached" in watched.probe.health.detail


async def test_source_addresses_are_taken_in_turn() -> None:
    peers: list[str] = []

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            peers.append(transport.get_extra_info("peername")[0])

    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    dialler = Dialler(TlsSettings(), ["127.0.0.2", "127.0.0.3"])
    made: list[asyncio.Protocol] = []

    class Client(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(self)
            # uvloop closes a given socket twice if it is closed within this call.
            asyncio.get_running_loop().call_soon(transport.close)

    for _ in range(4):
        await dialler.dial(f"mqtt://127.0.0.1:{port}", Client)
    await until(lambda: len(peers) == 4, "four connections")
    assert sorted(peers) == ["127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3"]
    server.close()


async def test_a_unix_socket_is_dialled(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    with Mosquitto(f"listener 0 {path}") as broker:
        assert broker.port
        async with watching(f"unix:{path}") as watched:
            await until(lambda: watched.probe.health.rtt_s is not None, "an answer")


async def test_a_broker_without_tls_is_unavailable_by_mqtts() -> None:
    with Mosquitto() as broker, pytest.raises(Unavailable, match=r"mqtts://127\.0\.0\.1"):
        await Dialler(TlsSettings()).dial(f"mqtts://127.0.0.1:{broker.port}", asyncio.Protocol)
