"""Looks at a real Mosquitto."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client

from hanse.errors import Unavailable
from hanse.federator.retained.look import Seen, look, with_qos
from hanse.mqtt.client import ClientSettings
from hanse.mqtt.publication import encode, payload_of, qos_of
from hanse.mqtt.publication import encode as publish

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    # The usual bounds: a subscription of QoS 1 would lose what exceeds them.
    with Mosquitto("sys_interval 1", "max_queued_messages 100", quiet=True) as running:
        yield running


def see(broker: Mosquitto, *filters: str, known: dict[str, int] | None = None) -> Seen:
    settings = ClientSettings(broker.url, "look")
    return asyncio.run(look(settings, filters, lambda topic, _: None if known is None else known.get(topic)))


def test_a_look_shows_what_is_retained_with_its_qos(broker: Mosquitto) -> None:
    with Client(broker.port) as client:
        for qos in range(3):
            client.publish(f"one/{qos}", b"value %d" % qos, qos, retain=True)
        client.publish("other", b"x", retain=True)
        client.publish("one/live", b"x")
    seen = see(broker, "one/#", "one/+", "one/0")
    found = {topic: (payload_of(packet), qos_of(packet), packet[0] & 1) for topic, packet in seen.found.items()}
    assert found == {f"one/{qos}": (b"value %d" % qos, qos, 1) for qos in range(3)}
    assert seen.uptime_s is not None
    assert seen.refused == frozenset()


def test_a_qos_that_is_known_is_not_asked_for(broker: Mosquitto) -> None:
    with Client(broker.port) as client:
        client.publish("known/x", b"v", 0, retain=True)
    seen = see(broker, "known/x", known={"known/x": 2})
    assert seen.found["known/x"] == encode("known/x", b"v", qos=2, retain=True)


def test_a_look_without_filters_shows_the_uptime(broker: Mosquitto) -> None:
    seen = see(broker)
    assert seen.found == {}
    assert seen.uptime_s is not None


def test_a_look_is_whole_beyond_the_limits_of_the_broker(broker: Mosquitto) -> None:
    with Client(broker.port) as client:
        last = [client.client.publish(f"many/{number}", b"v", 1, retain=True) for number in range(5_000)][-1]
        last.wait_for_publish(30)
    assert len(see(broker, "many/#").found) == 5_000


def test_a_broker_that_is_away_is_an_error(broker: Mosquitto) -> None:
    settings = replace(ClientSettings(broker.url, "look"), url="mqtt://127.0.0.1:1")
    with pytest.raises(Unavailable):
        asyncio.run(look(settings, ["#"]))


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 120, 124, 126, 20_000])
def test_a_packet_gets_another_qos(qos: int, size: int) -> None:
    assert with_qos(publish("a/b", b"x" * size), qos) == publish("a/b", b"x" * size, qos=qos)
