"""Fetching what was retained elsewhere: two federators, their brokers as tables of retained messages."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from hanse.errors import Unavailable
from hanse.federator import retained
from hanse.federator.crossing import Crossing
from hanse.federator.retained import RetainedFetcher
from hanse.mqtt.client import ClientSettings
from hanse.mqtt.publication import Publication, encode, payload_of, qos_of, topic_of
from hanse.protocol.identity import private_group
from hanse.protocol.messages import Run
from hanse.protocol.settings import MANAGEMENT_GROUP
from hanse.protocol.topics import matches


class Federation:
    """Everything that is published reaches everyone else at once."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.groups: set[str] = set()

    def publish(self, origin: int, group: str, packets: list[bytes]) -> None:
        for packet in packets:
            for identity, member in self.members.items():
                if identity == origin:
                    continue
                if group == MANAGEMENT_GROUP:
                    message = json.loads(payload_of(packet))
                    member.requests.append(message["filters"])
                    member.fetcher.on_request(message["filters"], message["to"])
                elif group == private_group(identity):
                    member.fetcher.on_answer(Run(origin, 1, 1, 1, qos_of(packet), 0, (group,), packet))


class Member:
    def __init__(self, federation: Federation, identity: int, crossing: Crossing | None = None) -> None:
        self.broker: dict[str, bytes] = {}
        self.delivered: list[tuple[str, bytes, int]] = []
        self.requests: list[list[str]] = []
        self.looks: list[list[str]] = []
        self.is_broker_up = True
        self.counters: Counter[str] = Counter()
        federation.members[identity] = self
        self.fetcher = RetainedFetcher(
            identity,
            ClientSettings(f"mqtt://broker-{identity}", f"hanse-{identity}"),
            crossing=crossing or Crossing(),
            publish=lambda group, packets: federation.publish(identity, group, packets),
            is_known=lambda group: group in federation.groups,
            join=federation.groups.add,
            part=federation.groups.discard,
            deliver=lambda packet, qos: self.delivered.append((topic_of(packet), payload_of(packet), qos)),
            counters=self.counters,
        )

    def retain(self, topic: str, payload: bytes, qos: int = 1) -> None:
        self.broker[topic] = encode(topic, payload, qos=qos, retain=True)


@pytest.fixture
def federation(monkeypatch: pytest.MonkeyPatch) -> Federation:
    made = Federation()

    async def look(settings: ClientSettings, filters: Iterable[str]) -> dict[str, Publication]:
        identity = int(settings.client_id.split("-")[1])
        member = made.members[identity]
        member.looks.append(sorted(filters))
        await asyncio.sleep(0)
        if not member.is_broker_up:
            raise Unavailable("the broker is away")
        return {
            topic: Publication(packet, topic, qos_of(packet), True, False, 0, ())
            for topic, packet in member.broker.items()
            if any(matches(wanted, topic) for wanted in filters)
        }

    monkeypatch.setattr(retained, "look", look)
    monkeypatch.setattr(retained, "FETCH_S", 0.02)
    return made


def run(steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(steps())


async def finish(*members: Member) -> None:
    async with asyncio.timeout(5):
        while any(member.fetcher._tasks for member in members):  # noqa: ASYNC110 - several objects' state
            await asyncio.sleep(0)


def test_what_another_broker_has_retained_arrives_once(federation: Federation) -> None:
    async def steps() -> None:
        one, two, three = (Member(federation, k) for k in (1, 2, 3))
        two.retain("a/x", b"of two", 2)
        two.retain("b", b"not asked for")
        three.retain("a/x", b"of three")
        one.fetcher.want(["a/#"], ["a/#"])
        await finish(one, two, three)
        assert one.delivered == [("a/x", b"of two", 2)]
        assert one.counters == {"retained_delivered": 1, "retained_already_here": 1}
        assert federation.groups == set()

    run(steps)


def test_what_the_own_broker_has_retained_wins(federation: Federation) -> None:
    async def steps() -> None:
        one, two = Member(federation, 1), Member(federation, 2)
        one.retain("a", b"own")
        two.retain("a", b"other")
        one.fetcher.want(["a"], ["a"])
        await finish(one, two)
        assert one.delivered == []

    run(steps)


def test_filters_wanted_meanwhile_join_the_fetch_and_go_out_in_portions(federation: Federation) -> None:
    async def steps() -> None:
        one, two = Member(federation, 1), Member(federation, 2)
        two.retain("t/199", b"x")
        for number in range(200):
            one.fetcher.want([f"t/{number}"], [f"t/{number}"])
        await finish(one, two)
        assert [len(filters) for filters in two.requests] == [64, 64, 64, 8]
        assert len(one.delivered) == 1
        assert len(one.looks) == 4

    run(steps)


def test_a_filter_wanted_while_answers_are_awaited_is_asked_for_at_once(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained, "FETCH_S", 1_000.0)

    async def steps() -> None:
        one, two = Member(federation, 1), Member(federation, 2)
        two.retain("b", b"x")
        one.fetcher.want(["a"], ["a"])
        await finish(two)
        one.fetcher.want(["b"], ["b"])
        async with asyncio.timeout(5):
            while not one.delivered:  # noqa: ASYNC110 - another object's state
                await asyncio.sleep(0)
        await one.fetcher.stop()

    run(steps)


def test_filters_beyond_the_limit_are_refused_and_counted(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained, "FILTERS_WAITING_MAX", 3)

    async def steps() -> None:
        one = Member(federation, 1)
        one.fetcher.want(["a", "b", "c", "d", "e"], ["a", "b", "c", "d", "e"])
        await finish(one)
        assert one.counters == {"retained_fetches_refused": 2}

    run(steps)


def test_requests_beyond_the_limit_are_refused_and_counted(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained, "REQUESTS_MAX", 2)

    async def steps() -> None:
        two = Member(federation, 2)
        for _ in range(5):
            two.fetcher.on_request(["a"], 1)
        assert two.counters == {"retained_requests_refused": 3}
        await finish(two)

    run(steps)


def test_more_than_the_limit_is_cut_off_and_counted(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "RETAINED_MAX", 3)

    async def steps() -> None:
        one, two = Member(federation, 1), Member(federation, 2)
        for number in range(5):
            two.retain(f"a/{number}", b"x")
        one.fetcher.want(["a/#"], ["a/#"])
        await finish(one, two)
        assert two.counters == {"retained_cut_off": 2, "retained_sent": 3}
        assert len(one.delivered) == 3

    run(steps)


def test_attack_a_request_for_what_never_crosses_gets_nothing(federation: Federation) -> None:
    async def steps() -> None:
        one, two = Member(federation, 1), Member(federation, 2)
        two.retain("$SYS/broker/version", b"x")
        two.retain("federator/core_ann/2/1", b"x")
        one.fetcher.want(["$SYS/#", "#", "a/#/b", "", "x\0"], [])
        await finish(one, two)
        assert one.delivered == []
        assert "retained_sent" not in two.counters

    run(steps)


def test_what_may_not_be_exported_is_not_sent_and_what_is_has_its_federation_name(federation: Federation) -> None:
    async def steps() -> None:
        one = Member(federation, 1)
        two = Member(federation, 2, Crossing(prefix="plants/2", export_deny=["secret/#"]))
        two.retain("open/a", b"x")
        two.retain("secret/b", b"x")
        one.fetcher.want(["#"], ["#"])
        await finish(one, two)
        assert [topic for topic, _, _ in one.delivered] == ["plants/2/open/a"]

    run(steps)


def test_what_may_not_be_imported_does_not_enter_and_what_may_has_its_local_name(federation: Federation) -> None:
    async def steps() -> None:
        one = Member(federation, 1, Crossing(prefix="plants/1", import_deny=["secret/#"]))
        two = Member(federation, 2)
        two.retain("plants/1/cmd", b"x")
        two.retain("secret/b", b"x")
        one.retain("other", b"own")
        two.retain("other", b"not own")
        one.fetcher.want(["#"], ["#"])
        await finish(one, two)
        assert [topic for topic, _, _ in one.delivered] == ["cmd"]
        assert one.counters["retained_not_imported"] == 1

    run(steps)


def test_a_broker_that_is_away_answers_nothing_and_holds_up_nobody(federation: Federation) -> None:
    async def steps() -> None:
        one, two, three = (Member(federation, k) for k in (1, 2, 3))
        one.is_broker_up = two.is_broker_up = False
        three.retain("a", b"x")
        one.fetcher.want(["a"], ["a"])
        await finish(one, two, three)
        assert len(one.delivered) == 1
        assert one.counters["retained_looks_failed"] == 1

    run(steps)


def test_an_answer_that_nobody_waits_for_is_counted(federation: Federation) -> None:
    async def steps() -> None:
        one = Member(federation, 1)
        one.fetcher.on_answer(Run(2, 1, 1, 1, 0, 0, (private_group(1),), encode("a", b"x")))
        assert one.counters == {"retained_too_late": 1}
        assert one.delivered == []

    run(steps)


def test_a_stop_ends_what_is_under_way(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "FETCH_S", 1_000.0)

    async def steps() -> None:
        one = Member(federation, 1)
        one.fetcher.want(["a"], ["a"])
        await asyncio.sleep(0.001)
        await one.fetcher.stop()
        assert not one.fetcher._tasks
        assert federation.groups == set()

    run(steps)
