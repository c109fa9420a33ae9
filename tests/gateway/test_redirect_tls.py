"""A redirect from a listener with TLS to a broker with TLS, followed by `hanse.client`, which checks both names."""

import asyncio
from pathlib import Path

import pytest
from tests.brokers import Mosquitto, free_port
from tests.certificates import authority, certificate
from tests.gateways import Gateway

from hanse.client import Client, Connected, Event, Redirected
from hanse.mqtt.tls import TlsSettings

pytestmark = pytest.mark.processes


@pytest.mark.anyio
async def test_a_client_with_tls_is_sent_only_to_brokers_with_tls(tmp_path: Path) -> None:
    authority(tmp_path, "ours")
    for name in ("gateway", "broker"):
        certificate(tmp_path, "ours", name)
    files = [f"{what} {tmp_path}/broker.{kind}" for what, kind in (("certfile", "crt"), ("keyfile", "key"))]
    with Mosquitto() as plain, Mosquitto(*files, port=free_port()) as safe:
        listed = (f"plain=mqtt://127.0.0.1:{plain.port}", f"safe=mqtts://127.0.0.1:{safe.port}")
        certified = ("--cert-file", f"{tmp_path}/gateway.crt", "--key-file", f"{tmp_path}/gateway.key")
        words = ("--mode", "auto", "--broker-ca-file", f"{tmp_path}/ours.crt", *certified)
        with Gateway(tmp_path / "g", *listed, words=words, listen=("mqtts://127.0.0.1:0",)) as gateway:
            events: list[Event] = []
            tls = TlsSettings(ca_file=tmp_path / "ours.crt")
            url = f"mqtts://localhost:{gateway.port}"
            async with (
                asyncio.timeout(60),
                Client(url, tls=tls, follow=["127.0.0.1"], on_event=events.append) as client,
                client.messages("safe/t", qos=1) as messages,
            ):
                target = f"mqtts://127.0.0.1:{safe.port}"
                while not any(isinstance(one, Connected) and one.address == target for one in events):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await client.publish("safe/t", b"hello", qos=1)
                async for message in messages:
                    assert message.payload == b"hello"
                    break
    assert [(one.target, one.reason_code) for one in events if isinstance(one, Redirected)] == [(target, 0x9C)]
    assert not any("plain" in str(one) for one in events)
