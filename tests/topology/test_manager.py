import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.topology.simulated import Running, running

from hanse.topology.model import LinkKind, State, link_of
from hanse.topology.repair import graph_of, is_two_connected
from hanse.topology.store import Store
from hanse.topology.store_sqlite import SqliteStore

DEADLINE_S = 20.0

Open = Callable[[], Awaitable[Store]]
OnStore = Callable[[Callable[[Open], Awaitable[None]]], None]


async def until(what: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline_s, "the condition did not come true in time"
        await asyncio.sleep(0.01)


def with_manager(tmp_path: Path, body: Callable[[Running], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with running(tmp_path, **{"health_interval_s": 0.2, **settings}) as here:
            await body(here)

    asyncio.run(main())


def state(here: Running, node: int) -> State:
    return here.manager.topology.federators[node].state


def leads(here: Running) -> bool:
    return here.manager.is_leading


def holds(here: Running) -> bool:
    topology = here.manager.topology
    return is_two_connected(graph_of(topology.living(), topology.links))


def test_the_neighbours_of_a_dead_broker_are_relinked_and_its_return_restores_the_overlay(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        for number in range(9):
            await here.join(number)
        before = dict(here.manager.topology.links)
        around = here.manager.topology.neighbors(8)
        here.brokers.down = {f"mqtt://b{n}:1883" for n in around}
        await until(lambda: all(state(here, n) is State.GONE for n in around))
        assert len(here.manager.topology.neighbors(8)) >= 2, "federator 8 lost all its neighbours and has new ones"
        assert holds(here)
        assert LinkKind.REPAIR in here.manager.topology.links.values()
        here.brokers.down = set()
        for n in around:
            here.manager.rounds.suspect(n)
        await until(lambda: all(state(here, n) is State.UP for n in around))
        assert here.manager.topology.links == before
        kinds = [event.kind for event in here.manager.events._ring]
        assert kinds.count("gone") == 2
        assert kinds.count("returned") == 2

    with_manager(tmp_path, body)


def test_one_failed_probe_is_a_hiccup(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        for number in range(4):
            await here.join(number)
        await here.manager.rounds.check()
        here.brokers.down = {"mqtt://b2:1883"}
        verdict = await here.manager.rounds._judge([2])
        assert verdict.suspects == (2,)
        here.brokers.down = set()
        for _ in range(3):
            await here.manager.rounds.check()
        assert state(here, 2) is State.UP
        assert here.manager.counters.lost == 0

    with_manager(tmp_path, body, health_interval_s=3600.0)


def test_a_manager_that_is_cut_off_declares_no_federator_dead(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        for number in range(6):
            await here.join(number)
        here.brokers.down = {f"mqtt://b{n}:1883" for n in range(6)}
        await until(lambda: here.manager.counters.doubts >= 3)
        assert here.manager.topology.living() == list(range(6))
        assert (await here.get("/healthz"))["doubt"] == "all 6 failed at once"
        here.brokers.down = set()
        await until(lambda: here.manager.rounds.doubt is None)

    with_manager(tmp_path, body)


def test_a_silent_federator_is_gone_if_it_promised_to_answer(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        for number in range(4):
            await here.join(number, probe="federator" if number == 3 else "broker")
        here.brokers.silent = {"mqtt://b2:1883", "mqtt://b3:1883"}
        await until(lambda: state(here, 3) is State.GONE)
        assert state(here, 2) is State.UP, "it never promised to answer"
        gone = next(event for event in here.manager.events._ring if event.kind == "gone")
        assert gone.data == {"id": 3, "cause": "federator"}

    with_manager(tmp_path, body)


def test_a_federator_behind_nat_is_healthy_while_it_reports(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        for number in range(4):
            await here.join(number, probe="self" if number == 3 else "broker")
        here.brokers.down = {"mqtt://b3:1883"}  # the manager cannot reach it

        async def report(ok: bool) -> None:
            told = {
                "ip": "tcp://b3:1883",
                "epoch": here.manager.topology.epoch,
                "broker": {"ok": ok, "latency": 4.0},
                "probe": "self",
            }
            answer = await here.client.post("/api/v1/federators/3/report", json=told)
            assert answer.status_code == 200

        for _ in range(6):
            await report(True)
            await here.manager.rounds.check()
        assert state(here, 3) is State.UP
        assert here.manager.topology.federators[3].latency_ms == 4.0
        assert all(node != 3 for node in here.brokers.probed)
        await report(False)
        await until(lambda: state(here, 3) is State.GONE)
        await report(True)
        await until(lambda: state(here, 3) is State.UP)
        await until(lambda: state(here, 3) is State.GONE)  # it no longer reports

    # An interval and a half must outlast a busy machine's hiccups.
    with_manager(tmp_path, body, health_interval_s=2.0)


def test_a_broken_link_whose_ends_live_is_replaced_by_another(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        for number in range(9):
            await here.join(number)
        lost = here.manager.topology.neighbors(8)[0]
        told = {"ip": "tcp://b8:1883", "epoch": here.manager.topology.epoch, "lost": [lost, 8, 77]}
        await here.client.post("/api/v1/federators/8/report", json=told)
        await until(lambda: link_of(8, lost) not in here.manager.topology.links)
        assert state(here, lost) is State.UP
        assert holds(here)
        assert len(here.manager.topology.neighbors(8)) >= 2

    with_manager(tmp_path, body)


def test_links_made_while_the_manager_was_away_are_adopted_and_then_trimmed(
    tmp_path: Path,
) -> None:
    async def body(here: Running) -> None:
        for number in range(9):
            await here.join(number)
        topology = here.manager.topology
        other = next(n for n in range(1, 9) if n not in topology.neighbors(0))
        neighbors = [{"id": n, "ip": f"tcp://b{n}:1883"} for n in [*topology.neighbors(0), other]]
        told = {"ip": "tcp://b0:1883", "epoch": topology.epoch, "neighbors": neighbors}
        answer = await here.client.post("/api/v1/federators/0/report", json=told)
        assert other in [one["id"] for one in answer.json()["neighbors"]]
        await until(lambda: link_of(0, other) not in here.manager.topology.links)
        assert holds(here)

    with_manager(tmp_path, body)


def test_the_second_manager_takes_over_and_the_epoch_of_the_first_is_older(tmp_path: Path) -> None:
    async def main() -> None:
        stores = [await SqliteStore.open(tmp_path / "t.db") for _ in range(2)]
        try:
            fast: dict[str, Any] = {"lease_s": 2.0, "health_interval_s": 0.2}
            async with (
                running(stores[0], advertised_url="http://first", **fast) as first,
                running(stores[1], advertised_url="http://second", **fast) as second,
            ):
                word = await first.join(0)
                assert not second.manager.is_leading
                # The first manager hangs: no beat, and no check of the clock either.
                for task in first.manager._tasks:
                    task.cancel()
                await until(lambda: second.manager.is_leading)
                assert not leads(first), "it stopped before the other began"
                after = (await second.get("/api/v1/federators/0/neighbors"))["epoch"]
                assert after > word["epoch"]
                assert (await second.join(1))["neighbors"][0]["id"] == 0
                refused = await first.client.post("/api/v1/join", json={"ip": "tcp://b2:1883"})
                assert refused.status_code == 503
                # Even if it still believed that it leads, its store would refuse its writes.
                held = first.manager.leadership._held
                assert held is not None
                first.manager.leadership._held = replace(held, renewed_s=time.monotonic())
                assert leads(first)
                deposed = await first.client.post("/api/v1/join", json={"ip": "tcp://b2:1883"})
                assert deposed.status_code == 503
                assert not leads(first)
                assert sorted(second.manager.topology.federators) == [0, 1]
        finally:
            for store in stores:
                await store.close()

    asyncio.run(main())


def test_a_released_lease_is_taken_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        stores = [await SqliteStore.open(tmp_path / "t.db") for _ in range(2)]
        try:
            async with running(stores[1], lease_s=60.0) as first:
                assert first.manager.is_leading
                await first.join(0)
            async with running(stores[0], lease_s=60.0) as second:
                assert second.manager.is_leading
                assert second.manager.topology.living() == [0]
        finally:
            for store in stores:
                await store.close()

    asyncio.run(main())


def test_a_manager_works_on_either_store(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        async with running(await open_store()) as first:
            joined = await asyncio.gather(*(first.join(number) for number in range(20)))
            assert sorted(one["id"] for one in joined) == list(range(20))
            await first.manager.rounds.check()
            before = first.manager.topology
        async with running(await open_store()) as second:
            assert second.manager.topology.links == before.links
            assert second.manager.topology.federators == before.federators
            assert second.manager.topology.epoch > before.epoch
            await second.client.post("/api/v1/leave", json={"id": 3})
            assert state(second, 3) is State.LEFT
            assert holds(second)

    on_store(body)


def test_federators_away_for_long_are_forgotten(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        await here.join(0)
        await here.client.post("/api/v1/leave", json={"id": 0})
        await until(lambda: not here.manager.topology.federators)

    with_manager(tmp_path, body, remember_s=0.0)


def test_a_restarted_manager_resumes_its_topology(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, health_interval_s=0.2) as first:
            for number in range(5):
                await first.join(number)
            await first.manager.rounds.check()
            before = first.manager.topology
        async with running(tmp_path, health_interval_s=3600.0) as second:
            after = second.manager.topology
            assert after.links == before.links
            assert after.epoch > before.epoch
            assert after.federators.keys() == before.federators.keys()
            assert (await second.join(3))["id"] == 3

    asyncio.run(main())
