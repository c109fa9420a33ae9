"""The connected clients of a worker, reported over TCP to real registers."""

import asyncio
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

from tests.client.stories import run, until

from hanse.federator.gateway_clients import GatewayClients
from hanse.federator.gateways import Gateways
from hanse.gateway.federators import ConnectedClients, FederatorLogin, Federators
from hanse.gateway.federators import clients as module
from hanse.request_channel import Endpoint

STORES = ("a", "b")


class Place:
    """A federator's register."""

    def __init__(self, endpoint: Endpoint | None = None) -> None:
        self.gateways = Gateways(1)
        self.counters: Counter[str] = Counter()
        self.clients = GatewayClients(self.gateways, self.counters)
        self.endpoint = endpoint or Endpoint("127.0.0.1", 0)

    async def start(self) -> None:
        self.endpoint = await self.gateways.listen(self.endpoint)


class Worker:
    """A worker's clients, and those that it had to end."""

    def __init__(self, name: str, places: dict[str, Place], ahead_s: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        self.ended: list[Any] = []
        login = FederatorLogin(name, "1")
        self.federators = Federators(login, barrier_timeout_s=1, clock=loop.time, may_change=True)
        self.counters = self.federators.counters
        self.book = ConnectedClients(self.federators, self.counters, self.ended.append, lambda: time.time() + ahead_s)
        self.federators.update(SimpleNamespace(id=one, federator=str(place.endpoint)) for one, place in places.items())

    async def stop(self) -> None:
        await self.book.stop()
        await self.federators.stop()


async def places_up() -> dict[str, Place]:
    places = {name: Place() for name in STORES}
    for place in places.values():
        await place.start()
    return places


async def stop(places: dict[str, Place], *workers: Worker) -> None:
    for worker in workers:
        await worker.stop()
    for place in places.values():
        await place.gateways.stop()


def test_the_gateway_of_the_older_connection_is_told_also_after_a_move() -> None:
    async def story() -> None:
        places = await places_up()
        one, two = Worker("one", places), Worker("two", places)
        await until(lambda: one.federators.connected == two.federators.connected == 2, "all connections")
        one.book.accepted("older", b"c", "a", STORES)
        await until(lambda: one.counters["clients_reported"] == 2, "it is reported")
        two.book.accepted("newer", b"c", "a", STORES)
        await until(lambda: two.counters["clients_reported"] == 2, "the second is reported")
        # Both are at one broker, which ends the older one; but `one` does not hear of that and moves the client.
        assert not one.ended
        one.book.moved("older", b"c", "b", STORES)
        await until(lambda: one.ended, "it is told")
        # The other way round: the broker of the older one is still up there.
        one.book.accepted("newest", b"c", "b", STORES)
        await until(lambda: two.ended, "it is told")
        assert (one.ended, two.ended) == (["older"], ["newer"])
        assert one.counters["clients_taken_over"] == 1
        await stop(places, one, two)

    run(story)


def test_a_federator_that_restarts_hears_of_all_clients_again() -> None:
    async def story() -> None:
        places = {"a": Place()}
        await places["a"].start()
        one, two = Worker("one", places), Worker("two", places)
        await until(lambda: one.federators.connected == two.federators.connected == 1, "all connections")
        await places["a"].gateways.stop()
        await until(lambda: one.federators.connected == two.federators.connected == 0, "both have lost it")
        one.book.accepted("older", b"c", "a", ("a",))
        two.book.accepted("left", b"d", "a", ("a",))
        two.book.gone("left", b"d")
        await asyncio.sleep(0.002)
        two.book.accepted("newer", b"c", "b", ("a",))
        again = places["a"] = Place(places["a"].endpoint)
        await again.start()
        await until(lambda: one.ended == ["older"], "both have reported")
        assert not two.ended
        await until(lambda: len(again.clients.register) == 1, "the one that left is not there")
        await stop(places, one, two)

    run(story)


def test_within_one_worker_no_federator_is_needed() -> None:
    async def story() -> None:
        one = Worker("one", {})
        one.book.accepted("first", b"c", "b", ())
        one.book.accepted("second", b"c", "b", ())
        assert one.ended == [], "the broker ends it"
        # The broker could not tell the gateway, which moves the first connection.
        one.book.moved("first", b"c", "a", ())
        assert one.ended == ["first"]
        one.book.gone("first", b"c")
        one.book.accepted("third", b"c", "a", ())
        assert one.ended == ["first", "second"]
        one.book.gone("third", b"c")
        one.book.accepted("fourth", b"c", "b", ())
        assert len(one.ended) == 2
        await one.stop()

    run(story)


def test_a_wrong_clock_ends_nobody_and_is_counted() -> None:
    async def story() -> None:
        places = await places_up()
        one, two = Worker("one", places), Worker("two", places, ahead_s=60)
        await until(lambda: one.federators.connected == two.federators.connected == 2, "all connections")
        two.book.accepted("ahead", b"c", "b", STORES)
        one.book.accepted("here", b"c", "a", STORES)
        await until(lambda: two.counters["clients_failed"] and one.counters["clients_reported"] == 2, "answers")
        assert not one.ended
        assert not two.ended
        await stop(places, one, two)

    run(story)


def test_clients_that_left_do_not_wait_without_a_bound(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "GONE_MAX", 3)

    async def story() -> None:
        places = await places_up()
        one = Worker("one", places)
        await until(lambda: one.federators.connected == 2, "all connections")
        for k in range(20):
            one.book.accepted(k, b"%d" % k, "a", ("a",))
            one.book.gone(k, b"%d" % k)
        one.book.accepted("stays", b"c", "a", ("a",))
        assert one.counters["clients_overflows"] > 0
        assert len(one.book._waiting["a"]) <= 4
        await until(lambda: len(places["a"].clients.register) == 1, "all is told")
        await stop(places, one)

    run(story)
