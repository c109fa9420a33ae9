"""A thief at the host broker: a client with a valid login that connects with a federator's client id."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.brokers import Mosquitto
from tests.federation import Client, environment, eventually
from tests.federators import LOG_LINES, Federator, knows_all, ring, running

from hanse.federator.takeovers import SETTLE_S, uptime_of

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
    """Client that asks for an existing session, and takes its waiting messages."""

    def __init__(self, port: int, name: str, host: str = "") -> None:
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)
        self.found_session: bool | None = None
        self.taken: list[bytes] = []
        self.client.on_connect = self._on_connect
        self.client.on_message = lambda _client, _data, message: self.taken.append(bytes(message.payload))
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 3600
        self.client.connect("127.0.0.1", port, bind_address=host, clean_start=False, properties=properties)
        self.client.loop_start()
        eventually(lambda: self.found_session is not None, "the broker answered the thief")

    def _on_connect(self, _client: object, _data: object, flags: paho.ConnectFlags, *_: object) -> None:
        self.found_session = flags.session_present

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        self.client._reset_sockets()


def session_of(broker: Mosquitto, federator: Federator) -> str:
    """Return the client id of a federator's session, as the broker's log last names it."""
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


def test_a_log_that_anyone_may_read_is_reported_at_the_start(scene: Scene) -> None:
    _, federators = scene
    eventually(lambda: "security=host_log_open" in federators[0].log, "the federator warns")
    assert "any client of the host broker may read its log" in federators[0].log
    assert "`hanse interest config --vendor mosquitto --acl --id 0`" in federators[0].log


def test_a_hidden_log_is_not_told(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    passwords = tmp_path / "passwords"
    acl.write_text("topic readwrite plant/#\nuser hanse-0\ntopic read $SYS/#\ntopic readwrite #\n")
    passwords.touch()
    subprocess.run(["mosquitto_passwd", "-b", passwords, "hanse-0", "secret"], check=True, capture_output=True)
    for file in (acl, passwords):
        file.chmod(0o600)
    lines = (*LOG_LINES, *LIMITS, f"acl_file {acl}", f"password_file {passwords}")
    told = {True: "hides its log from clients without a login", False: "lets in nobody without a login"}
    for is_anonymous, words in told.items():
        with Mosquitto(*lines, anonymous=is_anonymous) as broker:
            folder = tmp_path / str(is_anonymous)
            folder.mkdir()
            federator = Federator(0, broker.url, folder, "--username", "hanse-0", "--password", "secret")
            with running([federator]):
                eventually(lambda: words in federator.log, words)  # noqa: B023 - called at once
                assert "host_log_open" not in federator.log
                assert is_anonymous or "--acl --id 0` prints" in federator.log


def account(federators: list[Federator]) -> tuple[str, dict[str, Any]]:
    """Return what `hanse account` prints, as text and as JSON."""
    words = [sys.executable, "-m", "hanse", "account", "--wait", "0"]
    for federator in federators:
        words += ["--metrics", f"http://127.0.0.1:{federator.metrics_port}"]
    shown, machine_readable = (
        subprocess.run([*words, *more], env=environment(), capture_output=True, text=True, timeout=60, check=False)
        for more in ([], ["--json"])
    )
    return shown.stdout, json.loads(machine_readable.stdout)


def takeovers(federator: Federator) -> int:
    """Return how many takeovers the federator has counted; 0 while it does not answer."""
    health = federator.health()
    return 0 if health is None else int(health["counters"].get("session_taken_over", 0))


def test_a_takeover_of_a_running_session_is_counted_logged_and_shown(scene: Scene) -> None:
    brokers, federators = scene
    assert takeovers(federators[0]) == 0
    thief = Thief(brokers[0].port, session_of(brokers[0], federators[0]))
    assert thief.found_session is True
    thief.end()
    eventually(lambda: takeovers(federators[0]) == 1, "the takeover is counted")
    assert "was taken over by another client" in federators[0].log
    assert 'agent_total{what="session_taken_over"} 1' in federators[0].metrics()
    text, document = account(federators)
    (gap,) = document["gaps"]
    assert (gap["federator"], gap["kind"]) == (0, "session taken over")
    assert gap["since"] <= gap["until"] < gap["since"] + 60e6
    assert re.search(r"federator 0: session taken over from \S+ \S+Z to \S+ \S+Z: .*127\.0\.0\.1", text)


def test_a_session_that_was_taken_over_is_ended_and_goes_on_under_another_id(scene: Scene) -> None:
    brokers, federators = scene
    with Client(brokers[1].port) as subscriber, Client(brokers[0].port) as publisher:
        subscriber.subscribe("plant/#")
        eventually(lambda: knows_all(federators, "plant/#"), "plant/# is known")
        former = session_of(brokers[0], federators[0])
        thief = Thief(brokers[0].port, former)
        thief.end()
        record = federators[0].directory / "federator-0" / "session"
        eventually(lambda: former != json.loads(record.read_text())["current"], "the federator has another session")
        eventually(lambda: "a former session at the host broker was ended" in federators[0].log, "the old one ended")
        eventually(lambda: federators[0].health() is not None, "the federator is ready")
        publisher.publish("plant/x", b"later")
        assert subscriber.expect(1)[0].payload == b"later"
        # A client with the old id finds no session, and receives nothing.
        again = Thief(brokers[0].port, former)
        assert again.found_session is False
        publisher.publish("plant/x", b"secret")
        assert subscriber.expect(2)[1].payload == b"secret"
        assert again.taken == []
        again.end()
        assert former not in record.read_text()
        federators[0].end()
        federators[0].start()
        eventually(lambda: federators[0].health() is not None, "the federator is back")
        assert takeovers(federators[0]) == 0
        assert session_of(brokers[0], federators[0]) in record.read_text()


def test_an_id_of_another_session_that_is_used_from_elsewhere_is_reported(scene: Scene) -> None:
    brokers, federators = scene
    eventually(lambda: "host_log_open" in federators[0].log, "the federator has looked as a stranger")
    name = re.findall(r" as (hanse-federator-0-[0-9a-f]{32}-stranger) \(", brokers[0].log)[-1]
    # A takeover makes the federator connect again, so that the second session sees from where it does.
    Thief(brokers[0].port, session_of(brokers[0], federators[0])).end()
    eventually(lambda: takeovers(federators[0]) == 1, "the takeover is counted")
    eventually(lambda: "a former session at the host broker was ended" in federators[0].log, "it has a new id")
    Thief(brokers[0].port, name, "127.0.0.2").end()
    told = "security=session_id_used_elsewhere address=127.0.0.2:"
    eventually(lambda: told in federators[0].log, "it is told")
    assert takeovers(federators[0]) == 1


def test_the_id_of_an_older_version_is_given_up_when_its_session_is_gone(scene: Scene) -> None:
    brokers, federators = scene
    record = federators[0].directory / "federator-0" / "session"
    federators[0].end()
    record.unlink()
    older = Thief(brokers[0].port, "hanse-federator-0")
    older.end()
    federators[0].start()
    eventually(lambda: federators[0].health() is not None, "the federator is back")
    assert json.loads(record.read_text())["current"] == "hanse-federator-0"
    brokers[0].restart()
    eventually(lambda: json.loads(record.read_text())["current"] != "hanse-federator-0", "it has a secret id")
    eventually(lambda: json.loads(record.read_text())["ending"] == [], "the old one is ended")
    with Client(brokers[1].port) as subscriber, Client(brokers[0].port) as publisher:
        subscriber.subscribe("plant/#")
        eventually(lambda: federators[0].health() is not None, "the federator is back")
        eventually(lambda: knows_all(federators, "plant/#"), "plant/# is known")
        publisher.publish("plant/x", b"later")
        assert subscriber.expect(1)[0].payload == b"later"
    assert takeovers(federators[0]) == 0


def test_an_old_session_that_could_not_be_ended_is_ended_by_the_next_process(scene: Scene) -> None:
    brokers, federators = scene
    former = f"hanse-federator-0-{'5' * 32}"
    thief = Thief(brokers[0].port, former)
    thief.end()
    federators[0].end()
    record = federators[0].directory / "federator-0" / "session"
    document = json.loads(record.read_text())
    record.write_text(json.dumps({**document, "ending": [former]}))
    federators[0].start()
    eventually(lambda: former not in record.read_text(), "the session is ended")
    again = Thief(brokers[0].port, former)
    assert again.found_session is False
    again.end()


def test_a_takeover_while_the_federator_is_down_is_shown_after_its_start(scene: Scene) -> None:
    brokers, federators = scene
    with Client(brokers[1].port) as subscriber, Client(brokers[0].port) as publisher:
        subscriber.subscribe("plant/#")
        eventually(lambda: knows_all(federators, "plant/#"), "plant/# is known")
        tick = federators[0].directory / "federator-0" / "tick"
        eventually(lambda: tick.exists() and interval_of(tick) > 0, "the federator has received two ticks")
        federators[0].end(signal.SIGKILL)
        begun = int(tick.read_bytes().split()[0])
        for number in range(50):
            publisher.publish("plant/x", b"message %d" % number)
        thief = Thief(brokers[0].port, session_of(brokers[0], federators[0]))
        # The session also has the broker's counts and log.
        eventually(
            lambda: sum(one.startswith(b"message ") for one in thief.taken) == 50, "the thief has taken everything"
        )
        eventually(lambda: max(map(uptime, thief.taken), default=0) > begun + 6, "the thief has taken ticks")
        thief.end()
        federators[0].start()
        eventually(lambda: takeovers(federators[0]) == 1, "the takeover is noticed")
        assert [gap["kind"] for gap in account(federators)[1]["gaps"]] == ["session taken over"]
        assert not subscriber.messages


def interval_of(path: Path) -> int:
    """Return the time between two ticks that a federator has written, or 0 while it writes the file."""
    numbers = path.read_bytes().split()
    return int(numbers[1]) if len(numbers) > 1 else 0


def uptime(payload: bytes) -> int:
    """Return the broker's uptime from a payload, or 0."""
    return (uptime_of(payload) or 0) if payload.endswith(b" seconds") else 0


def test_restarts_of_the_federator_and_of_the_broker_are_no_takeovers(scene: Scene) -> None:
    brokers, federators = scene
    tick = federators[0].directory / "federator-0" / "tick"
    eventually(lambda: tick.exists() and interval_of(tick) > 0, "the federator has received two ticks")
    federators[0].end(signal.SIGKILL)
    begun = tick.read_bytes()
    time.sleep(4.5)  # for four ticks of the broker
    federators[0].start()
    eventually(lambda: tick.read_bytes() != begun, "ticks arrive again")
    federators[0].end()
    federators[0].start()
    eventually(lambda: federators[0].health() is not None, "the federator is back")
    brokers[0].stop()
    brokers[0].restart()
    before = tick.read_bytes()
    eventually(lambda: tick.read_bytes() != before and federators[0].health() is not None, "ticks arrive again")
    time.sleep(SETTLE_S + 1.5)
    assert takeovers(federators[0]) == 0
    assert account(federators)[1]["gaps"] == []
