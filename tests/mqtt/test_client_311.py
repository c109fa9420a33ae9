"""The client at brokers that speak 3.1.1, in memory: choice of version, detected traits, and errors."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.mqtt.old_broker import Habits, OldBroker, OldConnection

from hanse.errors import HanseError, LocalError, Unavailable
from hanse.mqtt.backoff import BackoffSettings
from hanse.mqtt.client import Client, ClientHandler, ClientSettings, Will
from hanse.mqtt.connection import Connection
from hanse.mqtt.memory import MemoryTransport, join
from hanse.mqtt.publication import Publication, encode
from hanse.mqtt.subscriptions import Subscription
from hanse.mqtt.survey import UNKNOWN, Traits
from hanse.mqtt.v311 import Written

TURNS = 2_000


async def until(condition: Callable[[], object]) -> None:
    for _ in range(TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition did not become true in time")


class Side(ClientHandler):
    def __init__(self) -> None:
        self.connected: list[bool] = []
        self.disconnected: list[HanseError | None] = []
        self.publications: list[Publication] = []
        self.acknowledged: list[int] = []
        self.subscribed: list[tuple[str, int]] = []
        self.unsubscribed: list[tuple[str, int]] = []
        self.written: list[Written] = []

    def on_connected(self, session_present: bool) -> None:
        self.connected.append(session_present)

    def on_disconnected(self, error: HanseError | None) -> None:
        self.disconnected.append(error)

    def on_publications(self, publications: list[Publication]) -> None:
        self.publications += publications

    def on_acknowledged(self, numbers: list[int]) -> None:
        self.acknowledged += numbers

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        self.subscribed += [(item.filter, code) for item, code in answers]

    def on_unsubscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        self.unsubscribed += [(item.filter, code) for item, code in answers]

    def on_written(self, written: list[Written]) -> None:
        self.written += written


class Scene:
    def __init__(self, habits: Habits, **settings: Any) -> None:
        self.broker = OldBroker(habits)
        self.side = Side()
        self.wires: list[tuple[MemoryTransport, MemoryTransport]] = []
        chosen: dict[str, Any] = {
            "version": "auto",
            "keep_alive_s": 0,
            "session_expiry_s": 60,
            "probe_topic": "probe",
            "probe_client_id": "ours-probe",
            "backoff": BackoffSettings(first_s=1e-9, max_s=1e-9),
        }
        self.client = Client(
            ClientSettings("mqtt://memory", "ours", **{**chosen, **settings}),
            self.side,
            jitter=lambda: 0.0,
            dial=self._dial,
        )

    async def _dial(self, make: Callable[[], Connection]) -> None:
        self.wires.append(join(make(), self.broker.make()))

    @property
    def there(self) -> OldConnection:
        return self.broker.wires[-1]


def play(story: Callable[[Scene], Coroutine[Any, Any, None]], habits: Habits | None = None, **settings: Any) -> Scene:
    async def with_an_end() -> Scene:
        scene = Scene(habits or Habits(), **settings)
        try:
            await story(scene)
        finally:
            await scene.client.stop()
        return scene

    return asyncio.run(with_an_end())


async def start(scene: Scene) -> None:
    await scene.client.start(must_connect=True)


@pytest.mark.parametrize(
    ("habits", "traits"),
    [
        (Habits(), Traits(4, 2, False, False, "")),
        (Habits(to_five="close"), Traits(4, 2, False, False, "")),
        (Habits(qos_max=1, dots="slashes"), Traits(4, 1, False, False, ".*")),
        (Habits(qos_max=1, copies=True, dots="refused"), Traits(4, 1, False, True, ".*")),
        (Habits(refused=("a b",)), Traits(4, 2, False, False, " ")),
        (Habits(refused=("#",)), UNKNOWN),
        (Habits(qos_max=0), Traits(4, 0, False, False, "")),
    ],
)
def test_traits_that_a_broker_does_not_announce_are_detected(habits: Habits, traits: Traits) -> None:
    scene = play(start, habits)
    assert scene.client.traits == traits
    assert scene.side.connected == [False]


def test_auto_begins_with_mqtt_5_and_forgets_an_old_session_first() -> None:
    scene = play(start)
    assert scene.broker.connects == [("ours", 5, True), ("ours-probe", 4, True), ("ours", 4, True), ("ours", 4, False)]


def test_a_broker_that_speaks_mqtt_5_is_asked_nothing() -> None:
    scene = play(start, Habits(to_five="accept"))
    assert scene.broker.connects == [("ours", 5, True)]
    assert scene.client.traits == Traits()


def test_the_error_at_a_3_1_1_broker_says_what_to_change() -> None:
    with pytest.raises(LocalError, match="does not support this version"):
        play(start, version=5)
    with pytest.raises(Unavailable, match="before CONNACK"):
        play(start, Habits(to_five="close"), version=5)


def test_a_session_that_does_not_last_is_not_probed() -> None:
    scene = play(start, version=4, session_expiry_s=0)
    assert scene.broker.connects == [("ours", 4, True)]
    assert scene.client.traits == UNKNOWN


def test_an_earlier_session_is_kept_on_request() -> None:
    async def story(scene: Scene) -> None:
        scene.broker.sessions["ours"] = {"a": 1}
        await start(scene)

    scene = play(story, version=4, clean_start=False)
    assert scene.broker.connects == [("ours-probe", 4, True), ("ours", 4, False)]
    assert scene.side.connected == [True]


@pytest.mark.parametrize("code", [2, 4, 5])
def test_a_refusal_that_the_operator_can_resolve_says_so(code: int) -> None:
    with pytest.raises(LocalError, match="check the settings"):
        play(start, Habits(code=code))


def test_connecting_to_an_absent_broker_is_retried() -> None:
    with pytest.raises(Unavailable, match="server unavailable"):
        play(start, Habits(code=3))


def test_a_broker_that_answers_neither_version_is_reported_as_closing_the_connection() -> None:
    with pytest.raises(Unavailable, match="MQTT 5 port"):
        play(start, Habits(to_five="close", code=3))


def test_a_broker_that_answers_no_probe_is_assumed_to_have_the_worse_traits() -> None:
    async def story(scene: Scene) -> None:
        await scene.client.start()
        await scene.client.wait_connected(10.0)

    scene = play(story, Habits(is_mute=True), connect_timeout_s=0.1)
    assert scene.client.traits == UNKNOWN
    assert [client for client, _, _ in scene.broker.connects].count("ours-probe") == 3
    assert scene.side.connected == [False]


def test_a_broker_that_answers_late_is_probed_again() -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(Unavailable, match="tried again"):
            await start(scene)
        scene.broker.habits.is_mute = False
        await scene.client.start(must_connect=True)

    scene = play(story, Habits(is_mute=True), connect_timeout_s=0.1)
    assert scene.client.traits == Traits(4, 2, False, False, "")


def test_a_password_without_a_user_name_is_wrong_only_where_3_1_1_is_spoken() -> None:
    play(start, Habits(to_five="accept"), password="p")
    with pytest.raises(LocalError, match="no user name"):
        play(start, password="p")


def test_publications_go_both_ways_and_are_acknowledged() -> None:
    async def story(scene: Scene) -> None:
        await start(scene)
        scene.client.subscribe([Subscription("a/#", identifier=7), Subscription("no", identifier=8)])
        await until(lambda: len(scene.side.subscribed) == 2)
        run = b"".join(encode("a/b", b"%d" % qos, qos=qos, user_properties=[("k", "v")]) for qos in (0, 1, 2))
        first = scene.client.publish_run(run)
        await until(lambda: len(scene.side.publications) == 3)
        await until(lambda: len(scene.side.acknowledged) == 2)
        assert scene.side.acknowledged == [first, first + 1]
        scene.client.ack([p.receipt for p in scene.side.publications if p.receipt])
        scene.client.unsubscribe(["a/#"])
        await until(lambda: scene.side.unsubscribed)

    scene = play(story, Habits(refused=("no",)))
    assert scene.side.subscribed == [("a/#", 2), ("no", 0x80)]
    assert scene.side.unsubscribed == [("a/#", 0)]
    assert [(p.topic, p.payload, p.qos) for p in scene.side.publications] == [("a/b", b"%d" % q, q) for q in (0, 1, 2)]
    assert all(p.packet == encode("a/b", b"%d" % q, qos=q) for q, p in enumerate(scene.side.publications))
    assert scene.side.written == [(b"a/b", b"0"), (b"a/b", b"1"), (b"a/b", b"2")]
    assert scene.client.counters.properties_lost == 3
    assert scene.broker.said[-1] == b"\xe0\x00"


def test_qos_2_is_sent_as_qos_1_to_a_broker_without_qos_2() -> None:
    async def story(scene: Scene) -> None:
        await start(scene)
        scene.client.publish_run(encode("a", b"x", qos=2) + encode("a", b"y", qos=1), count=2)
        await until(lambda: len(scene.side.acknowledged) == 2)

    scene = play(story, Habits(qos_max=1))
    assert scene.broker.published[-2:] == [("a", b"x", 1, False), ("a", b"y", 1, False)]


def test_a_reconnect_keeps_the_session_and_resends_unacknowledged_publications() -> None:
    async def story(scene: Scene) -> None:
        await start(scene)
        scene.client.subscribe([Subscription("a")])
        await until(lambda: scene.side.subscribed)
        scene.wires[-1][0].is_held = True
        scene.client.publish("a", b"x", qos=1)
        await until(lambda: scene.side.written)
        scene.wires[-1][0].abort()
        await until(lambda: scene.side.acknowledged)

    scene = play(story, version=4)
    assert scene.side.connected == [False, True]
    assert scene.broker.connects[-1] == ("ours", 4, False)
    assert scene.broker.published[-1] == ("a", b"x", 1, True)
    # Each time that it left, it may come back.
    assert scene.side.written == [(b"a", b"x")] * 2
    assert [wanted for wanted, _ in scene.side.subscribed] == ["a"]


@pytest.mark.parametrize(("qos_max", "count"), [(2, 1), (1, 2)])
def test_publications_held_over_a_reconnect_arrive_again_from_a_broker_that_restarts_its_identifiers(
    qos_max: int, count: int
) -> None:
    async def story(scene: Scene) -> None:
        await start(scene)
        scene.client.subscribe([Subscription("a")])
        await until(lambda: scene.side.subscribed)
        scene.there.send("a", b"x", 1)
        await until(lambda: scene.side.publications)
        old = scene.side.publications[0].receipt
        scene.wires[-1][0].abort()
        await until(lambda: len(scene.side.connected) == 2)
        scene.there.wire.write(b"\x3a\x06\x00\x01a\x00\x01x")  # DUP, and the same packet identifier
        await until(lambda: len(scene.side.publications) == 2 or scene.client.counters.drops)
        said = len(scene.broker.said)
        scene.client.ack([old])
        await until(lambda: len(scene.broker.said) > said or scene.client.counters.refusals)

    scene = play(story, Habits(qos_max=qos_max), version=4)
    assert len(scene.side.publications) == count
    # The old receipt acknowledges only if it still means the same publication.
    assert (b"\x40\x02\x00\x01" in scene.broker.said) is (qos_max == 2)


def test_an_invalid_topic_name_costs_the_publication_and_not_the_connection() -> None:
    async def story(scene: Scene) -> None:
        await start(scene)
        scene.there.wire.write(b"\x32\x08\x00\x03a+b\x00\x09x" + b"\x30\x04\x00\x01ay")
        await until(lambda: scene.side.publications and b"\x40\x02\x00\x09" in scene.broker.said)

    scene = play(story)
    assert [p.topic for p in scene.side.publications] == ["a"]
    assert scene.client.counters.drops == {"topic_name": 1}


def test_attack_an_mqtt_5_packet_in_a_3_1_1_session_ends_it_silently() -> None:
    async def story(scene: Scene) -> None:
        await start(scene)
        said = len(scene.broker.said)
        scene.there.wire.write(b"\xe0\x01\x8b")
        await until(lambda: len(scene.side.connected) == 2)
        # Not with a DISCONNECT, which would cancel the will.
        assert [packet[:1] for packet in scene.broker.said[said:]] == [b"\x10"]

    scene = play(story)
    assert scene.client.counters.refusals == {"protocol_error": 1}


@pytest.mark.parametrize(("with_will", "last"), [(False, b"\xe0\x00"), (True, None)])
def test_a_disconnect_cancels_the_will_unless_it_is_wanted(with_will: bool, last: bytes | None) -> None:
    async def story(scene: Scene) -> None:
        await start(scene)
        said = len(scene.broker.said)
        await scene.client.stop(with_will=with_will)
        await until(scene.there.wire.is_closing)
        assert scene.broker.said[said:] == ([last] if last else [])

    play(story, version=4, will=Will("w"))
