"""The client over WebSocket, plain and TLS, against a real Mosquitto."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.brokers import Mosquitto, free_port
from tests.certificates import authority, certificate
from tests.client.referrer import Referrer
from tests.client.stories import QUICK, run, take, until

from hanse.client import Client, LocalError, TlsSettings, Unavailable

pytestmark = pytest.mark.processes


class Ports(NamedTuple):
    """The listeners of one broker, and where its certificates lie."""

    folder: Path
    tcp: int
    plain: int
    secure: int


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    folder = tmp_path_factory.mktemp("certificates")
    authority(folder, "ours")
    certificate(folder, "ours", "server")  # for localhost and 127.0.0.1
    plain, secure = free_port(), free_port()
    lines = [
        *(f"listener {plain} 127.0.0.1", "protocol websockets", "socket_domain ipv4", "allow_anonymous true"),
        *(f"listener {secure} 127.0.0.1", "protocol websockets", "socket_domain ipv4", "allow_anonymous true"),
        f"cafile {folder}/ours.crt",
        f"certfile {folder}/server.crt",
        f"keyfile {folder}/server.key",
    ]
    with Mosquitto(*lines) as broker:
        yield Ports(folder, broker.port, plain, secure)


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_messages_of_every_qos_and_size_arrive_over_a_websocket(ports: Ports, scheme: str) -> None:
    folder, tcp, plain, secure = ports
    url = f"ws://127.0.0.1:{plain}/mqtt" if scheme == "ws" else f"wss://localhost:{secure}"
    tls = TlsSettings(ca_file=folder / "ours.crt") if scheme == "wss" else None
    # Packets above 4 KiB pass a WebSocket of Mosquitto 2.0.11 at 40 kB/s, both ways and however they are framed.
    payloads = [os.urandom(size) for size in (0, 1, 125, 126, 5_000)]
    large = os.urandom(20_000)

    async def story() -> None:
        async with Client(url, tls=tls, backoff=QUICK) as client, client.messages("web/#", qos=2) as stream:
            assert client.address.startswith(f"{scheme}://")
            for qos in (0, 1, 2):
                for payload in payloads:
                    await client.publish(f"web/{qos}", payload, qos=qos)
            got = await take(stream, 15)
            for qos in (0, 1, 2):
                assert [one.payload for one in got if one.topic == f"web/{qos}"] == payloads
            async with Client(f"mqtt://127.0.0.1:{tcp}") as publisher:
                await publisher.publish("web/large", large, qos=2)
            assert [one.payload for one in await take(stream, 1)] == [large]
            client._session.abort()
            await until(lambda: client.counters.connects == 2 and client._session.is_subscribed, "the return")
            await client.publish("web/again", "x")
            assert [one.topic for one in await take(stream, 1)] == ["web/again"]

    run(story)


def test_a_plain_mqtt_listener_is_no_websocket_and_the_error_says_so() -> None:
    async def story() -> None:
        with Mosquitto() as broker, pytest.raises(Unavailable, match="WebSocket listener"):
            async with Client(f"ws://127.0.0.1:{broker.port}", connect_timeout_s=0.5, backoff=QUICK):
                pass

    run(story)


def test_a_silent_server_is_given_up_after_the_connect_timeout() -> None:
    async def story() -> None:
        closed = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(1_000):
                pass
            writer.close()
            closed.set()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(Unavailable, match="within"):
                async with Client(f"ws://127.0.0.1:{port}", connect_timeout_s=0.2):
                    pass
            await asyncio.wait_for(closed.wait(), 20)

    run(story)


def test_attack_reference_cannot_lead_a_websocket_to_another_transport(ports: Ports) -> None:
    async def story() -> None:
        # A plain gateway names a WebSocket port: the client dials it as plain MQTT, and never leaves its transport.
        async with Referrer(0x9C, f"127.0.0.1:{ports.plain}") as gateway:
            with pytest.raises(Unavailable):
                async with Client(gateway.url, follow=["127.0.0.1"], connect_timeout_s=0.5, backoff=QUICK):
                    pass
            assert len(gateway.connects) >= 2

    run(story)


def test_tls_files_for_a_plain_websocket_are_a_local_error() -> None:
    async def story() -> None:
        with pytest.raises(LocalError, match="wss"):
            Client("ws://localhost", tls=TlsSettings())

    run(story)
