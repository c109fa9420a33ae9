"""A collector that is a member of a federation, with real brokers and federators, as a process that is killed."""

import asyncio
import json
import signal
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.brokers import Mosquitto
from tests.federation import WAIT_S, Client, eventually
from tests.federators import LOG_LINES, Federator, ring, running
from tests.pipeline.collecting import LeafProcess, collecting, spooled, until
from tests.pipeline.publishing import publish

from hanse.errors import LocalError
from hanse.federator.links import LinkBook
from hanse.federator.settings import FederatorSettings
from hanse.mqtt.publication import encode
from hanse.pipeline import frame_rows, leaf_collector, spool_keeper
from hanse.pipeline.collector_status import read_status
from hanse.pipeline.leaf_collector import LeafCollector, LeafSettings
from hanse.pipeline.spool import SpoolLimits
from hanse.protocol.messages import Run

pytestmark = pytest.mark.processes

LEAF = 100


class Scene:
    def __init__(self, brokers: list[Mosquitto], federators: list[Federator]) -> None:
        self.brokers = brokers
        self.federators = federators

    def leaf(
        self, spool: Path, topics: str, *words: str, at: tuple[int, ...] = (2,), identity: int = LEAF
    ) -> LeafProcess:
        return LeafProcess(identity, [self.federators[k].link_url for k in at], spool, topics, *words)

    def await_interest(self, leaf: LeafProcess, group: str, *brokers: int) -> None:
        """Wait until these brokers have subscribed for the leaf, so that messages published there arrive."""
        eventually(lambda: leaf.is_collecting, "the leaf has a link")
        topic = group.removesuffix("#") + "ready"
        for k in brokers or (0,):
            before = leaf.count
            with Client(self.brokers[k].port) as publisher:
                arrives = partial(_arrives, publisher, leaf, topic, before)
                eventually(arrives, f"what is published at broker {k} arrives")


def _arrives(publisher: Client, leaf: LeafProcess, topic: str, before: int) -> bool:
    publisher.publish(topic, b"ready", 0)
    waited = threading.Event()
    for _ in range(10):
        if leaf.count > before:
            return True
        waited.wait(0.03)
    return False


def meant(leaf: LeafProcess) -> list[dict[str, Any]]:
    """Return the rows without those that only tested whether the route was ready."""
    return [row for row in leaf.rows() if row["payload"] != b"ready"]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Run three brokers in a ring."""
    with Mosquitto(*LOG_LINES) as one, Mosquitto(*LOG_LINES) as two, Mosquitto(*LOG_LINES) as three:
        brokers = [one, two, three]
        federators = ring(brokers, tmp_path_factory.mktemp("scene"))
        with running(federators):
            yield Scene(brokers, federators)


def test_rows_hold_the_origin_the_id_and_the_hops_of_a_message(scene: Scene, tmp_path: Path) -> None:
    with scene.leaf(tmp_path, "rows/#") as leaf:
        scene.await_interest(leaf, "rows/#", 0, 2)
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = "text/plain"
        properties.UserProperty = [("a", "1"), ("a", "2")]
        properties.MessageExpiryInterval = 600
        with Client(scene.brokers[0].port) as publisher:
            for qos in (0, 1, 2):
                publisher.publish(f"rows/{qos}", b"\x00\xff%d" % qos, qos, properties=properties)
        with Client(scene.brokers[2].port) as near:
            near.publish("rows/near", b"n", 1, retain=True)
        eventually(lambda: len(meant(leaf)) >= 4, "four rows")
        assert leaf.end() == 0
    rows = sorted(meant(leaf), key=lambda row: str(row["topic"]))
    far, last = rows[:3], rows[3]
    assert [(row["topic"], row["payload"], row["qos"]) for row in far] == [
        (f"rows/{qos}", b"\x00\xff%d" % qos, qos) for qos in (0, 1, 2)
    ]
    assert {(row["origin_broker"], row["hops"], row["retain"], row["dup"]) for row in far} == {("0", 2, False, False)}
    assert (last["topic"], last["origin_broker"], last["hops"], last["retain"]) == ("rows/near", "2", 1, True)
    epoch = scene.federators[0].page("/healthz")["epoch"]
    ids = [row["message_id"].split("-") for row in far]
    assert [(origin, int(one)) for origin, one, _ in ids] == [("0", epoch)] * 3
    assert len({row["message_id"] for row in leaf.rows()}) == len(leaf.rows())
    found = far[1]["properties"]
    assert found["content_type"] == "text/plain"
    assert [(one["name"], one["value"]) for one in found["user"]] == [("a", "1"), ("a", "2")]
    assert 590 <= found["message_expiry_s"] <= 600
    assert last["properties"] is None


class Numbered:
    """Publisher of numbered messages with QoS 1 at a fixed rate, in a thread."""

    def __init__(self, port: int, topic: str, count: int, per_s: float) -> None:
        self._client = Client(port)
        self._work = (topic, count, 1 / per_s)
        self.sent = 0
        self._thread = threading.Thread(target=self._publish)

    def _publish(self) -> None:
        topic, count, every_s = self._work
        pause = threading.Event()
        for number in range(count):
            last = self._client.client.publish(topic, b"%d" % number, 1)
            self.sent += 1
            pause.wait(every_s)
        last.wait_for_publish(WAIT_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join()
        self._client.__exit__(kind, error, trace)


def numbers(leaf: LeafProcess, topic: str) -> list[int]:
    return [int(row["payload"]) for row in leaf.rows() if row["topic"] == topic]


@pytest.mark.slow
@pytest.mark.parametrize("at", [(2,), (1, 2)], ids=["one link", "two links"])
def test_a_kill_in_the_middle_of_a_stream_loses_and_duplicates_nothing(
    scene: Scene, tmp_path: Path, at: tuple[int, ...]
) -> None:
    group = f"stream-{len(at)}/#"
    topic = f"stream-{len(at)}/x"
    with scene.leaf(tmp_path, group, at=at, identity=LEAF + len(at)) as leaf:
        scene.await_interest(leaf, group)
        with Numbered(scene.brokers[0].port, topic, 2_000, 800) as stream:
            eventually(lambda: leaf.count > 400, "some rows")
            leaf.end(signal.SIGKILL)
            eventually(lambda: stream.sent > 1_000, "more is published while it is away")
            leaf.start()
        eventually(lambda: len(set(numbers(leaf, topic))) == 2_000, "all of them")
        assert leaf.end() == 0
    rows = leaf.rows()
    assert sorted(numbers(leaf, topic)) == list(range(2_000))
    assert max(Counter(row["message_id"] for row in rows).values()) == 1


@pytest.mark.slow
def test_messages_published_while_the_leaf_is_down_wait_for_it_and_its_epoch_rises(
    scene: Scene, tmp_path: Path
) -> None:
    with scene.leaf(tmp_path, "down/#", identity=LEAF + 10) as leaf:
        scene.await_interest(leaf, "down/#")
        assert leaf.end(signal.SIGTERM) == 0
        before = int((tmp_path / leaf.producer / "federator" / "epoch").read_text())
        with Client(scene.brokers[0].port) as publisher:
            for number in range(50):
                publisher.publish("down/x", b"%d" % number, 1 + number % 2)
        leaf.start()
        eventually(lambda: len(numbers(leaf, "down/x")) >= 50, "what was kept")
        assert leaf.end() == 0
        assert numbers(leaf, "down/x") == list(range(50))
        assert int((tmp_path / leaf.producer / "federator" / "epoch").read_text()) > before
        assert "neighbour_left" not in scene.federators[2].log.rpartition("down/#")[2]


@pytest.mark.slow
def test_a_leaf_that_leaves_is_forgotten(scene: Scene, tmp_path: Path) -> None:
    with scene.leaf(tmp_path, "left/#", "--leave", identity=LEAF + 20) as leaf:
        scene.await_interest(leaf, "left/#")
        assert leaf.end(signal.SIGTERM) == 0
        eventually(lambda: not scene.federators[0].knows("left/#"), "the far one forgets")
        eventually(lambda: f"neighbour_left neighbour={LEAF + 20}" in scene.federators[2].log, "the near one was told")


@pytest.mark.slow
def test_a_trace_ends_at_the_leaf(scene: Scene, tmp_path: Path) -> None:
    with scene.leaf(tmp_path, "traced/#", identity=LEAF + 30) as leaf:
        scene.await_interest(leaf, "traced/#")
        request = urllib.request.Request(
            f"http://127.0.0.1:{scene.federators[0].metrics_port}/trace",
            json.dumps({"topic": "traced/x"}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert json.load(answer)["delivered_at"] == [LEAF + 30]


def settings(scene: Scene, spool: Path, topics: str, identity: int, **more: object) -> LeafSettings:
    federator = FederatorSettings(id=identity, neighbour=(scene.federators[2].link_url,))
    given = LeafSettings(topics=(topics,), spool=str(spool), client_id="leaf", federator=federator, free_bytes_min=0)
    return replace(given, **more)  # type: ignore[arg-type]


async def publish_until_here(scene: Scene, topic: str, collector: LeafCollector) -> None:
    """Publish at the first broker until a message arrives, which shows that it has subscribed for the leaf."""
    with Client(scene.brokers[0].port) as publisher:
        for _ in range(100):
            publisher.client.publish(topic, b"ready", 1)
            await asyncio.sleep(0.05)
            if collector.status.spooled:
                return
    raise AssertionError("nothing arrived")


@pytest.mark.parametrize("known_by", ["ring", "spool"])
def test_rows_durable_but_unacknowledged_at_a_kill_are_not_spooled_twice(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_by: str
) -> None:
    group, topic = f"twice-{known_by}/#", f"twice-{known_by}/x"
    given = settings(scene, tmp_path, group, LEAF + (40 if known_by == "ring" else 41))

    async def drive() -> None:
        async with collecting(LeafCollector(given)) as collector:
            await publish_until_here(scene, topic, collector)
            begun = collector.status.spooled
            # As if killed between the sync and the acknowledgement.
            monkeypatch.setattr(LinkBook, "ack", lambda *_: None)
            await asyncio.to_thread(publish, scene.brokers[0].url, [(topic, b"%d" % n) for n in range(200)])
            await until("200 rows", lambda: collector.status.spooled >= begun + 200)
        monkeypatch.undo()
        if known_by == "spool":
            (tmp_path / "leaf" / "federator" / "delivered").unlink()
        else:
            monkeypatch.setattr(frame_rows, "last_ids", lambda *_: [])
        async with collecting(LeafCollector(given)) as collector:
            await until("200 copies", lambda: collector.status.copies >= 200)
            await asyncio.to_thread(publish, scene.brokers[0].url, [(topic, b"200")])
            await until("one more", lambda: collector.status.spooled >= 1)

    # Acknowledgements are withheld for longer than the publisher waits, so the federators store the messages on disk.
    asyncio.run(drive())
    rows = spooled(tmp_path, "leaf")
    assert [int(row["payload"]) for row in rows if row["payload"] != b"ready"] == list(range(201))
    assert max(Counter(row["message_id"] for row in rows).values()) == 1


def read_state(spool: Path) -> str | None:
    status = read_status(spool, "leaf")
    return None if status is None else status.state


def test_a_full_spool_acknowledges_nothing_and_the_federation_keeps_the_messages(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_keeper, "FULL_RETRY_S", 0.05)
    given = settings(scene, tmp_path, "full/#", LEAF + 50)

    async def drive() -> None:
        async with collecting(LeafCollector(given)) as collector:
            await publish_until_here(scene, "full/x", collector)
            begun = collector.status.spooled
            collector.keeper.writer.limits = SpoolLimits(spool_bytes_max=1)
            await asyncio.to_thread(publish, scene.brokers[0].url, [("full/x", b"%d" % n) for n in range(100)])
            await until("full", lambda: collector.status.full_waits > 2)
            assert read_state(tmp_path) == "full"
            assert (collector.status.spooled, collector.status.acknowledged) == (begun, begun)
            collector.keeper.writer.limits = SpoolLimits(free_bytes_min=0)
            await until("all rows", lambda: collector.status.spooled >= begun + 100)
            await until("collecting", lambda: read_state(tmp_path) == "collecting")

    asyncio.run(drive())
    rows = [row["payload"] for row in spooled(tmp_path, "leaf") if row["payload"] != b"ready"]
    assert rows == [b"%d" % n for n in range(100)]


@pytest.mark.slow
def test_a_grouping_wider_than_the_filters_adds_no_rows(tmp_path: Path) -> None:
    with Mosquitto(*LOG_LINES) as one:
        federators = [Federator(0, one.url, tmp_path, "--grouping", "prefix:1")]
        federators[0].words += ["--link-listen", federators[0].link_url]
        with running(federators):
            leaf = LeafProcess(
                9, [federators[0].link_url], tmp_path / "spool", "plant/+/temp", "--grouping", "prefix:1"
            )
            with leaf, Client(one.port) as publisher:
                eventually(lambda: leaf.is_collecting, "the leaf has a link")
                eventually(lambda: _arrives(publisher, leaf, "plant/0/temp", 0), "what is wanted arrives")
                for topic in ("plant/1/state", "plant/1/temp", "plant/2/state", "plant/2/temp"):
                    publisher.publish(topic, topic.encode(), 1)
                eventually(lambda: len(meant(leaf)) >= 2, "two rows")
                assert [row["topic"] for row in meant(leaf)] == ["plant/1/temp", "plant/2/temp"]


def test_with_full_memory_qos_0_is_dropped_and_counted_and_higher_qos_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaf_collector, "QUEUE_BYTES_MAX", 100)
    federator = FederatorSettings(id=1, neighbour=("mqtt://127.0.0.1:1",))
    collector = LeafCollector(LeafSettings(topics=("a",), spool=str(tmp_path), federator=federator))
    told: list[str] = []

    def take(name: str, *qos: int) -> None:
        runs = [Run(0, 1, n, 1, level, 1, ("a",), encode("a", b"x" * 200, qos=level)) for n, level in enumerate(qos)]
        collector._take(runs, lambda: told.append(name))

    take("first", 0)
    take("loose", 0, 0)
    take("mixed", 0, 1)
    assert (collector.status.received, collector.status.dropped) == (5, 3)
    # The batch that keeps nothing is acknowledged at once; the others wait for the disk.
    assert told == ["loose"]
    waiting, _ = collector._queue.take()
    assert [[run.qos for run in one.received.runs] for one in waiting] == [[0], [1]]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"topics": ("$SYS/#",)}, "never crosses"),
        ({"topics": ("$share/g/a",)}, "never crosses"),
        ({"federator": FederatorSettings(id=1)}, "needs --id N and --federation URL"),
    ],
)
def test_wrong_settings_are_refused_with_a_remedy(tmp_path: Path, more: dict[str, object], says: str) -> None:
    right = FederatorSettings(id=1, neighbour=("mqtt://127.0.0.1:1",))
    with pytest.raises(LocalError, match=says):
        LeafSettings(**{"topics": ("a",), "spool": str(tmp_path), "federator": right, **more})  # type: ignore[arg-type]
