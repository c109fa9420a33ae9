"""The wills that a federator keeps for gateways: what is published, when, and what is not."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client

from hanse.errors import HanseError, RemoteError, Unavailable
from hanse.federator import gateway_wills
from hanse.federator.gateway_wills import LATE_S, GatewayWills, WillPublisher
from hanse.federator.gateways import GatewayName, Gateways
from hanse.mqtt.client import ClientSettings, Version, Will
from hanse.request_channel import Answer, Request, RequestChannel

Story = Callable[["World"], Coroutine[Any, Any, None]]


class Peer:
    """A gateway's connection; `here` is what it answers."""

    def __init__(self, world: "World", name: GatewayName) -> None:
        self.name = name
        self.here: dict[str, int] = {}
        self.asked: list[list[Any]] = []
        self.error: Exception | None = None
        self.channel = SimpleNamespace(ask=self._ask)
        self._world = world

    async def _ask(self, kind: str, fields: dict[str, Any], *, timeout_s: float) -> Answer:
        assert kind == "clients_here"
        assert timeout_s > 0
        self.asked += fields["clients"]
        if self.error is not None:
            raise self.error
        return Answer({"clients": [one for one, age_ms in fields["clients"] if self.here.get(one, 1 << 60) <= age_ms]})

    async def tell(self, *rows: list[Any], **fields: object) -> int:
        handler: Any = self._world.gateways._offers["wills"]
        request = Request(RequestChannel({}), 1, "wills", {"rows": list(rows), "grace_ms": 10_000, **fields}, b"")
        return int((await handler(self, request)).fields["refused"])

    def lose(self) -> None:
        del self._world.gateways.peers[self.name]
        for _, gone in self._world.gateways._watchers:
            gone(self)  # type: ignore[arg-type]


class World:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.gateways = Gateways(1)
        self.counters: Counter[str] = Counter()
        self.published: list[str] = []
        self.failure: Exception | None = None
        self.is_up = True
        self.wills = GatewayWills(self.gateways, self._publish, lambda: self.is_up, self.counters, lambda: self.now)

    async def _publish(self, will: Will) -> None:
        if self.failure is not None:
            raise self.failure
        self.published.append(will.topic)

    def peer(self, gateway: str, incarnation: str = "1", number: int = 0) -> Peer:
        made = Peer(self, GatewayName(gateway, incarnation, number))
        self.gateways.peers[made.name] = made  # type: ignore[assignment]
        for come, _ in self.gateways._watchers:
            come(made)  # type: ignore[arg-type]
        return made

    async def after(self, seconds: float) -> list[str]:
        self.now += seconds
        await self.wills.tick()
        return self.published


def put(client: str, topic: str = "", delay_s: int = 0, properties: bytes = b"") -> list[Any]:
    return ["put", client, (topic or client).encode().hex(), b"off".hex(), 1, False, properties.hex(), delay_s]


def story(body: Story) -> Callable[[], None]:
    def test() -> None:
        asyncio.run(body(World()))

    test.__name__ = body.__name__
    return test


@story
async def test_wills_of_lost_gateway_are_published_once_after_grace_or_delay(world: World) -> None:
    peer = world.peer("g")
    await peer.tell(put("a"), put("slow", delay_s=30), put("said"), ["drop", "said"])
    assert await world.after(1_000) == [], "the gateway lives"
    peer.lose()
    assert await world.after(9) == []
    assert await world.after(2) == ["a"]
    assert await world.after(15) == ["a"]
    assert await world.after(10) == ["a", "slow"]
    assert await world.after(1_000) == ["a", "slow"]
    assert (world.wills.count, world.wills.bytes) == (0, 0)
    assert not world.wills._owners
    assert world.counters["gateway_wills_published"] == 2


@story
async def test_goodbye_publishes_nothing(world: World) -> None:
    peer = world.peer("g")
    await peer.tell(put("a"), put("b"))
    await peer.tell(goodbye=True)
    peer.lose()
    assert await world.after(1_000) == []
    assert world.wills.count == 0


@story
async def test_same_incarnation_that_returns_keeps_only_what_its_snapshot_has(world: World) -> None:
    first = world.peer("g")
    await first.tell(put("a"), put("b"))
    first.lose()
    await world.after(9)
    again = world.peer("g")
    assert await world.after(100) == []
    await again.tell(snapshot="begin")
    await again.tell(put("b"))
    await again.tell(snapshot="end")
    again.lose()
    assert await world.after(11) == ["b"]


@story
async def test_client_that_another_gateway_reports_gets_no_will_of_the_lost_one(world: World) -> None:
    lost, other = world.peer("g"), world.peer("h")
    await lost.tell(put("a", "old"))
    lost.lose()
    await other.tell(put("a", "new"))
    assert await world.after(100) == []
    other.lose()
    assert await world.after(11) == ["new"]
    assert world.counters["gateway_wills_cancelled"] == 1


@story
async def test_client_that_another_gateway_serves_or_has_served_since_gets_none(world: World) -> None:
    lost, other = world.peer("g"), world.peer("h")
    await lost.tell(put("here"), put("was"), put("long-ago"), put("nowhere"))
    world.now += 1_000
    lost.lose()
    other.here = {"here": 0, "was": 5_000, "long-ago": 500_000}
    assert await world.after(11) == ["long-ago", "nowhere"]
    assert world.counters["gateway_wills_cancelled"] == 2
    # The silence after which a dead connection is noticed counts, too.
    assert all(18_000 < age_ms < 20_000 for _, age_ms in other.asked)


@story
async def test_what_was_before_the_will_does_not_count(world: World) -> None:
    lost, other = world.peer("g"), world.peer("h")
    await lost.tell(put("a"))
    world.now += 1
    lost.lose()
    other.here = {"a": 12_500}
    assert await world.after(11) == ["a"]


@story
async def test_gateway_that_does_not_answer_delays_the_wills(world: World) -> None:
    lost, other, older = world.peer("g"), world.peer("h"), world.peer("i")
    await lost.tell(put("a"), put("b"))
    lost.lose()
    older.error = RemoteError("not known")
    other.error = Unavailable("slow")
    assert await world.after(11) == []
    other.error = None
    other.here = {"b": 0}
    assert await world.after(1) == ["a"]
    assert world.counters["gateway_wills_cancelled"] == 1


@story
async def test_will_waits_for_the_host_broker_but_not_for_ever(world: World) -> None:
    peer = world.peer("g")
    await peer.tell(put("a"), put("b", delay_s=int(LATE_S) + 10))
    peer.lose()
    world.is_up = False
    assert await world.after(11) == []
    assert await world.after(LATE_S + 1) == []
    world.is_up = True
    assert await world.after(1) == ["b"]
    assert world.counters["gateway_wills_lost"] == 1


@story
async def test_attempt_that_failed_is_not_repeated(world: World) -> None:
    peer = world.peer("g")
    await peer.tell(put("a"))
    peer.lose()
    world.failure = Unavailable("no CONNACK")
    await world.after(11)
    world.failure = None
    assert await world.after(100) == []
    assert world.counters["gateway_wills_lost"] == 1


def test_wills_are_bounded_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_wills, "WILLS_MAX", 2)

    async def body() -> None:
        world = World()
        peer = world.peer("g")
        assert await peer.tell(put("a"), put("b"), put("c")) == 1
        assert await peer.tell(put("b", "other"), ["drop", "a"], put("c")) == 0
        monkeypatch.setattr(gateway_wills, "BYTES_MAX", world.wills.bytes)
        monkeypatch.setattr(gateway_wills, "WILLS_MAX", 100)
        assert await peer.tell(put("d")) == 1
        assert world.counters["gateway_wills_refused"] == 2
        peer.lose()
        assert sorted(await world.after(11)) == ["c", "other"]

    asyncio.run(body())


@story
async def test_odd_wills_are_refused_and_malformed_rows_are_errors(world: World) -> None:
    peer = world.peer("g")
    assert await peer.tell(put("a", "$SYS/x"), put("b", "federator/0/beacon")) == 2
    good = put("a")
    odd = [put("a", "x/#"), put("a", "x\0"), [*good[:4], 3, *good[5:]], [*good[:6], "26", 0], [*good[:7], -1]]
    odd += [[*good[:2], "zz", *good[3:]], [*good[:2], "ff", *good[3:]]]
    # The other wills of the same request are taken.
    assert await peer.tell(*odd, put("b")) == len(odd)
    assert world.wills.count == 1
    for row in ([], ["put", "a"], ["what"], good[:-1], [*good[:7], None]):
        with pytest.raises(RemoteError):
            await peer.tell(row)
    assert world.wills.count == 1


def test_properties_of_a_will_are_kept() -> None:
    raw = b"\x01\x01\x02\0\0\0\x09\x03\0\1c\x08\0\1r\x09\0\2\xff\0\x26\0\1k\0\1v\x26\0\1k\0\1w\x18\0\0\0\x07"
    assert gateway_wills._will("t", b"x", 2, True, raw) == Will(
        "t",
        b"x",
        2,
        True,
        expiry_s=9,
        payload_format_indicator=1,
        content_type="c",
        response_topic="r",
        correlation_data=b"\xff\0",
        user_properties=(("k", "v"), ("k", "w")),
    )


@pytest.mark.processes
@pytest.mark.parametrize("version", [4, 5, "auto"])
def test_will_is_published_once_at_a_real_broker(version: Version) -> None:
    with Mosquitto() as broker, Client(broker.port) as watcher:
        watcher.subscribe("w/#")
        publisher = WillPublisher(ClientSettings(broker.url, "former", version=version), "wills")

        async def body() -> None:
            for number in range(20):
                await publisher.publish(Will(f"w/{number}", b"off", 2, number == 0, expiry_s=100))

        asyncio.run(body())
        got = watcher.expect(20)
        assert {message.topic for message in got} == {f"w/{number}" for number in range(20)}
        assert all(message.qos == 2 and message.payload == b"off" for message in got)
        assert sum(message.retain for message in got) == 1
        broker.kill()
        with pytest.raises(HanseError):
            asyncio.run(publisher.publish(Will("w/x")))
