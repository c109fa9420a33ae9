"""The recipe that makes MQTT.js follow Server References, with a real Mosquitto behind the reference."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from tests.brokers import Mosquitto, free_port
from tests.certificates import authority, certificate
from tests.client.referrer import Referrer, When
from tests.client.stories import run, until
from tests.gateways import Gateway

from hanse.mqtt.tls import TlsSettings, server_context

pytestmark = [pytest.mark.processes, pytest.mark.slow]
RECIPE = Path(__file__).parents[2] / "examples" / "redirects" / "mqttjs_redirects.mjs"
VERSION = "5.16.0"
TEMPORARY, MOVED = 0x9C, 0x9D


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MQTT.js from npm, the recipe, and certificates."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed; apt-get install nodejs npm")
    made = tmp_path_factory.mktemp("mqttjs")
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", f"mqtt@{VERSION}"], cwd=made, check=True)
    shutil.copy(RECIPE, made)
    shutil.copy(Path(__file__).parent / "mqttjs_driver.mjs", made)
    authority(made, "ours")
    certificate(made, "ours", "server")  # for localhost and 127.0.0.1
    return made


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    with Mosquitto() as one:
        yield one


class MqttJs:
    """A Node process with one client: `async with MqttJs(folder, url, "127.0.0.1") as client`."""

    def __init__(self, folder: Path, url: str, follow: str) -> None:
        self._words = ["node", "mqttjs_driver.mjs", url, follow, "js/1"]
        self._folder = folder
        self.said: list[list[object]] = []

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._words,
            cwd=self._folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "NODE_EXTRA_CA_CERTS": str(self._folder / "ours.crt")},
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.said.append(json.loads(line))

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())


@pytest.mark.parametrize("when", ["connect", "subscribe"])
@pytest.mark.parametrize(("code", "visits"), [(TEMPORARY, 2), (MOVED, 1)])
def test_mqttjs_follows_and_returns_only_after_a_temporary_reference(
    folder: Path, broker: Mosquitto, when: When, code: int, visits: int
) -> None:
    async def story() -> None:
        async with (
            Referrer(code, f"127.0.0.1:{broker.port}", when=when) as gateway,
            MqttJs(folder, gateway.url, "127.0.0.1") as client,
        ):
            await until(lambda: ["subscribed", broker.port] in client.said, "the subscription at the broker")
            client.tell("hello")
            await until(lambda: ["message", "hello"] in client.said, "the message")
            assert len(gateway.connects) == 1
            client.said.clear()
            client.tell("cut")
            await until(lambda: ["subscribed", broker.port] in client.said, "the return to the broker")
            client.tell("again")
            await until(lambda: ["message", "again"] in client.said, "the second message")
            assert len(gateway.connects) == visits
            assert ("server-reference", "follow") in gateway.connects[0].user_properties

    run(story)


def test_attack_mqttjs_does_not_go_where_it_may_not(folder: Path) -> None:
    async def story() -> None:
        async with (
            Referrer(TEMPORARY, None) as evil,
            Referrer(TEMPORARY, f"127.0.0.1:{evil.port}") as gateway,
            MqttJs(folder, gateway.url, "broker.example.org"),
        ):
            await until(lambda: len(gateway.connects) >= 3, "the third visit at the gateway")
            assert not evil.connects

    run(story)


def test_mqttjs_checks_the_name_of_the_new_server(folder: Path) -> None:
    files = TlsSettings(cert_file=folder / "server.crt", key_file=folder / "server.key")
    own = (f"certfile {folder}/server.crt", f"keyfile {folder}/server.key")
    port = free_port()
    lines = (*own, f"listener {port} 127.0.0.2", "allow_anonymous true", *own)

    async def story() -> None:
        with Mosquitto(*lines) as broker:
            async with Referrer(TEMPORARY, f"127.0.0.1:{broker.port}", context=server_context(files)) as gateway:
                async with MqttJs(folder, gateway.url, "127.0.0.1") as client:
                    await until(lambda: ["subscribed", broker.port] in client.said, "the subscription at the broker")
                # The certificate holds no such name.
                gateway.references = f"127.0.0.2:{port}"
                async with MqttJs(folder, gateway.url, "127.0.0.2") as client:
                    await until(lambda: any("altnames" in str(one) for one in client.said), "the refusal of the name")
                    assert ["subscribed", port] not in client.said

    run(story)


def test_mqttjs_is_redirected_by_a_real_gateway(folder: Path, broker: Mosquitto, tmp_path: Path) -> None:
    async def story(port: int) -> None:
        async with MqttJs(folder, f"mqtt://127.0.0.1:{port}", f"127.0.0.1:{broker.port}") as client:
            await until(lambda: ["subscribed", broker.port] in client.said, "the subscription at the broker")
            client.tell("hello")
            await until(lambda: ["message", "hello"] in client.said, "the message")

    with Gateway(tmp_path, broker.url, words=("--mode", "auto")) as gateway:
        run(lambda: story(gateway.port))
