"""Retained state at real brokers: stale values, deletions that come back, concurrent writes, partitions, backups."""

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, Federator, knows_all, ring, running

pytestmark = pytest.mark.processes

LINES = (*LOG_LINES, "persistence true", "autosave_interval 1", "sys_interval 1", "max_queued_messages 0")
WORDS = ("--retained-linger", "3s", "--retained-interval", "5s")


class Scene:
    """Three brokers, and a federator beside each, linked in a triangle."""

    def __init__(self, brokers: list[Mosquitto], federators: list[Federator]) -> None:
        self.brokers = brokers
        self.federators = federators

    def held(self, k: int, filter_: str) -> dict[str, bytes]:
        """Return what broker k retains. The client's id looks like a federator's, so that it makes no interest."""
        with Client(self.brokers[k].port, name=f"hanse-federator-look-{time.monotonic_ns()}") as client:
            client.subscribe(filter_)
            client.publish("held/end", b"")
            client.subscribe("held/end")
            client.publish("held/end", b"x")
            eventually(lambda: any(one.topic == "held/end" for one in client.messages), "the end of what is retained")
            return {one.topic: bytes(one.payload) for one in client.messages if one.retain and one.topic != "held/end"}

    def write(self, k: int, topic: str, value: bytes, qos: int = 1) -> None:
        """Write a retained value at broker k; an empty one deletes."""
        with Client(self.brokers[k].port) as client:
            client.publish(topic, value, qos, retain=True)

    def becomes(self, filter_: str, expected: dict[str, bytes], *brokers: int) -> None:
        """Wait until all brokers retain exactly this."""
        for k in brokers or range(len(self.brokers)):
            eventually(lambda k=k: self.held(k, filter_) == expected, f"broker {k} retains {expected}", 30)  # type: ignore[misc]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    path = tmp_path_factory.mktemp("retained")
    with Mosquitto(*LINES) as one, Mosquitto(*LINES) as two, Mosquitto(*LINES) as three:
        brokers = [one, two, three]
        federators = ring(brokers, path, [WORDS] * 3)
        with running(federators):
            yield Scene(brokers, federators)


def test_a_late_subscriber_gets_the_present_value(scene: Scene) -> None:
    """`one` was fetched to the broker of the first subscriber, and went stale there."""
    scene.write(0, "late/x", b"one")
    with Client(scene.brokers[2].port) as subscriber:
        subscriber.subscribe("late/#")
        assert subscriber.expect(1)[0].payload == b"one"
        eventually(lambda: knows_all(scene.federators, "late/#"), "late/# is known")
        scene.write(0, "late/x", b"two")
        assert subscriber.expect(2)[1].payload == b"two"
    scene.becomes("late/#", {"late/x": b"two"}, 0, 2)
    scene.write(0, "late/x", b"three")
    with Client(scene.brokers[2].port) as subscriber:
        subscriber.subscribe("late/#")
        eventually(lambda: bool(subscriber.messages) and subscriber.messages[-1].payload == b"three", "the last value")


def test_a_deletion_is_not_undone_at_the_broker_where_it_was_made(scene: Scene) -> None:
    scene.write(0, "gone/x", b"one")
    with Client(scene.brokers[2].port) as far, Client(scene.brokers[0].port) as near:
        far.subscribe("gone/#")
        far.expect(1)
        near.subscribe("gone/+")
        eventually(lambda: knows_all(scene.federators, "gone/+"), "gone/+ is known")
        scene.write(0, "gone/x", b"")
        scene.becomes("gone/#", {}, 0, 2)
        with Client(scene.brokers[2].port) as later:
            later.subscribe("gone/x")
            time.sleep(1.0)
            assert later.messages == []
        scene.becomes("gone/#", {}, 0, 2)


def test_a_deletion_while_nobody_was_interested_reaches_copies(scene: Scene) -> None:
    scene.write(0, "quiet/x", b"one")
    with Client(scene.brokers[2].port, version=4) as subscriber:
        subscriber.subscribe("quiet/#")
        subscriber.expect(1)
    eventually(lambda: not knows_all(scene.federators, "quiet/#"), "interest has ended, and lingered", 30)
    scene.write(0, "quiet/x", b"")
    with Client(scene.brokers[2].port) as subscriber:
        subscriber.subscribe("quiet/#")
        eventually(lambda: scene.held(2, "quiet/#") == {}, "the copy is gone")
        eventually(lambda: scene.held(0, "quiet/#") == {}, "and stays gone")


def test_a_deleted_value_is_not_delivered_live_again_to_overlapping_subscriptions(scene: Scene) -> None:
    scene.write(0, "over/x", b"one")
    with Client(scene.brokers[2].port) as wide, Client(scene.brokers[1].port) as other:
        wide.subscribe("over/#")
        wide.expect(1)
        other.subscribe("over/+")
        other.expect(1)
        scene.write(0, "over/x", b"")
        wide.expect(2)
        other.expect(2)
        with Client(scene.brokers[2].port) as narrow:
            narrow.subscribe("over/x")
            time.sleep(1.0)
            assert narrow.messages == []
        assert [one.payload for one in wide.expect(2)] == [b"one", b""]
        assert [one.payload for one in other.expect(2)] == [b"one", b""]


def test_concurrent_writes_converge(scene: Scene) -> None:
    with Client(scene.brokers[0].port) as one, Client(scene.brokers[2].port) as two:
        one.subscribe("both/#")
        two.subscribe("both/#")
        eventually(lambda: knows_all(scene.federators, "both/#"), "both/# is known")
        for number in range(20):
            one.client.publish(f"both/{number}", b"of one", 1, retain=True)
            two.client.publish(f"both/{number}", b"of two", 1, retain=True)
        eventually(lambda: len(scene.held(0, "both/#")) == 20, "all values are there")
        eventually(lambda: scene.held(0, "both/#") == scene.held(2, "both/#"), "both brokers retain the same", 30)


def test_writes_during_a_partition_converge_and_the_last_one_wins(scene: Scene) -> None:
    with Client(scene.brokers[0].port) as one, Client(scene.brokers[2].port) as two:
        one.subscribe("cut/#")
        two.subscribe("cut/#")
        eventually(lambda: knows_all(scene.federators, "cut/#"), "cut/# is known")
        scene.write(0, "cut/deleted", b"old")
        scene.becomes("cut/#", {"cut/deleted": b"old"}, 0, 2)
        scene.federators[2].process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
        time.sleep(0.2)
        scene.write(0, "cut/x", b"first", 0)
        scene.write(0, "cut/deleted", b"")
        time.sleep(1.2)
        scene.write(2, "cut/x", b"second", 0)
        time.sleep(0.2)
        scene.federators[2].process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
        scene.becomes("cut/#", {"cut/x": b"second"}, 0, 2)


def test_a_killed_federator_finds_writes_that_waited_in_its_session(scene: Scene) -> None:
    with Client(scene.brokers[0].port) as one, Client(scene.brokers[2].port) as two:
        one.subscribe("killed/#")
        two.subscribe("killed/#")
        eventually(lambda: knows_all(scene.federators, "killed/#"), "killed/# is known")
        scene.write(0, "killed/x", b"one")
        scene.becomes("killed/#", {"killed/x": b"one"}, 0, 2)
        scene.federators[2].end(signal.SIGKILL)
        scene.write(2, "killed/x", b"two")
        scene.write(2, "killed/y", b"new")
        scene.federators[2].start()
        scene.becomes("killed/#", {"killed/x": b"two", "killed/y": b"new"}, 0, 2)


def test_a_broker_restored_from_a_backup_gets_the_present_values(scene: Scene, tmp_path: Path) -> None:
    broker = scene.brokers[2]
    with Client(scene.brokers[0].port) as one:
        one.subscribe("backup/#")
        with Client(broker.port) as two:
            two.subscribe("backup/#")
            eventually(lambda: knows_all(scene.federators, "backup/#"), "backup/# is known")
            scene.write(2, "backup/x", b"old")
            scene.write(2, "backup/deleted", b"old")
            scene.becomes("backup/#", {"backup/x": b"old", "backup/deleted": b"old"}, 0, 2)
            time.sleep(2.0)  # the broker saves its database
            shutil.copy(broker.directory / "mosquitto.db", tmp_path)
            scene.write(2, "backup/x", b"new")
            scene.write(2, "backup/deleted", b"")
            scene.becomes("backup/#", {"backup/x": b"new"}, 0, 2)
        broker.kill()
        shutil.copy(tmp_path / "mosquitto.db", broker.directory)
        broker.start()
        assert "backup/deleted" in (broker.directory / "mosquitto.db").read_bytes().decode("latin1")
        scene.becomes("backup/#", {"backup/x": b"new"}, 0, 2)


def test_copies_are_removed_when_nobody_is_interested_any_more(scene: Scene) -> None:
    scene.write(0, "copy/x", b"one")
    with Client(scene.brokers[2].port, version=4) as subscriber:
        subscriber.subscribe("copy/#")
        subscriber.expect(1)
    eventually(lambda: not knows_all(scene.federators, "copy/#"), "interest has ended", 30)
    eventually(lambda: scene.federators[2].counters().get("retained_copies_removed", 0) > 0, "a copy was removed", 90)
    assert scene.held(0, "copy/#") == {"copy/x": b"one"}
