"""Clients that subscribed before the federator could hear it, at real brokers."""

from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, Federator, ring, running

pytestmark = pytest.mark.processes
TICKS = (*LOG_LINES, "sys_interval 1")


def unknown(federator: Federator) -> int | None:
    count: int | None = federator.page("/healthz")["interest"]["unknown"]
    return count


def metric(federator: Federator, name: str) -> float:
    line = next(line for line in federator.metrics().splitlines() if line.startswith(f"hanse_federator_{name} "))
    return float(line.split()[1])


def test_an_earlier_subscription_causes_a_warning_until_it_is_made_again(tmp_path: Path) -> None:
    with (
        Mosquitto(*TICKS) as one,
        Mosquitto(*TICKS) as two,
        Client(two.port, name="early bird") as early,
        Client(one.port) as publisher,
    ):
        early.subscribe("early/#")
        with running(ring([one, two], tmp_path)) as federators:
            _, second = federators
            eventually(lambda: unknown(second) == 1, "the unknown subscription is counted")
            assert metric(second, "interest_unknown") == metric(second, "interest_counted") == 1
            assert "subscribe again" in str(second.page("/healthz")["interest"]["remedy"])
            eventually(lambda: "1 subscriptions that are not known here" in second.log, "the log warns")
            assert unknown(federators[0]) == 0

            early.subscribe("early/#")
            eventually(lambda: unknown(second) == 0, "the subscription is known")
            eventually(lambda: "All subscriptions at the host broker are known again" in second.log, "the log says so")
            eventually(lambda: federators[0].knows("early/#"), "the federation knows it")
            publisher.publish("early/x", b"1")
            assert [message.payload for message in early.expect(1)] == [b"1"]


@pytest.mark.slow
def test_filter_too_long_for_the_log_is_counted_as_unknown(tmp_path: Path) -> None:
    with Mosquitto(*TICKS) as one, Client(one.port) as client, running(ring([one], tmp_path)) as federators:
        client.subscribe("x" * 1_200)
        eventually(lambda: unknown(federators[0]) == 1, "the subscription that the log cut is counted")
        client.client.unsubscribe("x" * 1_200)
        eventually(lambda: unknown(federators[0]) == 0, "its end is counted")


def test_an_earlier_subscription_is_read_from_the_brokers_tree(tmp_path: Path) -> None:
    # Only the configuration of `hanse up`: with `log_dest stderr`, other lines would interrupt the tree.
    lines = ["log_dest none", "log_dest topic", "log_dest stdout", "log_type none", *TICKS[1:]]
    with (
        Mosquitto(*TICKS) as one,
        Mosquitto(*lines) as two,
        Client(two.port, name="early bird") as early,
        Client(two.port, name="shared") as shared,
        Client(one.port) as publisher,
    ):
        early.subscribe("early/#")
        early.subscribe("x" * 1_200)
        shared.subscribe("$share/group/shared/+")
        words = [[], ["--broker-output", str(two.log_path)]]
        with running(ring([one, two], tmp_path, words)) as federators:
            assert "can be read from its subscription tree" in federators[1].log
            for wanted in ("early/#", "shared/+", "x" * 1_200):
                eventually(lambda: federators[0].knows(wanted), f"{wanted[:20]} is known")  # noqa: B023
            publisher.publish("early/x", b"1")
            publisher.publish("x" * 1_200, b"2")
            publisher.publish("shared/x", b"3")
            assert [message.payload for message in early.expect(2)] == [b"1", b"2"]
            shared.expect(1)
            eventually(lambda: unknown(federators[1]) == 0, "nothing is unknown")
            assert "not known here" not in federators[1].log
            # A subscription that ended while the federator could not hear it is found as well.
            federators[1].end()
            early.client.unsubscribe("early/#")
            shared.client.unsubscribe("$share/group/shared/+")
            eventually(lambda: not federators[0].knows("x" * 1_200), "it has left")
            federators[1].start()
            eventually(lambda: federators[0].knows("x" * 1_200), "it is back")
            for ended in ("early/#", "shared/+"):
                eventually(lambda: not federators[0].knows(ended), f"{ended} has ended")  # noqa: B023


@pytest.mark.slow
def test_subscriptions_from_before_are_read_from_the_brokers_files(tmp_path: Path) -> None:
    log = tmp_path / "mosquitto.log"
    lines = (*TICKS, f"log_dest file {log}", "persistence true", "autosave_on_changes true", "autosave_interval 1")
    with (
        Mosquitto(*TICKS) as one,
        Mosquitto(*lines, directory=tmp_path / "broker") as two,
        Client(two.port, name="clean", version=4) as clean,
        Client(one.port) as publisher,
    ):
        clean.subscribe("clean/#")
        stored = paho.Client(CallbackAPIVersion.VERSION2, "stored", False, protocol=MQTTProtocolVersion.MQTTv311)
        stored.connect("127.0.0.1", two.port)
        stored.subscribe("stored/#", 1)
        stored.loop_start()
        database = tmp_path / "broker" / "mosquitto.db"
        eventually(lambda: database.exists() and b"stored/#" in database.read_bytes(), "the database has the filter")
        stored.disconnect()
        stored.loop_stop()
        stored._reset_sockets()
        log.write_bytes(b"")  # the log has nothing of the session that the database holds
        clean.subscribe("later/#")
        words = [[], ["--broker-log", str(log), "--broker-database", str(database)]]
        with running(ring([one, two], tmp_path, words)) as federators:
            assert f"from its log file {log} and its database {database}" in federators[1].log
            for wanted in ("later/#", "stored/#"):
                eventually(lambda: federators[0].knows(wanted), f"{wanted} is known")  # noqa: B023
            # The subscription that is in neither file stays unknown.
            eventually(lambda: unknown(federators[1]) == 1, "one is unknown")
            publisher.publish("later/x", b"1")
            clean.expect(1)


@pytest.mark.slow
def test_unknown_interest_is_learned_from_the_brokers_answers(tmp_path: Path) -> None:
    with (
        Mosquitto(*TICKS) as one,
        Mosquitto(*TICKS) as two,
        Client(two.port, name="early bird") as early,
        Client(one.port) as publisher,
    ):
        early.subscribe("early/#")
        words = [[], ["--unknown-interest", "learn", "--learn-for", "30s"]]
        with running(ring([one, two], tmp_path, words)) as federators:
            eventually(lambda: federators[0].knows("#"), "everything is wanted for a while")
            publisher.publish("early/x", b"1", 0)
            publisher.publish("nobody/x", b"2", 1)
            eventually(lambda: federators[0].knows("early/x"), "the topic is learned")
            assert federators[1].page("/healthz")["interest"]["learned"] == 1
            assert not federators[0].knows("nobody/x")
            assert [message.payload for message in early.expect(1)] == [b"1"]
            early.subscribe("early/#")
            eventually(lambda: not federators[0].knows("#"), "everything is no longer wanted")
            eventually(lambda: federators[0].knows("early/#"), "the filter is known")
            eventually(lambda: federators[1].page("/healthz")["interest"]["learned"] == 0, "what was learned has ended")
