"""Damage to the disk of a federator that was killed while acknowledged messages waited there."""

import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, environment, eventually
from tests.federators import LOG_LINES, Federator, knows_all, ring, running

from hanse.federator.records import PART_PUBLICATIONS

pytestmark = pytest.mark.processes

MESSAGES = 600


class Scene:
    """Two brokers and their federators, and a subscriber at broker 1."""

    def __init__(self, brokers: list[Mosquitto], federators: list[Federator], subscriber: Client) -> None:
        self.brokers = brokers
        self.subscriber = subscriber
        self.federators = federators
        self.state = federators[0].directory / "federator-0"

    @property
    def log(self) -> Path:
        """The largest log of the outbox."""
        return max((self.state / "outbox").glob("*.log"), key=lambda file: file.stat().st_size)

    def fill(self) -> None:
        """Publish while federator 1 is away, until everything is on the disk of federator 0, and kill that too."""
        interest = self.federators[1].directory / "federator-1" / "interest.json"
        eventually(lambda: interest.exists() and "plant/#" in interest.read_text(), "federator 1 keeps the interest")
        self.federators[1].end(signal.SIGKILL)
        with Client(self.brokers[0].port) as publisher:
            numbers = [publisher.client.publish("plant/x", b"%d" % n, 1) for n in range(MESSAGES)]
            for number in numbers:
                number.wait_for_publish(60)
            eventually(lambda: self._payloads() == MESSAGES and self._is_committed(), "all is on disk")
        self.federators[0].end(signal.SIGKILL)
        # What the broker had no acknowledgement for yet must not hide a loss.
        self.brokers[0].restart()

    def _is_committed(self) -> bool:
        """Return whether the last write to each log was followed by the note of its end."""
        outbox = self.state / "outbox"
        for log in outbox.glob("*.log"):
            end = outbox / f"{log.stem.split('_')[0]}.end"
            if not end.exists() or struct.unpack_from("<QQQ", end.read_bytes())[1] != log.stat().st_size:
                return False
        return True

    def _payloads(self) -> int:
        return sum(len(re.findall(rb"plant/x", file.read_bytes())) for file in (self.state / "outbox").glob("*.log"))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Mosquitto(*LOG_LINES, "max_queued_messages 0") as one, Mosquitto(*LOG_LINES) as two:
        federators = ring([one, two], tmp_path)
        with running(federators), Client(two.port) as subscriber:
            subscriber.subscribe("plant/#")
            eventually(lambda: knows_all(federators, "plant/#"), "plant/# is known")
            yield Scene([one, two], federators, subscriber)


def account(federator: Federator) -> tuple[str, list[dict[str, Any]]]:
    """Return what `hanse account` prints for one federator, and the gaps in its JSON."""
    words = [sys.executable, "-m", "hanse", "account", "--wait", "0"]
    words += ["--metrics", f"http://127.0.0.1:{federator.metrics_port}"]
    shown, machine_readable = (
        subprocess.run([*words, *more], env=environment(), capture_output=True, text=True, timeout=60, check=False)
        for more in ([], ["--json"])
    )
    return shown.stdout, json.loads(machine_readable.stdout)["gaps"]


def arrived(scene: Scene) -> set[int]:
    """Start both federators again, and return the numbers that the subscriber receives."""
    for federator in scene.federators:
        federator.start()
    eventually(lambda: scene.federators[0].neighbours() == [1], "the link is up")
    eventually(lambda: "federator_outbox_records 0" in scene.federators[0].metrics(), "the outbox is empty")
    eventually(lambda: knows_all(scene.federators, "plant/#"), "plant/# is known")
    received = scene.subscriber.messages
    with Client(scene.brokers[0].port) as publisher:
        publisher.publish("plant/x", b"-1")
    eventually(lambda: any(message.payload == b"-1" for message in received), "what was published last arrives")
    return {int(message.payload) for message in received} - {-1}


def test_half_of_a_log_cut_off_is_reported_and_the_rest_arrives(scene: Scene) -> None:
    scene.fill()
    size = scene.log.stat().st_size
    name = scene.log.name
    os.truncate(scene.log, size // 2)
    numbers = arrived(scene)
    assert 0 < len(numbers) < MESSAGES
    federator = scene.federators[0]
    assert "damaged on disk: up to" in federator.log
    assert re.search(r'agent_total\{what="outbox_damaged_records"\} [1-9]', federator.metrics())
    assert (scene.state / "outbox" / f"{name}.damaged").stat().st_size == size // 2
    text, gaps = account(federator)
    assert [gap["kind"] for gap in gaps] == ["damaged on disk"]
    assert re.search(r"after publication 0/\d+/\d+: ", gaps[0]["detail"])
    assert "damaged on disk" in text


def test_flipped_bytes_are_reported_and_cost_what_they_hit(scene: Scene) -> None:
    scene.fill()
    raw = bytearray(scene.log.read_bytes())
    for at in random.Random(7).sample(range(100, len(raw)), 3):
        raw[at] ^= 0x10
    scene.log.write_bytes(raw)
    numbers = arrived(scene)
    assert MESSAGES - 3 * PART_PUBLICATIONS <= len(numbers) < MESSAGES
    federator = scene.federators[0]
    assert "damaged on disk: up to" in federator.log
    gaps = account(federator)[1]
    assert 1 <= len(gaps) <= 3
    assert all(gap["kind"] == "damaged on disk" for gap in gaps)


def test_an_outbox_without_damage_loses_nothing_and_reports_nothing(scene: Scene) -> None:
    scene.fill()
    assert arrived(scene) == set(range(MESSAGES))
    assert "damaged" not in scene.federators[0].log
    assert account(scene.federators[0])[1] == []


SLOT_BYTES = 32
TABLE_HEADER_BYTES = 64
EARLIER = 30
DELIVERIES = 500
# Publications that Mosquitto lets a client leave without an answer.
HOST_WINDOW = 20


SLOW = pytest.mark.slow


def used_slots(journal: Path) -> list[int]:
    """Return where the slots of deliveries under way begin."""
    raw = journal.read_bytes()
    slots = range(TABLE_HEADER_BYTES, len(raw), SLOT_BYTES)
    return [at for at in slots if any(raw[at + SLOT_BYTES - 8 : at + SLOT_BYTES])]


@pytest.mark.parametrize(
    "damage", ["header", "short", pytest.param("slot", marks=SLOW), pytest.param("gone", marks=SLOW)]
)
def test_a_damaged_journal_delays_nothing(tmp_path: Path, damage: str) -> None:
    """The host holds what was not released, up to its limit. With it full, it would end the session again and again."""
    lines = (*LOG_LINES, "max_queued_messages 0")
    with Mosquitto(*lines, "max_inflight_messages 2000") as one, Mosquitto(*lines) as two:
        federators = ring([one, two], tmp_path)
        with running(federators), Client(two.port) as subscriber, Client(one.port) as publisher:
            subscriber.subscribe("plant/#")
            eventually(lambda: knows_all(federators, "plant/#"), "plant/# is known")
            interest = federators[1].directory / "federator-1" / "interest.json"
            eventually(lambda: interest.exists() and "plant/#" in interest.read_text(), "the interest is kept")
            # The next process begins with the first identifiers again. Those under way are others.
            for number in range(EARLIER):
                publisher.publish("plant/x", b"earlier %d" % number, 2)
            subscriber.expect(EARLIER)
            # The host answers nothing, so that deliveries are under way when the federator is killed.
            os.kill(two.pid, signal.SIGSTOP)
            journal = federators[1].directory / "federator-1" / "journal"
            try:
                for number in range(DELIVERIES):
                    publisher.client.publish("plant/x", b"%d" % number, 2)
                eventually(lambda: len(used_slots(journal)) == HOST_WINDOW, "the host's limit is reached")
                federators[1].end(signal.SIGKILL)
            finally:
                os.kill(two.pid, signal.SIGCONT)
            used = used_slots(journal)
            raw = bytearray(journal.read_bytes())
            if damage == "header":
                raw[10] ^= 0x40
            elif damage == "slot":
                raw[used[0]] ^= 0x40
            else:
                del raw[-1]
            journal.write_bytes(raw)
            if damage == "gone":
                journal.unlink()
            federators[1].start()
            count = EARLIER + DELIVERIES
            eventually(lambda: len({one.payload for one in subscriber.messages}) == count, "all arrive")
            again = len(subscriber.messages) - count
            assert again <= (0 if damage == "header" else 1 if damage == "slot" else len(used))
            assert ("journal of deliveries is damaged" in federators[1].log) is (damage != "header")
            assert ("is written again" in federators[1].log) is (damage == "header")
