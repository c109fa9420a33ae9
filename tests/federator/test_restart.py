"""Federators, brokers and neighbours that end and come back."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, Federator, is_converged, is_meshed, ring, running

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Scene"]:
    """Run three brokers in a line, so that the middle one is needed. Each test leaves it as it found it."""
    tmp_path = tmp_path_factory.mktemp("scene")
    with Mosquitto(*LOG_LINES) as one, Mosquitto(*LOG_LINES) as two, Mosquitto(*LOG_LINES) as three:
        brokers = [one, two, three]
        if request.param == "direct":
            federators = [Federator(k, broker.url, tmp_path) for k, broker in enumerate(brokers)]
            for k, federator in enumerate(federators):
                federator.words += ["--link-listen", federator.link_url]
                if k:
                    federator.words += ["--neighbour", federators[k - 1].link_url]
        else:
            federators = [Federator(k, broker.url, tmp_path, "--link", "broker") for k, broker in enumerate(brokers)]
            for a, b in ((0, 1), (1, 0), (1, 2), (2, 1)):
                federators[a].words += ["--neighbour", f"{b}={brokers[b].url}"]
        with running(federators):
            yield brokers, federators


Scene = tuple[list[Mosquitto], list[Federator]]
BOTH = ["direct", pytest.param("broker", marks=pytest.mark.slow)]


def epoch(federator: Federator) -> int:
    found: int = federator.page("/healthz")["epoch"]
    return found


@pytest.mark.parametrize("scene", BOTH, indirect=True)
def test_a_killed_federator_comes_back_with_a_later_epoch_and_its_first_message_is_delivered(scene: Scene) -> None:
    brokers, federators = scene
    with Client(brokers[2].port) as subscriber, Client(brokers[0].port) as publisher:
        subscriber.subscribe("again/#")
        eventually(lambda: federators[0].knows("again/#"), "again/# is known")
        publisher.publish("again/x", b"before")
        subscriber.expect(1)
        before = epoch(federators[0])
        federators[0].end(signal.SIGKILL)
        federators[0].start()
        eventually(lambda: federators[0].health() is not None, "the federator answers again")
        eventually(lambda: federators[0].knows("again/#"), "the restarted federator knows again/#")
        publisher.publish("again/x", b"after")
        subscriber.expect(2)
        assert epoch(federators[0]) > before
        assert federators[1].neighbours() == [0, 2]


@pytest.mark.parametrize("scene", ["direct"], indirect=True)
def test_interest_known_before_a_restart_is_kept(scene: Scene) -> None:
    """Mosquitto logs a subscription once, and the federator that read the line is not the one that needs it now."""
    brokers, federators = scene
    with Client(brokers[2].port) as subscriber, Client(brokers[0].port) as publisher:
        subscriber.subscribe("kept/#")
        eventually(lambda: federators[0].knows("kept/#"), "kept/# is known")
        stored = federators[2].directory / "federator-2" / "interest.json"
        eventually(lambda: stored.exists() and "kept/#" in stored.read_text(), "the interest is on disk")
        federators[2].end(signal.SIGKILL)
        eventually(lambda: not federators[0].knows("kept/#"), "the others have forgotten it")
        federators[2].start()
        eventually(lambda: federators[2].health() is not None, "the federator answers again")
        eventually(lambda: federators[0].knows("kept/#"), "kept/# is known again")
        publisher.publish("kept/x", b"after")
        subscriber.expect(1)


@pytest.mark.parametrize("scene", BOTH, indirect=True)
def test_subscriptions_at_a_restarted_broker_are_restored(scene: Scene) -> None:
    brokers, federators = scene
    with Client(brokers[2].port) as subscriber:
        subscriber.subscribe("host/#")
        eventually(lambda: federators[0].knows("host/#"), "host/# is known")
        brokers[0].kill()
        eventually(lambda: federators[0].health() is None, "the federator says that its broker is away")
        brokers[0].start()
        eventually(lambda: federators[0].health() is not None, "the federator is at its broker again")
        eventually(lambda: is_converged(federators), "the federation has converged")
        eventually(lambda: federators[0].knows("host/#"), "host/# is known")
        with Client(brokers[0].port) as publisher:
            # Until its subscription counts at the new broker, publications may be missed. Then nothing is lost.
            eventually(lambda: _arrives(publisher, subscriber), "what is published there arrives")
            count = len(subscriber.messages)
            for number in range(20):
                publisher.publish("host/x", b"%d" % number)
            messages = subscriber.expect(count + 20)
            assert [message.payload for message in messages[count:]] == [b"%d" % number for number in range(20)]


def _arrives(publisher: Client, subscriber: Client) -> bool:
    count = len(subscriber.messages)
    publisher.publish("host/x", b"probe")
    until = time.monotonic() + 0.3
    while len(subscriber.messages) == count and time.monotonic() < until:
        time.sleep(0.01)
    return len(subscriber.messages) > count


@pytest.mark.parametrize("scene", BOTH, indirect=True)
def test_sigterm_leaves_the_meshes_and_the_others_forget_at_once(scene: Scene) -> None:
    brokers, federators = scene
    with Client(brokers[2].port) as subscriber:
        subscriber.subscribe("left/#")
        eventually(lambda: federators[0].knows("left/#") and federators[1].knows("left/#"), "left/# is known")
        assert federators[2].end(signal.SIGTERM) == 0
        eventually(lambda: not federators[0].knows("left/#"), "the far one forgets", 15)
        eventually(lambda: not federators[1].knows("left/#"), "the near one forgets", 15)
        # A silent end is noticed after K announcement intervals; this one was announced.
        assert f"neighbour_left neighbour={federators[2].id}" in federators[1].log
        federators[2].start()
        eventually(lambda: is_converged(federators), "the federator is back")


@pytest.mark.parametrize("scene", ["direct"], indirect=True)
def test_neighbours_come_and_go(scene: Scene, tmp_path: Path) -> None:
    _, federators = scene
    with Mosquitto(*LOG_LINES) as broker:
        late = Federator(9, broker.url, tmp_path, "--neighbour", federators[0].link_url)
        with running([late]):
            eventually(lambda: federators[0].neighbours() == [1, 9], "the new neighbour is there")
            eventually(lambda: is_converged([*federators, late]), "all have the same management core")
            with Client(broker.port) as subscriber, Client(federators_port(federators[2])) as publisher:
                subscriber.subscribe("late/#")
                eventually(lambda: federators[2].knows("late/#"), "late/# is known")
                publisher.publish("late/x", b"hi")
                subscriber.expect(1)
        eventually(lambda: federators[0].neighbours() == [1], "it has gone")
        eventually(lambda: is_converged(federators), "the others go on")


def federators_port(federator: Federator) -> int:
    return int(federator.words[federator.words.index("--broker") + 1].rsplit(":", 1)[1])


@pytest.mark.slow
def test_a_ring_heals_when_one_federator_is_killed(tmp_path: Path) -> None:
    with Mosquitto(*LOG_LINES) as one, Mosquitto(*LOG_LINES) as two, Mosquitto(*LOG_LINES) as three:
        brokers = [one, two, three]
        with running(ring(brokers, tmp_path)) as federators, Client(two.port) as here, Client(three.port) as there:
            here.subscribe("heal/#")
            there.subscribe("heal/#")
            eventually(lambda: is_meshed(federators[1:], "heal/#"), "both are in the mesh")
            federators[0].end(signal.SIGKILL)
            eventually(lambda: is_converged(federators[1:]), "the two that are left agree")
            eventually(lambda: is_meshed(federators[1:], "heal/#"), "both are in the mesh again")
            here.publish("heal/x", b"from two")
            there.publish("heal/x", b"from three")
            assert sorted(message.payload for message in here.expect(2)) == [b"from three", b"from two"]
            assert len(there.expect(2)) == 2
