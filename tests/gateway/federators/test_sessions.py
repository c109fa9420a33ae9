"""Records of lasting sessions: written to real stores over TCP, and found by another gateway."""

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from tests.client.stories import run, until

from hanse.federator.gateway_sessions import GatewaySessions
from hanse.federator.gateways import Gateways
from hanse.gateway.federators import FederatorLogin, Federators, SessionRecord, SessionRecords
from hanse.gateway.session import Subscription
from hanse.request_channel import Endpoint

FILTERS = (Subscription(b"a/#", 1, 0x05, 7), Subscription("ü".encode(), 2, 2, 0))


def record(broker: str, expiry_s: int | None = 60) -> SessionRecord:
    return SessionRecord(broker, FILTERS, expiry_s, True)


class Place:
    """A federator's store."""

    def __init__(self, path: Path) -> None:
        self.gateways = Gateways(1)
        self.store = GatewaySessions(path, self.gateways, Counter())
        self.endpoint = Endpoint("127.0.0.1", 0)

    async def start(self) -> None:
        self.endpoint = await self.gateways.listen(self.endpoint)

    async def stop(self) -> None:
        await self.gateways.stop()
        self.store.close()


def gateway(name: str, places: dict[str, Place]) -> tuple[Federators, SessionRecords]:
    loop = asyncio.get_running_loop()
    federators = Federators(FederatorLogin(name, "1"), barrier_timeout_s=1, clock=loop.time, may_change=True)
    federators.update(SimpleNamespace(id=one, federator=str(place.endpoint)) for one, place in places.items())
    return federators, SessionRecords(federators, federators.counters)


def test_another_gateway_finds_the_newest_record_whichever_store_has_it(tmp_path: Path) -> None:
    async def story() -> None:
        places = {name: Place(tmp_path / f"{name}.db") for name in ("a", "b")}
        for place in places.values():
            await place.start()
        first, writing = gateway("first", places)
        second, reading = gateway("second", places)
        await until(lambda: first.connected == second.connected == 2, "all connections")
        assert await reading.find(b"c\xff", places) is None
        writing.note(b"c\xff", places, record("a"))
        assert (await writing.find(b"c\xff", places) or record("")).broker_id == "a", "what waits is known already"
        await until(lambda: first.counters["session_records"] == 2, "both stores")
        found = await reading.find(b"c\xff", places)
        assert found is not None
        assert found[:4] == record("a")[:4]
        # One store is away; the other one has the newer record.
        await places["a"].stop()
        await until(lambda: first.connected == 1, "one connection")
        writing.note(b"c\xff", places, record("b"))
        await until(lambda: first.counters["session_records"] == 3, "the other store")
        again = await reading.find(b"c\xff", places)
        assert again is not None
        assert again.broker_id == "b"
        # The one that returns gets the missed records.
        returned = Place(tmp_path / "a.db")
        returned.endpoint = places["a"].endpoint
        await returned.start()
        await until(lambda: first.counters["session_records"] == 4, "the returned store")
        places["a"] = returned
        await until(lambda: second.connected == 2, "its other connection")
        found = await reading.find(b"c\xff", ["a"])
        assert found is not None
        assert found.broker_id == "b"
        # An expiry of 0 ends a record.
        writing.note(b"c\xff", places, record("b", 0))
        await until(lambda: first.counters["session_records"] == 6, "the end")
        assert await reading.find(b"c\xff", places) is None
        for one in (writing, reading, first, second):
            await one.stop()
        for place in places.values():
            await place.stop()

    run(story)
