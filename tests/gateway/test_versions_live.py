"""Brokers that speak different versions of MQTT behind one gateway."""

from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.gateway import packets as p
from tests.gateway.placing import name_at
from tests.gateways import Gateway, RawClient, wait_until

from hanse.local.nats import Nats

pytestmark = pytest.mark.processes


def test_a_client_goes_past_a_broker_that_does_not_speak_its_version(tmp_path: Path) -> None:
    with Nats() as older, Mosquitto() as newer:
        urls = (f"older=mqtt://127.0.0.1:{older.port}", f"newer=mqtt://127.0.0.1:{newer.port}")
        name = name_at("older", ("older", "newer"))
        with Gateway(tmp_path / "both", *urls) as gateway:
            with RawClient(gateway.port) as client:
                client.send(p.connect(5, name.encode()).packet)
                assert client.packet()[3] == 0
                client.send(p.publish(b"a", b"x", 1, 1))
                assert client.packet()[0] == 0x40
                wait_until(lambda: gateway.metric('hanse_gateway_broker_clients{broker="newer"}') == 1, "at the newer")
            with RawClient(gateway.port) as client:
                client.send(p.connect(4, name.encode()).packet)
                assert client.packet() == b"\x20\x02\0\0"
                wait_until(lambda: gateway.metric('hanse_gateway_broker_clients{broker="older"}') == 1, "at the older")
        with Gateway(tmp_path / "one", urls[0]) as gateway, RawClient(gateway.port) as client:
            client.send(p.connect(5, name.encode()).packet)
            # The code with which clients fall back to 3.1.1.
            assert client.packet()[3] == 0x84
            assert client.is_closed()
