"""One federation of Mosquitto, RabbitMQ and NATS, seen through plain clients: only subscriptions, no beacons."""

import base64
import contextlib
import itertools
import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, Federator, is_meshed, knows_all, ring, running

from hanse.interest.vendor import RABBITMQ_OWN
from hanse.local.nats import Nats
from hanse.local.rabbitmq import Rabbitmq

# RabbitMQ alone takes twenty seconds of a processor to start. A 3.1.1 host is in `test_broker_version` as well.
pytestmark = [pytest.mark.processes, pytest.mark.slow]

AnyBroker = Mosquitto | Rabbitmq | Nats
USER = "hanse"
NAMES = ("mosquitto", "rabbitmq", "nats")
POLL = ("--poll-interval", "200ms")


@dataclass(frozen=True)
class Makes:
    brokers: dict[str, AnyBroker]
    federators: Sequence[Federator]

    def client(self, make: str, name: str = "") -> Client:
        return Client(self.brokers[make].port, version=5 if make == "mosquitto" else 4, name=name)

    def at(self, make: str) -> Federator:
        return self.federators[NAMES.index(make)]

    def knows(self, *groups: str) -> None:
        for group in groups:
            eventually(lambda group=group: knows_all(self.federators, group), f"all know {group}")  # type: ignore[misc]

    def wants(self, make: str, group: str) -> bool:
        return any(row["group"] == group and row["interest"] for row in self.at(make).page("/groups")["groups"])

    def want(self, *groups: str) -> None:
        """Wait until every federator has local interest in each of them, and a neighbour in its mesh."""
        for group in groups:
            eventually(lambda group=group: all(self.wants(make, group) for make in NAMES), f"all want {group}")  # type: ignore[misc]
            eventually(lambda group=group: is_meshed(self.federators, group), f"{group} has its mesh")  # type: ignore[misc]

    def count(self, make: str, what: str) -> int:
        return self.at(make).counters().get(what, 0)


def make_user(broker: Rabbitmq) -> None:
    """Make the user that `hanse interest config` describes, with exactly its permissions."""
    rights = dict.fromkeys(("configure", "write", "read"), RABBITMQ_OWN)
    documents = {
        f"/api/users/{USER}": {"password": USER, "tags": "monitoring"},
        f"/api/permissions/%2F/{USER}": rights,
    }
    for path, document in documents.items():
        request = urllib.request.Request(broker.list_url + path, json.dumps(document).encode(), method="PUT")
        request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request, timeout=20).close()


def words(make: str, broker: AnyBroker) -> list[str]:
    if isinstance(broker, Mosquitto):
        return []
    login = []
    if isinstance(broker, Rabbitmq):
        make_user(broker)
        login = ["--username", USER, "--password", USER, "--poll-username", USER, "--poll-password", USER]
    return ["--interest", f"poll:{make}", "--poll-url", broker.list_url, *login, *POLL]


@pytest.fixture(scope="module")
def makes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Makes]:
    with contextlib.ExitStack() as stack:
        mosquitto = stack.enter_context(Mosquitto(*LOG_LINES, "persistence true", "autosave_interval 1"))
        rabbitmq = stack.enter_context(Rabbitmq())
        nats = stack.enter_context(Nats())
        brokers: dict[str, AnyBroker] = {"mosquitto": mosquitto, "rabbitmq": rabbitmq, "nats": nats}
        chosen = [words(make, broker) for make, broker in brokers.items()]
        federators = ring(list(brokers.values()), tmp_path_factory.mktemp("makes"), chosen)
        stack.enter_context(running(federators))
        yield Makes(brokers, federators)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(("here", "there"), list(itertools.permutations(NAMES, 2)))
def test_a_message_crosses_between_each_pair_once(makes: Makes, here: str, there: str, qos: int) -> None:
    topic = f"pair/{here}/{there}/{qos}"
    with makes.client(there) as subscriber, makes.client(here) as local, makes.client(here) as publisher:
        subscriber.subscribe(f"{topic}/#", 1)
        local.subscribe(f"{topic}/+", 1)
        makes.knows(f"{topic}/#", f"{topic}/+")
        for number in range(20):
            publisher.publish(f"{topic}/x", b"%d" % number, qos)
        expected = [b"%d" % number for number in range(20)]
        assert [message.payload for message in subscriber.expect(20)] == expected
        assert {message.qos for message in subscriber.messages} == {qos}
        assert [message.payload for message in local.expect(20)] == expected


def test_every_client_publishes_and_gets_everything_once(makes: Makes) -> None:
    """Filters overlap everywhere, and none covers all: deliveries come back at two of three brokers.

    At one of them they come back several times.
    """
    with contextlib.ExitStack() as stack:
        subscribers = []
        for make, filters in zip(
            NAMES, (["+/a/#", "all/+/b"], ["all/#", "all/a/+"], ["all/a/b", "+/a/b"]), strict=True
        ):
            for wanted in filters:
                subscribers.append(stack.enter_context(makes.client(make)))
                subscribers[-1].subscribe(wanted, 1)
        makes.knows("+/a/#", "all/#", "all/+/b", "all/a/+", "all/a/b", "+/a/b")
        before = {make: makes.count(make, "echoes_cancelled") for make in NAMES}
        for make in NAMES:
            publisher = stack.enter_context(makes.client(make))
            for number in range(30):
                publisher.publish("all/a/b", f"{make}-{number}".encode(), number % 2)
        expected = sorted(f"{make}-{number}".encode() for make in NAMES for number in range(30))
        for subscriber in subscribers:
            eventually(lambda one=subscriber: len(one.messages) >= 90, "90 messages")  # type: ignore[misc]
        stands_still(makes)
        for subscriber in subscribers:
            assert sorted(message.payload for message in subscriber.messages) == expected
        cancelled = {make: makes.count(make, "echoes_cancelled") - before[make] for make in NAMES}
        assert cancelled == {"mosquitto": 0, "rabbitmq": 60, "nats": 60}
        assert makes.count("nats", "host_copies") > 0
        assert makes.count("rabbitmq", "host_copies") == 0


def stands_still(makes: Makes) -> None:
    """Wait until nothing loops: all counters of all federators stay the same for a while."""

    def traffic() -> list[int]:
        return [makes.count(make, what) for make in NAMES for what in ("host_publications", "delivered")]

    def is_still() -> bool:
        before = traffic()
        time.sleep(0.5)
        return traffic() == before

    eventually(is_still, "nothing goes round")


@pytest.mark.parametrize("here", NAMES)
def test_equal_publications_in_a_row_all_arrive(makes: Makes, here: str) -> None:
    """The memory of contents must not take one for the other's echo: the number of equal ones stays right."""
    wanted = (f"equal/{here}/#", f"equal/{here}/+")
    with contextlib.ExitStack() as stack:
        subscribers = [stack.enter_context(makes.client(make)) for make in (*NAMES, *NAMES)]
        for k, subscriber in enumerate(subscribers):
            subscriber.subscribe(wanted[k // 3], 1)
        makes.want(*wanted)
        publisher = stack.enter_context(makes.client(here))
        for _ in range(25):
            publisher.publish(f"equal/{here}/x", b"the same", 1)
        for subscriber in subscribers:
            subscriber.expect(25)
        stands_still(makes)
        for subscriber in subscribers:
            subscriber.expect(25)


@pytest.mark.parametrize("here", ["rabbitmq", "nats"])
def test_a_new_subscription_at_an_older_host_does_not_replay_into_the_federation(makes: Makes, here: str) -> None:
    with makes.client(here) as publisher, makes.client("mosquitto") as first:
        publisher.publish(f"replay/{here}/x", b"kept", 1, retain=True)
        with makes.client(here) as local:  # it is retained there before anybody elsewhere wants it
            local.subscribe(f"replay/{here}/x", 1)
            local.expect(1)
        first.subscribe(f"replay/{here}/x", 1)
        makes.knows(f"replay/{here}/x")
        # By the fetch for a first interest, and by nothing else.
        first.expect(1)
        eventually(lambda: makes.count(here, "host_replays") > 0, "the host replayed it")
        with makes.client("mosquitto") as second:
            second.subscribe(f"replay/{here}/#", 1)
            makes.knows(f"replay/{here}/#")
            publisher.publish(f"replay/{here}/x", b"new", 1)
            eventually(lambda: b"new" in [message.payload for message in second.messages], "the new one")
        stands_still(makes)
        assert [message.payload for message in first.messages] == [b"kept", b"new"]


def test_publications_that_an_older_host_does_not_support_are_left_out_and_counted(makes: Makes) -> None:
    with contextlib.ExitStack() as stack:
        subscribers = [stack.enter_context(makes.client(make)) for make in NAMES]
        for subscriber in subscribers:
            subscriber.subscribe("odd/#", 2)
        makes.want("odd/#")
        publisher = stack.enter_context(makes.client("mosquitto"))
        lost = {make: makes.count(make, "topics_not_carried") for make in NAMES}
        topics = ["odd/with.dot", "odd/with*star", "odd/with space", "odd/plain"]
        for topic in topics:
            publisher.publish(topic, b"x", 2)
        carried = {"mosquitto": topics, "rabbitmq": topics[2:], "nats": topics[3:]}
        for make, subscriber in zip(NAMES, subscribers, strict=True):
            assert [message.topic for message in subscriber.expect(len(carried[make]))] == carried[make]
            assert {message.qos for message in subscriber.messages} == ({2} if make == "mosquitto" else {1})
            assert makes.count(make, "topics_not_carried") - lost[make] == 4 - len(carried[make])
        assert [one.health()["broker"] for one in makes.federators if one.health()] == ["connected"] * 3  # type: ignore[index]


def test_a_name_that_rabbitmq_makes_invalid_costs_only_that_publication(makes: Makes) -> None:
    with makes.client("mosquitto") as subscriber, makes.client("rabbitmq") as publisher:
        subscriber.subscribe("altered/#", 1)
        makes.knows("altered/#")
        publisher.publish("altered/a*b", b"comes out of RabbitMQ as a+b", 1)
        publisher.publish("altered/plain", b"x", 1)
        assert [message.topic for message in subscriber.expect(1)] == ["altered/plain"]
        assert 'hanse_federator_dropped_total{reason="topic_name"} 1' in makes.at("rabbitmq").metrics()


def test_interest_ends_with_the_session_of_the_last_subscriber(makes: Makes) -> None:
    for make in ("rabbitmq", "nats"):
        with makes.client(make) as subscriber:
            subscriber.subscribe(f"ends/{make}", 1)
            eventually(lambda make=make: makes.wants(make, f"ends/{make}"), "it is wanted")  # type: ignore[misc]
            if make == "nats":  # which does not tell whether a session outlives its client
                subscriber.client.unsubscribe(f"ends/{make}")
                eventually(lambda make=make: not makes.wants(make, f"ends/{make}"), "it is wanted no more")  # type: ignore[misc]
        eventually(lambda make=make: not makes.wants(make, f"ends/{make}"), "it is wanted no more")  # type: ignore[misc]


# RabbitMQ takes long to end and to start.
@pytest.mark.parametrize("make", NAMES)
def test_after_a_restart_of_a_broker_messages_cross_again(makes: Makes, make: str) -> None:
    others = [other for other in NAMES if other != make]
    broker = makes.brokers[make]
    if make == "rabbitmq":
        broker.stop()
    else:
        broker.kill()
    eventually(lambda: makes.at(make).health() is None, "the federator has noticed")
    # Between the others, nothing changes meanwhile.
    with makes.client(others[0]) as subscriber, makes.client(others[1]) as publisher:
        subscriber.subscribe(f"meanwhile/{make}", 1)
        eventually(lambda: all(makes.at(other).knows(f"meanwhile/{make}") for other in others), "the others know", 20)
        publisher.publish(f"meanwhile/{make}", b"x", 1)
        subscriber.expect(1)
    broker.start()
    eventually(lambda: makes.at(make).health() is not None, "the federator is back", 30)
    for here, there in itertools.permutations(NAMES, 2):
        with makes.client(there) as subscriber, makes.client(here) as publisher:
            topic = f"after/{make}/{here}/{there}"
            subscriber.subscribe(topic, 1)
            makes.knows(topic)
            publisher.publish(topic, b"x", 1)
            subscriber.expect(1)


def test_nothing_acknowledged_is_lost_when_a_broker_is_killed_in_the_middle(makes: Makes) -> None:
    """A subscriber at NATS has a session that lasts. NATS is killed while messages arrive, and started again."""
    received: list[bytes] = []
    staying = paho.Client(
        CallbackAPIVersion.VERSION2, "staying", clean_session=False, protocol=MQTTProtocolVersion.MQTTv311
    )
    staying.on_message = lambda _client, _data, message: received.append(bytes(message.payload))
    staying.reconnect_delay_set(1, 1)
    nats = makes.brokers["nats"]
    staying.connect("127.0.0.1", nats.port)
    staying.loop_start()
    try:
        staying.subscribe("killed/#", 1)
        eventually(lambda: makes.wants("nats", "killed/#"), "it is wanted")
        makes.knows("killed/#")
        with makes.client("mosquitto") as publisher, makes.client("rabbitmq") as other:
            for number in range(600):
                publisher.publish("killed/mosquitto", b"m%d" % number, 1)
                other.publish("killed/rabbitmq", b"r%d" % number, 1)
                if number == 200:
                    nats.kill()
                if number == 400:
                    nats.start()
        expected = {b"%c%d" % (letter, number) for letter in b"mr" for number in range(600)}
        eventually(lambda: expected <= set(received), f"all of it; missing: {len(expected - set(received))}", 60)
    finally:
        staying.disconnect()
        staying.loop_stop()
        staying._reset_sockets()
