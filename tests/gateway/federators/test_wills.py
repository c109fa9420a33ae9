"""Reports of wills to real federators' listeners over TCP, and what is left when a gateway is gone."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from tests.client.stories import run, until

from hanse.errors import Unavailable
from hanse.federator.gateway_wills import GatewayWills
from hanse.federator.gateways import Gateways
from hanse.gateway.federators import FederatorLogin, Federators, WillReports, wills
from hanse.gateway.front.connect import Will as ClientWill
from hanse.mqtt.client import Will
from hanse.request_channel import Endpoint


class Place:
    """A federator's listener with its wills."""

    def __init__(self) -> None:
        self.gateways = Gateways(1)
        self.published: list[str] = []
        self.counters: Counter[str] = Counter()
        loop = asyncio.get_running_loop()
        self.wills = GatewayWills(self.gateways, self._publish, lambda: True, self.counters, loop.time)
        self.endpoint = Endpoint("127.0.0.1", 0)

    async def _publish(self, will: Will) -> None:
        self.published.append(will.topic)

    async def start(self) -> None:
        self.endpoint = await self.gateways.listen(self.endpoint)

    @property
    def topics(self) -> list[str]:
        return sorted(one.will.topic for owner in self.wills._owners.values() for one in owner.wills.values())


class Gateway:
    def __init__(self, name: str, places: dict[str, Place], grace_s: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        self.federators = Federators(FederatorLogin(name, "1"), barrier_timeout_s=1, clock=loop.time, may_change=True)
        self.know(places)
        self.reports = WillReports(self.federators, self.federators.counters, loop.time, grace_s=grace_s)

    def know(self, places: dict[str, Place]) -> None:
        self.federators.update(SimpleNamespace(id=k, federator=str(place.endpoint)) for k, place in places.items())

    def accept(self, key: str, place: str, *, client: str = "", topic: str = "", delay_s: int = 0) -> None:
        will = ClientWill((topic or key).encode(), b"off", 1, False, b"")
        self.reports.accepted(key, (client or key).encode(), will, delay_s, [place, "a"])

    async def die(self) -> None:
        """End all connections without a goodbye."""
        await self.reports.stop()
        for place in self.federators.broker_ids:
            connection = self.federators.connection(place)
            assert connection is not None
            await connection.stop()


async def world(*names: str) -> dict[str, Place]:
    places = {name: Place() for name in names}
    for place in places.values():
        await place.start()
    return places


def test_will_is_where_the_client_is_and_goes_with_its_goodbye() -> None:
    async def story() -> None:
        places = await world("a", "b")
        gateway = Gateway("g", places)
        gateway.accept("x", "a")
        gateway.accept("y", "b")
        gateway.accept("z", "without-a-federator")
        await until(lambda: places["a"].topics == ["x", "z"] and places["b"].topics == ["y"], "all wills")
        gateway.reports.arrived("x", ["b"])
        await until(lambda: places["a"].topics == ["z"] and places["b"].topics == ["x", "y"], "one has moved")
        gateway.reports.forget("x")
        gateway.reports.part("y")
        await until(lambda: not places["b"].topics, "both are taken back")
        await gateway.die()
        await until(lambda: not places["a"].gateways.peers, "the gateway is gone")
        await places["a"].wills.tick()
        assert places["a"].published == ["z"]
        for place in places.values():
            await place.gateways.stop()

    run(story)


def test_later_connection_of_the_same_id_keeps_its_will_when_the_earlier_one_ends() -> None:
    async def story() -> None:
        places = await world("a")
        gateway = Gateway("g", places)
        gateway.accept("old", "a", client="c")
        gateway.accept("new", "a", client="c")
        gateway.reports.forget("old")
        gateway.accept("end", "a")
        await until(lambda: places["a"].topics == ["end", "new"], "the new will")
        await gateway.die()
        await places["a"].gateways.stop()

    run(story)


def test_will_with_a_delay_is_taken_back_just_before_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        places = await world("a")
        gateway = Gateway("g", places)
        gateway.accept("soon", "a", delay_s=2)
        gateway.accept("late", "a", delay_s=1_000)
        await until(lambda: len(places["a"].topics) == 2, "both wills")
        monkeypatch.setattr(wills, "MARGIN_S", 1.9)
        gateway.reports.part("soon")
        gateway.reports.part("late")
        await until(lambda: places["a"].topics == ["late"], "the first is due")
        gateway.reports.forget("late")
        await until(lambda: not places["a"].topics, "the other client is back")
        await gateway.die()
        await places["a"].gateways.stop()

    run(story)


def test_new_connection_brings_all_wills_again_and_a_removed_broker_gets_a_goodbye() -> None:
    async def story() -> None:
        places = await world("a", "b")
        gateway = Gateway("g", places)
        gateway.accept("x", "a")
        gateway.accept("y", "a")
        await until(lambda: places["a"].topics == ["x", "y"], "both wills")
        await places["a"].gateways.stop()
        gateway.reports.forget("x")
        returned = Place()
        returned.endpoint = places["a"].endpoint
        await returned.start()
        await until(lambda: returned.topics == ["y"], "the returned federator has what is left")
        gateway.know({"b": places["b"]})
        await until(lambda: not returned.gateways.peers, "the broker is no longer in the directory")
        await returned.wills.tick()
        assert (returned.topics, returned.published) == ([], [])
        await gateway.die()
        for place in (places["b"], returned):
            await place.gateways.stop()

    run(story)


def test_gateway_answers_who_is_here_and_who_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wills, "RECENT_MAX", 1)

    async def story() -> None:
        places = await world("a")
        lost, other = Gateway("g", places), Gateway("h", places)
        for name in ("here", "forgotten", "was", "gone"):
            lost.accept(name, "a")
        await until(lambda: len(places["a"].topics) == 4, "all wills")
        other.reports.accepted("k1", b"here", None, 0, ["a"])
        for key, client in (("k2", b"forgotten"), ("k3", b"was")):
            other.reports.accepted(key, client, None, 0, ["a"])
            other.reports.forget(key)
        await until(lambda: len(places["a"].gateways.peers) == 2, "both gateways")
        await lost.die()
        await until(lambda: len(places["a"].gateways.peers) == 1, "one gateway")
        await places["a"].wills.tick()
        assert places["a"].published == ["forgotten", "gone"], "one more than is remembered has left"
        assert places["a"].counters["gateway_wills_cancelled"] == 2
        await other.die()
        await places["a"].gateways.stop()

    run(story)


def test_failed_report_is_repeated_as_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wills, "REFUSED_PAUSE_S", 0.01)

    async def story() -> None:
        places = await world("a")
        take = places["a"].gateways._offers["wills"]
        failures = [Unavailable("slow")] * 3

        async def sometimes(peer: object, request: object) -> object:
            if failures:
                raise failures.pop()
            return await take(peer, request)  # type: ignore[arg-type]

        places["a"].gateways._offers["wills"] = sometimes  # type: ignore[assignment]
        gateway = Gateway("g", places)
        gateway.accept("x", "a")
        await until(lambda: places["a"].topics == ["x"], "the will in the end")
        assert gateway.federators.counters["will_rows_failed"] == 3
        await gateway.die()
        await places["a"].gateways.stop()

    run(story)
