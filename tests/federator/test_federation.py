"""A federation of real processes, seen through unmodified clients."""

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.federation import Client, RunningFederation, eventually

pytestmark = pytest.mark.processes

SHAPES = {
    "ring of three, direct links": (3, ["--overlay", "ring"]),
    "ring of three, links by broker": (3, ["--overlay", "ring", "--link", "broker"]),
    "grid of nine, direct links": (9, ["--overlay", "grid:3x3"]),
    "grid of nine, links by broker": (9, ["--overlay", "grid:3x3", "--link", "broker"]),
}


# Nine brokers and nine federators each: the rings have both kinds of links as well.
LONG = {"grid of nine, direct links", "grid of nine, links by broker"}


# On a machine that others use as well, 50 ms may not be enough: so many attempts in a row must succeed. Interest that
# waited for the next round, a second away, would be known in time once in twenty attempts.
SOON_HEARD = 3
SOON_ATTEMPTS = 20
# A publication that was sent too early never arrives. Any other arrives within milliseconds.
SOON_S = 3.0


@pytest.fixture(
    scope="module",
    params=[pytest.param(shape, marks=pytest.mark.slow) if shape in LONG else shape for shape in SHAPES],
)
def federation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFederation]:
    brokers, words = SHAPES[request.param]
    with RunningFederation(tmp_path_factory.mktemp("federation"), brokers, *words) as running:
        yield running


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_mosquitto_clients_meet_across_brokers(federation: RunningFederation, version: str) -> None:
    topic = f"hello/{version}"
    last = federation.port(federation.brokers - 1)
    command = ["mosquitto_sub", "-p", str(last), "-V", version, "-t", "hello/#", "-C", "1", "-W", "60", "-v"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as subscriber:
        eventually(lambda: federation.knows("hello/#"), "all federators know hello/#")
        words = ["mosquitto_pub", "-p", str(federation.port(0)), "-V", version, "-t", topic, "-m", "hi", "-q", "1"]
        subprocess.run(words, check=True)
        out, _ = subscriber.communicate(timeout=70)
    assert out == f"{topic} hi\n"


def test_every_subscriber_gets_every_message_once_with_any_filters(federation: RunningFederation) -> None:
    with (
        Client(federation.port(1)) as wide,
        Client(federation.port(2), version=4) as narrow,
        Client(federation.port(federation.brokers - 1)) as exact,
        Client(federation.port(0)) as publisher,
    ):
        wide.subscribe("once/#")
        narrow.subscribe("once/+/temp")
        exact.subscribe("once/a/temp")
        for group in ("once/#", "once/+/temp", "once/a/temp"):
            eventually(lambda group=group: federation.knows(group), group)  # type: ignore[misc]
        for number in range(30):
            publisher.publish("once/a/temp", b"%d" % number, number % 3)
            publisher.publish("once/b/temp", b"%d" % number, number % 3)
            publisher.publish("once/b/other", b"%d" % number, number % 3)
        assert len(wide.expect(90)) == 90
        assert len(narrow.expect(60)) == 60
        assert len(exact.expect(30)) == 30


def test_a_broker_sends_a_publication_once_if_a_wide_filter_covers_the_others(federation: RunningFederation) -> None:
    last = federation.port(federation.brokers - 1)
    with Client(last) as narrow, Client(federation.port(1)) as wide, Client(federation.port(0)) as publisher:
        narrow.subscribe("copies/x")
        wide.subscribe("copies/#")
        for group in ("copies/x", "copies/#"):
            eventually(lambda group=group: federation.knows(group), group)  # type: ignore[misc]
        publisher.publish("copies/x", b"first", 1)
        narrow.expect(1)
        before = federation.counters(0).get("host_copies", 0)
        for number in range(50):
            publisher.publish("copies/x", b"%d" % number, 1)
        narrow.expect(51)
        wide.expect(51)
        assert federation.counters(0).get("host_copies", 0) == before
        # The wide one ends, and the narrow one still receives.
        wide.client.unsubscribe("copies/#")
        for number in range(50):
            publisher.publish("copies/x", b"%d again" % number, 1)
        assert narrow.expect(101)[-1].payload == b"49 again"


def test_quality_of_service_and_all_properties_cross(federation: RunningFederation) -> None:
    with Client(federation.port(federation.brokers - 1)) as subscriber, Client(federation.port(0)) as publisher:
        subscriber.subscribe("whole/#")
        eventually(lambda: federation.knows("whole/#"), "whole/#")
        for qos in (0, 1, 2):
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.UserProperty = [("a", "1"), ("b", "2"), ("a", "3")]
            properties.ResponseTopic = "answers/here"
            properties.CorrelationData = b"\x00\x01\xff"
            properties.ContentType = "text/plain"
            properties.PayloadFormatIndicator = 1
            properties.MessageExpiryInterval = 600
            publisher.publish("whole/x", b"payload", qos, properties=properties)
        for qos, message in enumerate(subscriber.expect(3)):
            assert (message.qos, message.retain, message.payload) == (qos, False, b"payload")
            found = message.properties.json()  # type: ignore[union-attr]
            assert 590 <= found.pop("MessageExpiryInterval") <= 600
            assert found == {
                "UserProperty": [("a", "1"), ("b", "2"), ("a", "3")],
                "ResponseTopic": "answers/here",
                "CorrelationData": "0001ff",
                "ContentType": "text/plain",
                "PayloadFormatIndicator": 1,
            }


def test_empty_and_large_payloads_cross_unchanged(federation: RunningFederation) -> None:
    large = bytes(range(256)) * 4096
    with Client(federation.port(federation.brokers - 1)) as subscriber, Client(federation.port(0)) as publisher:
        subscriber.subscribe("size/#")
        eventually(lambda: federation.knows("size/#"), "size/#")
        for qos in (0, 1, 2):
            publisher.publish("size/empty", b"", qos)
            publisher.publish("size/large", large, qos)
        received = subscriber.expect(6)
        assert [message.payload for message in received if message.topic == "size/empty"] == [b""] * 3
        assert all(message.payload == large for message in received if message.topic == "size/large")


def test_the_order_per_publisher_and_topic_is_kept(federation: RunningFederation) -> None:
    with Client(federation.port(federation.brokers - 1)) as subscriber, Client(federation.port(0)) as publisher:
        subscriber.subscribe("order/#")
        eventually(lambda: federation.knows("order/#"), "order/#")
        infos = [publisher.client.publish("order/x", b"%d" % number, 1) for number in range(2_000)]
        infos[-1].wait_for_publish(30)
        assert [message.payload for message in subscriber.expect(2_000)] == [b"%d" % n for n in range(2_000)]


def test_messages_retained_before_the_first_interest_arrive_once(federation: RunningFederation) -> None:
    with Client(federation.port(0)) as publisher:
        publisher.publish("kept/x", b"retained", 1, retain=True)
    with Client(federation.port(federation.brokers - 1)) as subscriber:
        subscriber.subscribe("kept/#")
        messages = subscriber.expect(1)
        assert (messages[0].topic, messages[0].payload) == ("kept/x", b"retained")
        time.sleep(1.0)
        subscriber.expect(1)


def hears_soon(subscriber: Client) -> bool:
    until = time.monotonic() + SOON_S
    while not subscriber.messages and time.monotonic() < until:
        time.sleep(0.01)
    return bool(subscriber.messages)


def test_a_distant_subscriber_gets_publications_from_50_ms_after_its_suback(federation: RunningFederation) -> None:
    with Client(federation.port(0)) as publisher:
        heard = 0
        for attempt in range(SOON_ATTEMPTS):
            with Client(federation.port(federation.brokers - 1)) as subscriber:
                subscriber.subscribe(f"soon/{attempt}")
                time.sleep(0.05)
                publisher.publish(f"soon/{attempt}", b"now", 1)
                heard = heard + 1 if hears_soon(subscriber) else 0
            if heard == SOON_HEARD:
                return
    pytest.fail(f"in {SOON_ATTEMPTS} attempts never {SOON_HEARD} in a row were heard")


def test_traffic_without_interest_elsewhere_stays_at_its_broker(federation: RunningFederation) -> None:
    with Client(federation.port(0)) as subscriber, Client(federation.port(0)) as publisher:
        subscriber.subscribe("home/#")
        eventually(lambda: federation.knows("home/#"), "home/#")
        before = federation.counters(0).get("host_publications", 0)
        for number in range(200):
            publisher.publish("home/x", b"%d" % number)
        subscriber.expect(200)
        assert federation.counters(0).get("host_publications", 0) == before


@pytest.mark.slow
def test_filters_that_come_and_go_elsewhere_lose_and_duplicate_nothing(federation: RunningFederation) -> None:
    """One subscriber stays. Others at distant brokers subscribe and unsubscribe overlapping filters meanwhile."""
    last = federation.brokers - 1
    stop = threading.Event()

    def disturb() -> None:
        with Client(federation.port(1)) as one, Client(federation.port(last)) as other:
            while not stop.is_set():
                for client, wanted in ((one, "churn/#"), (other, "churn/+"), (one, "churn/x/#"), (other, "+/x")):
                    client.subscribe(wanted)
                    time.sleep(0.02)
                    client.client.unsubscribe(wanted)

    with Client(federation.port(last)) as subscriber, Client(federation.port(0)) as publisher:
        subscriber.subscribe("churn/x")
        eventually(lambda: federation.knows("churn/x"), "churn/x")
        disturbance = threading.Thread(target=disturb)
        disturbance.start()
        try:
            infos = [publisher.client.publish("churn/x", b"%d" % number, 1) for number in range(5_000)]
            infos[-1].wait_for_publish(60)
        finally:
            stop.set()
            disturbance.join()
        # On a busy machine, a new filter may open a route that is quicker than a backlog. `test_churn`, which has the
        # machine for itself, checks the order.
        assert sorted(int(message.payload) for message in subscriber.expect(5_000)) == list(range(5_000))


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    with RunningFederation(tmp_path, 2, "--overlay", "line") as running:
        pids = [row[key] for row in running.state["federators"] for key in ("broker_pid", "federator_pid")]
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not running.state_path.exists()
