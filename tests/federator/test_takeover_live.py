"""A thief at the host broker: a client with a valid login that connects with a federator's client id."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, Federator, knows_all, ring, running

pytestmark = pytest.mark.processes

LIMITS = ("max_queued_messages 0", "sys_interval 1")
Scene = tuple[list[Mosquitto], list[Federator]]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Two brokers, each with a federator."""
    with Mosquitto(*LOG_LINES, *LIMITS) as one, Mosquitto(*LOG_LINES, *LIMITS) as two:
        federators = ring([one, two], tmp_path)
        with running(federators):
            yield [one, two], federators


class Thief:
    """A client that asks for a session that exists, and takes what waits there."""

    def __init__(self, port: int, name: str) -> None:
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)
        self.found_session: bool | None = None
        self.taken: list[bytes] = []
        self.client.on_connect = self._on_connect
        self.client.on_message = lambda _client, _data, message: self.taken.append(bytes(message.payload))
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 3600
        self.client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        self.client.loop_start()
        eventually(lambda: self.found_session is not None, "the broker answered the thief")

    def _on_connect(self, _client: object, _data: object, flags: paho.ConnectFlags, *_: object) -> None:
        self.found_session = flags.session_present

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        self.client._reset_sockets()


def session_of(broker: Mosquitto, federator: Federator) -> str:
    """Return the client id of a federator's session, as the broker's log names it last."""
    found: str = re.findall(rf"as (hanse-federator-{federator.id}-[0-9a-f]{{32}}) \(", broker.log)[-1]
    return found


def test_a_thief_that_does_not_know_the_client_id_gets_nothing(scene: Scene) -> None:
    brokers, federators = scene
    with Client(brokers[1].port) as subscriber, Client(brokers[0].port) as publisher:
        subscriber.subscribe("plant/#")
        eventually(lambda: knows_all(federators, "plant/#"), "plant/# is known")
        publisher.publish("plant/x", b"first")
        subscriber.expect(1)
        federators[0].end(signal.SIGKILL)
        for number in range(50):
            publisher.publish("plant/x", b"%d" % number)
        for name in ("hanse-federator-0", "hanse-federator-0-", f"hanse-federator-0-{'0' * 32}"):
            thief = Thief(brokers[0].port, name)
            assert thief.found_session is False
            thief.end()
        federators[0].start()
        assert [message.payload for message in subscriber.expect(51)[1:]] == [b"%d" % n for n in range(50)]


def test_no_two_sessions_share_their_random_bits_and_the_record_is_private(scene: Scene) -> None:
    brokers, federators = scene
    for broker, federator in zip(brokers, federators, strict=True):
        ids = set(re.findall(r" as (hanse-\S+) \(", broker.log))
        assert len({re.findall("[0-9a-f]{32}", one)[0] for one in ids}) == len(ids) >= 1
        record = federator.directory / f"federator-{federator.id}" / "session"
        assert record.stat().st_mode & 0o777 == 0o600
        assert session_of(broker, federator) in record.read_text()
        assert session_of(broker, federator) not in federator.log
