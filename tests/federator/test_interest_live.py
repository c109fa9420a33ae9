"""Each source of interest, with a real broker that offers no other."""

import time
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, ring, running

from hanse.interest.vendor import MOSQUITTO_LOG_TYPES

pytestmark = pytest.mark.processes


def test_interest_from_the_log_file_is_read_again_after_a_restart(tmp_path: Path) -> None:
    log_file = tmp_path / "two.log"
    lines = [f"log_dest file {log_file}", *(f"log_type {kind}" for kind in MOSQUITTO_LOG_TYPES)]
    with Mosquitto(*LOG_LINES) as one, Mosquitto(*lines) as two:
        words = [[], ["--interest", f"mosquitto-file:{log_file}"]]
        with (
            Client(two.port, name="early bird") as early,
            Client(one.port) as publisher,
        ):
            early.subscribe("early/#")
            with running(ring([one, two], tmp_path, words)) as federators:
                eventually(lambda: federators[0].knows("early/#"), "what was in the file is known")
                early.subscribe("live/#")
                eventually(lambda: federators[0].knows("live/#"), "what is added to the file is known")
                publisher.publish("early/x", b"1")
                publisher.publish("live/x", b"2")
                assert [message.payload for message in early.expect(2)] == [b"1", b"2"]
                early.client.unsubscribe("live/#")
                eventually(lambda: not federators[0].knows("live/#"), "the end of it is known")


def test_interest_from_beacons_expires(tmp_path: Path) -> None:
    with Mosquitto() as one, Mosquitto() as two:
        words = ["--interest", "beacon", "--beacon-interval", "300ms"]
        with (
            running(ring([one, two], tmp_path, [words, words])) as federators,
            Client(two.port) as subscriber,
            Client(one.port) as publisher,
        ):
            subscriber.subscribe("seen/x")
            subscriber.publish("federator/beacon/seen/x", b"", 0)
            eventually(lambda: federators[0].knows("seen/x"), "the beacon is known")
            publisher.publish("seen/x", b"1")
            subscriber.expect(1)
            eventually(lambda: not federators[0].knows("seen/x"), "it runs out without another beacon")
            publisher.publish("seen/x", b"2")
            time.sleep(0.3)
            subscriber.expect(1)


@pytest.mark.slow
def test_interest_from_announcements(tmp_path: Path) -> None:
    with Mosquitto() as one, Mosquitto() as two:
        words = ["--interest", "announce"]
        with (
            running(ring([one, two], tmp_path, [words, words])) as federators,
            Client(two.port) as subscriber,
            Client(one.port) as publisher,
        ):
            subscriber.subscribe("told/+")
            subscriber.publish("NEW_REGULAR_TOPIC", b'{"topic": "told/+", "role": "subscriber"}')
            eventually(lambda: federators[0].knows("told/+"), "the announcement is known")
            publisher.publish("told/x", b"1")
            subscriber.expect(1)


@pytest.mark.slow
def test_interest_from_the_configuration(tmp_path: Path) -> None:
    with Mosquitto() as one, Mosquitto() as two:
        words = [["--interest", "beacon"], ["--interest", "static", "--static-filter", "1:fixed/#"]]
        with (
            running(ring([one, two], tmp_path, words)) as federators,
            Client(two.port) as subscriber,
            Client(one.port) as publisher,
        ):
            subscriber.subscribe("fixed/x")
            eventually(lambda: federators[0].knows("fixed/#"), "the configuration is known")
            publisher.publish("fixed/x", b"1")
            subscriber.expect(1)
