"""The recipe that makes paho-mqtt follow Server References, with a real Mosquitto behind the reference."""

import asyncio
import importlib.util
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from tests.brokers import Mosquitto
from tests.client.referrer import Referrer, When
from tests.client.stories import run, until
from tests.gateways import Gateway, wait_until

pytestmark = pytest.mark.processes
RECIPE = Path(__file__).parents[2] / "examples" / "redirects" / "paho_redirects.py"
TEMPORARY, MOVED = 0x9C, 0x9D


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    with Mosquitto() as one:
        yield one


@pytest.fixture(scope="module")
def recipe() -> Any:
    spec = importlib.util.spec_from_file_location("paho_redirects", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["paho_redirects"] = module
    spec.loader.exec_module(module)
    return module


class Paho:
    """A client in its own thread, which subscribes in `on_connect` and keeps what it gets."""

    def __init__(self, redirects: Callable[..., Any], port: int, *, follow: set[str]) -> None:
        self.connects: list[int] = []
        self.got: list[bytes] = []
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self.client.reconnect_delay_set(1, 1)
        self.client.on_connect = self._on_connect
        self.client.on_message = lambda _client, _data, message: self.got.append(bytes(message.payload))
        self.redirects = redirects(self.client, "127.0.0.1", port, follow=follow)
        self.redirects.connect()
        self.client.loop_start()

    def _on_connect(self, client: mqtt.Client, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
        self.connects.append(code.value)
        if not code.is_failure:
            client.subscribe("paho/#", qos=1)

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize("when", ["connect", "subscribe"])
@pytest.mark.parametrize(("code", "visits"), [(TEMPORARY, 2), (MOVED, 1)])
def test_paho_follows_and_returns_only_after_a_temporary_reference(
    broker: Mosquitto, recipe: Any, when: When, code: int, visits: int
) -> None:
    async def story() -> None:
        async with Referrer(code, f"127.0.0.1:{broker.port}", when=when) as gateway:
            paho = Paho(recipe.Redirects, gateway.port, follow={"127.0.0.1"})
            try:
                for arrived in (1, 2):
                    await until(
                        lambda: paho.redirects.current[1] == broker.port and paho.client.is_connected(), "the broker"
                    )
                    while len(paho.got) < arrived:
                        paho.client.publish("paho/1", b"hello", qos=1)
                        await asyncio.sleep(0.05)
                    paho.got = [b""] * arrived
                    assert len(gateway.connects) == (1 if arrived == 1 else visits)
                    if arrived == 1:
                        cut: Any = paho.client.socket()
                        cut.shutdown(socket.SHUT_RDWR)
                        await until(lambda: not paho.client.is_connected(), "the loss")
                assert ("server-reference", "follow") in gateway.connects[0].user_properties
            finally:
                await asyncio.to_thread(paho.stop)

    run(story)


def test_attack_paho_does_not_go_where_it_may_not(broker: Mosquitto, recipe: Any) -> None:
    async def story() -> None:
        async with Referrer(TEMPORARY, None) as evil, Referrer(TEMPORARY, f"127.0.0.1:{evil.port}") as gateway:
            paho = Paho(recipe.Redirects, gateway.port, follow={f"127.0.0.1:{broker.port}"})
            try:
                await until(lambda: len(gateway.connects) >= 2, "the second visit at the gateway")
                assert not evil.connects
            finally:
                await asyncio.to_thread(paho.stop)

    run(story)


def test_paho_is_redirected_by_a_real_gateway(broker: Mosquitto, recipe: Any, tmp_path: Path) -> None:
    async def story(port: int) -> None:
        paho = Paho(recipe.Redirects, port, follow={f"127.0.0.1:{broker.port}"})
        try:
            await until(lambda: paho.redirects.current[1] == broker.port and paho.client.is_connected(), "the broker")
            while not paho.got:
                paho.client.publish("paho/1", b"hello", qos=1)
                await asyncio.sleep(0.05)
        finally:
            await asyncio.to_thread(paho.stop)

    with Gateway(tmp_path, broker.url, words=("--mode", "auto")) as gateway:
        run(lambda: story(gateway.port))
        wait_until(lambda: gateway.health()["clients"] == 0, "the gateway has no client any more")
