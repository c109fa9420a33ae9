"""Messages between federators, and their effects."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.protocol.net import Network

from hanse.errors import RemoteError
from hanse.federator import management
from hanse.federator.crossing import Crossing
from hanse.federator.echoes import EchoMemory
from hanse.federator.management import SHARE_NAMES_MAX, Management
from hanse.federator.retained import TOPIC as RETAINED_TOPIC
from hanse.federator.tracing import REPORT_TOPIC, Tracing
from hanse.interest import BridgeGone, BridgeSeen
from hanse.mqtt.publication import encode, payload_of
from hanse.protocol.identity import private_group
from hanse.protocol.messages import Run
from hanse.protocol.settings import MANAGEMENT_GROUP

ME, OTHER = 0, 1


class Scene:
    """Federator 0; what it says is kept, what others say is put into its mouth."""

    def __init__(self) -> None:
        machine = Network(1).machines[ME]
        self.counters: Counter[str] = Counter()
        self.echoes = EchoMemory()
        self.shares: dict[str, object] = {}
        self.told: list[dict[str, Any]] = []
        self.retained: list[tuple[int, bytes]] = []
        tracing = Tracing(
            machine,
            crossing=Crossing(),
            publish=self._publish,
            ask_all=lambda message: self.management.tell_all(message),  # noqa: PLW0108 - it is made after
            send=lambda *_: False,
            is_host_up=lambda: True,
            filters=list,
            join=lambda: None,
            part=lambda: None,
            counters=self.counters,
        )
        self.management = Management(
            ME,
            publish=self._publish,
            retained=self._hear_retained,
            tracing=tracing,
            echoes=self.echoes,
            shares=lambda: self.shares,
            counters=self.counters,
        )

    def _hear_retained(self, sender: int, packet: bytes) -> None:
        if payload_of(packet) == b"malformed":
            raise RemoteError("malformed")
        self.retained.append((sender, payload_of(packet)))

    def _publish(self, group: str, packets: list[bytes]) -> None:
        assert group == MANAGEMENT_GROUP
        self.told += [json.loads(payload_of(packet)) for packet in packets]

    def hear(self, *words: object, origin: int = OTHER) -> None:
        bodies = [word if isinstance(word, bytes) else json.dumps(word).encode() for word in words]
        packets = [encode(MANAGEMENT_GROUP, body, qos=1) for body in bodies]
        self.management.take(Run(origin, 1, 0, len(packets), 1, 1, (MANAGEMENT_GROUP,), b"".join(packets)))

    async def has_told(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.told) < count:  # noqa: ASYNC110 - a list
                await asyncio.sleep(0.001)

    def get(self, *packets: bytes, group: str = private_group(ME)) -> None:
        self.management.take(Run(OTHER, 1, 0, len(packets), 1, 1, (group,), b"".join(packets)))


def run(steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(steps())


def test_bridges_are_reported_when_they_change_and_make_echoes_expected() -> None:
    scene = Scene()
    scene.management.take_reports([BridgeSeen("site")])
    scene.management.take_reports([BridgeSeen("site")])
    assert scene.told == [{"kind": "bridges", "names": ["site"]}]
    assert scene.echoes.is_active
    assert scene.echoes.joined == frozenset()
    scene.hear({"kind": "bridges", "names": ["site"]}, origin=1)
    scene.hear({"kind": "bridges", "names": ["site", "far"]}, origin=2)
    assert scene.echoes.joined == {1, 2}
    assert scene.echoes.echoes == 2
    scene.management.take_reports([BridgeGone("site")])
    assert scene.told[1:] == [{"kind": "bridges", "names": []}]
    assert (scene.echoes.is_active, scene.echoes.joined) == (False, frozenset())


def test_a_share_name_at_two_brokers_is_reported_once_per_federator(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.shares = {"pool": 1, "mine": 1}
    for origin in (1, 1, 2):
        scene.hear({"kind": "shares", "names": ["pool", "theirs"]}, origin=origin)
    assert scene.counters["share_names_at_two_brokers"] == 2
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "share name 'pool' is also in use at federator 1",
        "share name 'pool' is also in use at federator 2",
    ]


def test_share_names_are_limited_in_both_directions() -> None:
    scene = Scene()
    scene.shares = dict.fromkeys(map(str, range(SHARE_NAMES_MAX + 1)))
    scene.management.tell_shares()
    assert len(scene.told[0]["names"]) == SHARE_NAMES_MAX
    scene.hear({"kind": "shares", "names": sorted(scene.shares)})
    assert scene.counters["share_names_at_two_brokers"] == SHARE_NAMES_MAX


def test_bridges_and_share_names_are_reported_again_for_federators_that_came_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(management, "TELL_EVERY_S", 0.001)

    async def steps() -> None:
        scene = Scene()
        scene.management.take_reports([BridgeSeen("site")])
        telling = asyncio.create_task(scene.management.tell_again())
        await scene.has_told(3)
        assert {message["kind"] for message in scene.told} == {"bridges"}, "no share names are in use"
        scene.shares = {"pool": 1}
        scene.told.clear()
        await scene.has_told(4)
        telling.cancel()
        assert {message["kind"]: message["names"] for message in scene.told} == {
            "bridges": ["site"],
            "shares": ["pool"],
        }

    run(steps)


@pytest.mark.parametrize(
    "words",
    [
        b"no JSON",
        b"[" * 100_000,
        [],
        {"kind": "shares"},
        {"kind": "shares", "names": 5},
        {"kind": "bridges", "names": None},
        {"kind": "trace", "id": [1, 2], "topic": "a"},
        {"kind": "trace", "id": [1, 2, 3], "topic": "a/#"},
    ],
)
def test_words_that_are_malformed_are_counted_and_those_after_them_heard(words: object) -> None:
    scene = Scene()
    scene.shares = {"pool": 1}
    scene.hear(words, {"kind": "shares", "names": ["pool"]})
    assert scene.counters["management_refused"] == 1
    assert scene.counters["share_names_at_two_brokers"] == 1


def test_a_kind_of_a_newer_federator_is_passed_over() -> None:
    scene = Scene()
    scene.hear({"kind": "weather", "names": 5}, {})
    assert scene.counters == {}


def test_packets_about_retained_state_come_by_both_groups_and_reports_apart() -> None:
    scene = Scene()
    scene.get(encode(RETAINED_TOPIC, b"one", qos=1), encode(RETAINED_TOPIC, b"malformed", qos=1))
    scene.get(encode(RETAINED_TOPIC, b"two", qos=1), group=MANAGEMENT_GROUP)
    assert scene.retained == [(OTHER, b"one"), (OTHER, b"two")]
    assert scene.counters["management_refused"] == 1
    scene.get(encode(REPORT_TOPIC, b"{}", qos=1))
    assert scene.counters["trace_reports_dropped"] == 1
