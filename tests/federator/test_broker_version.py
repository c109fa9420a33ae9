"""Mosquittos served as if they spoke no MQTT 5: everything works that a 3.1.1 host with QoS 2 supports."""

import contextlib
import re
from collections.abc import Iterator, Sequence

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, Federator, is_meshed, knows_all, ring, running

pytestmark = pytest.mark.processes

Two = tuple[Sequence[Mosquitto], Sequence[Federator]]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with Mosquitto(*LOG_LINES) as one, Mosquitto(*LOG_LINES) as other:
        words = [["--broker-version", "4"]] * 2
        federators = ring([one, other], tmp_path_factory.mktemp("older"), words)
        with running(federators):
            yield (one, other), federators


def test_the_requested_version_is_used(two: Two) -> None:
    for broker, federator in zip(*two, strict=True):
        assert "hanse_federator_host_mqtt_version 4" in federator.metrics()
        # Mosquitto's number for 3.1.1 is 2.
        assert re.search(rf"as hanse-federator-{federator.id}-[0-9a-f]{{32}} \(p2", broker.log)


def test_every_subscriber_gets_everything_once_at_each_qos(two: Two) -> None:
    brokers, federators = two
    with contextlib.ExitStack() as stack:
        subscribers = []
        for broker in brokers:
            for wanted in ("v4/#", "v4/+", "+/x"):
                subscribers.append(stack.enter_context(Client(broker.port)))
                subscribers[-1].subscribe(wanted, 2)
        for group in ("v4/#", "v4/+", "+/x"):
            eventually(lambda group=group: is_meshed(federators, group), group)  # type: ignore[misc]
        for broker in brokers:
            publisher = stack.enter_context(Client(broker.port))
            for number in range(60):
                publisher.publish("v4/x", b"%d" % (number % 4), number % 3)
        for subscriber in subscribers:
            received = subscriber.expect(120)
            assert sorted(message.qos for message in received) == [0] * 40 + [1] * 40 + [2] * 40
        assert [one.counters()["echoes_cancelled"] for one in federators] == [60, 60]


def test_properties_that_3_1_1_lacks_are_lost_and_counted(two: Two) -> None:
    brokers, federators = two
    with Client(brokers[1].port) as subscriber, Client(brokers[0].port) as publisher:
        subscriber.subscribe("lost/#")
        eventually(lambda: knows_all(federators, "lost/#"), "lost/#")
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.UserProperty = [("a", "1")]
        publisher.publish("lost/x", b"kept here", 1, retain=True, properties=properties)
        (message,) = subscriber.expect(1)
        assert (message.payload, message.retain) == (b"kept here", False)
        assert message.properties is None or message.properties.json() == {}  # type: ignore[no-untyped-call]
        # A look finds that it is retained. To store it is to deliver it once more.
        eventually(lambda: len(subscriber.messages) == 2, "it is retained here, too")
        assert (subscriber.messages[1].payload, subscriber.messages[1].retain) == (b"kept here", True)


def test_properties_from_elsewhere_are_counted_as_lost(two: Two) -> None:
    """Use a federator at the same broker that speaks MQTT 5, and so brings properties into the federation."""
    brokers, federators = two
    with Mosquitto(*LOG_LINES) as third:
        newer = Federator(2, third.url, federators[0].directory)
        newer.words += ["--link-listen", newer.link_url, "--neighbour", federators[0].link_url]
        newer.start()
        try:
            eventually(lambda: newer.neighbours() == [0], "the third is linked")
            with Client(brokers[0].port) as subscriber, Client(third.port) as publisher:
                subscriber.subscribe("rich/#")
                eventually(lambda: newer.knows("rich/#"), "rich/#")
                properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
                properties.ContentType = "text/plain"
                publisher.publish("rich/x", b"x", 2, properties=properties)
                subscriber.expect(1)
                assert "hanse_federator_host_properties_lost_total 1" in federators[0].metrics()
        finally:
            newer.end()


def test_a_restarted_federator_begins_with_a_new_session(two: Two) -> None:
    brokers, federators = two
    with Client(brokers[1].port) as subscriber, Client(brokers[0].port) as publisher:
        subscriber.subscribe("again/#")
        eventually(lambda: knows_all(federators, "again/#"), "again/#")
        federators[0].end()
        federators[0].start()
        eventually(lambda: federators[0].neighbours() == [1], "it is back")
        eventually(lambda: knows_all(federators, "again/#"), "again/#")
        publisher.publish("again/x", b"x", 2)
        subscriber.expect(1)
