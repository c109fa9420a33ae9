"""Interest of sessions that end, and of those that do not, at real brokers."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, Federator, ring, running

pytestmark = pytest.mark.processes
TICKS = (*LOG_LINES, "sys_interval 1", "max_queued_messages 1000")
MANY = 20_000


@contextmanager
def session(port: int, name: str, *, version: int, expiry_s: int = 3_600) -> Iterator[paho.Client]:
    """Connect to a session that outlives its connection, or not with `expiry_s` 0; DISCONNECT at the end."""
    properties = None
    if version == 5:
        client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = expiry_s
        client.connect("127.0.0.1", port, clean_start=False, properties=properties)
    else:
        client = paho.Client(CallbackAPIVersion.VERSION2, name, False, protocol=MQTTProtocolVersion.MQTTv311)
        client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        eventually(client.is_connected, "the client is connected")
        yield client
    finally:
        client.disconnect()
        client.loop_stop()
        client._reset_sockets()


def filters(federator: Federator) -> int:
    line = next(one for one in federator.metrics().splitlines() if one.startswith("hanse_federator_filters "))
    return int(float(line.split()[1]))


def interest(federator: Federator) -> dict[str, int | None]:
    found: dict[str, int | None] = federator.page("/healthz")["interest"]
    return found


def ticks(federator: Federator, count: int) -> None:
    """Wait for some ticks of the broker, by what the federator says of them."""
    before = interest(federator)["ticks"]
    assert before is not None
    eventually(lambda: (interest(federator)["ticks"] or 0) >= before + count, f"{count} ticks")


@pytest.mark.parametrize("version", [pytest.param(4, marks=pytest.mark.slow), 5])
def test_session_that_is_resumed_without_subscribing_again_gets_far_messages(tmp_path: Path, version: int) -> None:
    with (
        Mosquitto(*TICKS) as one,
        Mosquitto(*TICKS) as two,
        Client(one.port) as publisher,
        running(ring([one, two], tmp_path)) as federators,
    ):
        with session(two.port, "panel", version=version) as panel:
            panel.subscribe("kept/#", 1)
            eventually(lambda: federators[0].knows("kept/#"), "the filter is known")
            ticks(federators[1], 2)
        ticks(federators[1], 4)
        publisher.publish("kept/away", b"1")
        # Neither a restart of the federator nor one of the session changes anything.
        federators[1].end(signal.SIGKILL)
        federators[1].start()
        eventually(lambda: federators[1].neighbours() == [0], "it is back")
        ticks(federators[1], 4)
        messages: list[bytes] = []
        with session(two.port, "panel", version=version) as panel:
            panel.on_message = lambda _client, _data, message: messages.append(bytes(message.payload))
            ticks(federators[1], 4)
            publisher.publish("kept/back", b"2")
            eventually(lambda: b"2" in messages, "a message from afar")
        assert interest(federators[1])["doubtful"] == 0


def test_interest_of_mqtt_5_clients_ends_with_their_sessions(tmp_path: Path) -> None:
    with Mosquitto(*TICKS) as one, Client(one.port) as stays, running(ring([one], tmp_path)) as federators:
        stays.subscribe("stays/#")
        with session(one.port, "kept", version=5) as kept:
            kept.subscribe("kept/#", 1)
            eventually(lambda: filters(federators[0]) == 2, "two filters are known")
        with session(one.port, "left", version=5, expiry_s=0) as left:
            left.subscribe([(f"left/{k}", 1) for k in range(3)])
            eventually(lambda: filters(federators[0]) == 5, "all filters are known")
            ticks(federators[0], 3)
        eventually(lambda: filters(federators[0]) == 2, "those of the ended session are gone")
        ticks(federators[0], 3)
        assert filters(federators[0]) == 2


def test_message_that_nobody_gets_ends_the_interest_of_a_client_that_left(tmp_path: Path) -> None:
    # The broker publishes no counts, so nothing else tells before an hour has passed.
    silent = (*LOG_LINES, "sys_interval 0")
    with (
        Mosquitto(*silent) as one,
        Mosquitto(*silent) as two,
        Client(one.port) as publisher,
        running(ring([one, two], tmp_path)) as federators,
    ):
        with (
            session(two.port, "kept", version=5) as kept,
            session(two.port, "left", version=5, expiry_s=0) as left,
        ):
            kept.subscribe("kept/#", 1)
            left.subscribe([("left/#", 1), ("$share/group/left/+", 1), ("left/other", 1)])
            eventually(lambda: federators[0].knows("left/other"), "the filters are known")
        publisher.publish("kept/x", b"1")
        publisher.publish("left/x", b"2")
        for wanted in ("left/#", "left/+"):
            eventually(lambda: not federators[0].knows(wanted), f"{wanted} has ended")  # noqa: B023
        assert federators[0].knows("kept/#")
        assert federators[0].knows("left/other")


@pytest.mark.slow
def test_twenty_thousand_filters_of_mqtt_5_clients_with_expiry_0_disappear(tmp_path: Path) -> None:
    with Mosquitto(*TICKS, quiet=True) as one, running(ring([one], tmp_path)) as federators:
        with session(one.port, "many", version=5, expiry_s=0) as many:
            for k in range(0, MANY, 500):
                many.subscribe([(f"many/{k + n}", 1) for n in range(500)])
            eventually(lambda: filters(federators[0]) == MANY, "all filters are known")
        eventually(lambda: filters(federators[0]) == 0, "all are gone")
