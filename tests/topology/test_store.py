import asyncio
import gc
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.topology import ferretdb

from hanse.errors import LocalError, Unavailable
from hanse.topology import store_mongo, store_sqlite
from hanse.topology.changes import Peer, Rules, join, lose, measured
from hanse.topology.model import Probe, State, Topology
from hanse.topology.store import AuditEntry, Deposed, Lease, Revocation, Store, Token, assemble, documents_of
from hanse.topology.store_mongo import MongoStore
from hanse.topology.store_sqlite import SqliteStore
from hanse.topology.tokens import make_token

NOW = datetime(2023, 1, 1, 12, 30, 0, 250_000, tzinfo=UTC)

Open = Callable[[], Awaitable[Store]]
OnStore = Callable[[Callable[[Open], Awaitable[None]]], None]


def federation(count: int) -> Topology:
    topology = Topology(epoch=1_700_000_000)
    for number in range(count):
        peer = Peer(
            f"tcp://b{number}:1883", f"mqtt://b{number}:1883", None, f"mqtt://l{number}:1884", Probe.FEDERATOR, "ab"
        )
        topology = join(topology, peer, Rules(), NOW)[0].topology
    return topology


def entry(at_s: float, action: str, detail: dict[str, object]) -> AuditEntry:
    return AuditEntry(at_s, "federator 3", "192.0.2.1", action, "federator 3", detail)


async def lead(store: Store, holder: str = "one") -> Lease:
    lease = await store.take_lease(await store.read_lease(), holder, f"http://{holder}")
    assert lease is not None
    return lease


def test_an_empty_store_has_nothing(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        store = await open_store()
        assert await store.read_lease() is None
        assert await store.load(None) == Topology()
        assert await store.list_tokens() == []
        assert await store.find_token("00000000") is None

    on_store(body)


def test_a_commit_is_read_back_completely(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        store = await open_store()
        lease = await lead(store)
        truth = federation(12)
        truth = lose(truth, [3], State.GONE, Rules(), NOW).topology
        truth = measured(truth, {0: 0.125}, [0], NOW)
        await store.commit(lease, truth, truth.federators.keys(), [])
        assert await (await open_store()).load(None) == truth
        assert await store.load(lease) == truth

    on_store(body)


def test_a_commit_replaces_and_deletes_only_what_it_names(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        store = await open_store()
        lease = await lead(store)
        truth = federation(4)
        await store.commit(lease, truth, truth.federators.keys(), [])
        left = lose(truth, [3], State.LEFT, Rules(), NOW)
        without = replace(left.topology, federators={n: o for n, o in left.topology.federators.items() if n != 3})
        await store.commit(lease, without, [n for n in left.changed if n != 3], [3])
        assert await store.load(None) == without

    on_store(body)


def test_a_health_round_writes_latency_and_time_and_no_epoch(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        store = await open_store()
        lease = await lead(store)
        truth = federation(3)
        await store.commit(lease, truth, truth.federators.keys(), [])
        after = measured(truth, {0: 1.5, 1: 2.5}, [0, 1], NOW)
        await store.record_health(lease, list(after.federators.values()))
        assert await store.load(None) == after

    on_store(body)


def test_only_one_of_two_managers_that_take_the_lease_at_once_gets_it(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        stores = [await open_store() for _ in range(4)]
        taken = await asyncio.gather(*(store.take_lease(None, f"m{i}", "") for i, store in enumerate(stores)))
        assert sum(lease is not None for lease in taken) == 1
        seen = await stores[0].read_lease()
        again = await asyncio.gather(*(store.take_lease(seen, f"m{i}", "") for i, store in enumerate(stores)))
        winners = [lease for lease in again if lease is not None]
        assert len(winners) == 1
        assert winners[0].term == 2

    on_store(body)


def test_a_beat_in_between_keeps_the_lease_with_its_holder(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        store, other = await open_store(), await open_store()
        lease = await lead(store)
        seen = await other.read_lease()
        renewed = await store.renew_lease(lease)
        assert renewed.beat == lease.beat + 1
        assert await other.take_lease(seen, "two", "") is None
        assert await other.read_lease() == renewed

    on_store(body)


def test_an_older_leader_can_neither_renew_nor_write(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        store, other = await open_store(), await open_store()
        old = await lead(store)
        truth = federation(3)
        await store.commit(old, truth, truth.federators.keys(), [])
        new = await lead(other, "two")
        await other.load(new)
        with pytest.raises(Deposed):
            await store.renew_lease(old)
        usurped = lose(truth, [0, 1], State.LEFT, Rules(), NOW)
        with pytest.raises(Deposed):
            await store.commit(old, usurped.topology, usurped.changed, [])
        assert await other.load(new) == truth
        await store.release_lease(old)
        found = await other.read_lease()
        assert found is not None
        assert found.holder == "two"

    on_store(body)


def test_late_insertions_of_an_older_leader_do_not_stop_the_newer_one(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        store, other = await open_store(), await open_store()
        old = await lead(store)
        truth = federation(3)
        await store.commit(old, truth, truth.federators.keys(), [])
        new = await lead(other, "two")
        await other.load(new)
        late = join(truth, Peer("tcp://late:1883", "mqtt://late:1883"), Rules(), NOW)[0]
        with pytest.raises(Deposed):
            await store.commit(old, late.topology, [3], [])
        right = join(truth, Peer("tcp://right:1883", "mqtt://right:1883"), Rules(), NOW)[0]
        await other.commit(new, right.topology, right.changed, [])
        assert (await other.load(new)).federators[3].ip == "tcp://right:1883"

    on_store(body)


def test_a_released_lease_can_be_taken_at_once(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        store, other = await open_store(), await open_store()
        lease = await lead(store)
        await store.release_lease(lease)
        found = await other.read_lease()
        assert found is not None
        assert found.holder == ""
        assert (await lead(other, "two")).term == lease.term + 1

    on_store(body)


def test_all_managers_of_a_store_have_one_secret(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        stores = [await open_store() for _ in range(3)]
        secrets = await asyncio.gather(*(store.read_secret(bytes([i]) * 32) for i, store in enumerate(stores)))
        assert len(set(secrets)) == 1
        assert await stores[0].read_secret(b"x" * 32) == secrets[0]

    on_store(body)


def token(uses: int | None, ttl_s: float | None = None) -> Token:
    return make_token("join", label="plant", now_s=1000.0, ttl_s=ttl_s, uses=uses)[0]


def test_only_one_of_many_that_spend_a_single_use_at_once_gets_it(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        stores = [await open_store() for _ in range(3)]
        single = token(1)
        await stores[0].add_token(single)
        spent = await asyncio.gather(*(stores[i % 3].spend_token(single.id, 1001.0) for i in range(30)))
        assert sum(spent) == 1
        await stores[1].refund_token(single.id)
        assert await stores[2].spend_token(single.id, 1001.0)

    on_store(body)


def test_tokens_are_stored_found_listed_spent_and_revoked(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        store = await open_store()
        many, single, short = token(None), token(1), token(5, ttl_s=10.0)
        for one in (many, single, short):
            await store.add_token(one)
        assert await store.find_token(many.id) == many
        assert sorted(one.id for one in await store.list_tokens()) == sorted([many.id, single.id, short.id])
        assert [await store.spend_token(many.id, 1001.0) for _ in range(3)] == [True] * 3
        assert [await store.spend_token(single.id, 1001.0) for _ in range(2)] == [True, False]
        assert [await store.spend_token(short.id, now_s) for now_s in (1009.0, 1011.0)] == [True, False]
        assert await store.revoke_token(many.id)
        assert not await store.spend_token(many.id, 1001.0)
        assert not await store.revoke_token("ffffffff")
        assert not await store.spend_token("ffffffff", 1001.0)

    on_store(body)


def test_a_closed_token_admits_nobody_and_is_not_revoked(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        store = await open_store()
        many, single, revoked, over = token(None), token(3), token(None), token(None, ttl_s=1.0)
        for one in (many, single, revoked, over):
            await store.add_token(one)
        await store.revoke_token(revoked.id)
        assert await store.spend_token(single.id, 1001.0)
        closed = [await store.close_token(one.id, 1002.0) for one in (many, single, revoked, over)]
        assert closed == [True, True, False, False]
        assert not await store.close_token("ffffffff", 1002.0)
        assert not await store.close_token(many.id, 1003.0)
        # Refunding a use, because a join was not stored, does not open the token again.
        await store.refund_token(single.id)
        assert [await store.spend_token(one.id, 1002.0) for one in (many, single)] == [False, False]
        found = await store.find_token(many.id)
        assert found is not None
        assert not found.is_revoked

    on_store(body)


def test_expulsions_are_stored_found_and_listed(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        store = await open_store()
        first, second = Revocation("mqtt://a:1883", 7, 1000.5), Revocation("mqtt://b:1883", 2, 999.0)
        assert await store.list_revocations() == []
        for one in (first, second):
            await store.add_revocation(one)
        assert await store.find_revocation("mqtt://c:1883") is None
        again = replace(first, revoked_s=1001.0)
        await store.add_revocation(again)
        other = await open_store()
        assert await other.find_revocation(first.key) == again
        assert await other.list_revocations() == [second, again]

    on_store(body)


def test_the_audit_log_is_read_newest_first_and_keeps_its_order(on_store: OnStore) -> None:
    async def body(open_store: Open) -> None:
        store = await open_store()
        assert await store.list_audit(offset=0, limit=10) == (0, [])
        first = [entry(1000.0, "joined", {"ip": "tcp://a:1", "linked": "0-1"}), entry(1000.0, "joined", {"$odd.": 1})]
        await store.add_audit(first)
        await store.add_audit([entry(1001.0, "gone", {"cause": "silent"})])
        total, found = await (await open_store()).list_audit(offset=0, limit=10)
        assert total == 3
        assert found == [entry(1001.0, "gone", {"cause": "silent"}), *reversed(first)]
        assert (await store.list_audit(offset=1, limit=1))[1] == [first[1]]

    on_store(body)


def test_the_audit_log_forgets_its_oldest_entries(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_sqlite, "AUDIT_ENTRIES_MAX", 5)
    monkeypatch.setattr(store_mongo, "AUDIT_ENTRIES_MAX", 5)

    async def body(open_store: Open) -> None:
        store = await open_store()
        for number in range(12):
            await store.add_audit([entry(1000.0 + number, "joined", {})])
        total, found = await store.list_audit(offset=0, limit=100)
        assert total == 5
        assert [one.at_s for one in found] == [1011.0, 1010.0, 1009.0, 1008.0, 1007.0]

    on_store(body)


def test_an_expulsion_covers_every_token_that_is_not_younger() -> None:
    old, young = token(None), replace(token(None), created_s=2000.0)
    expulsion = Revocation("mqtt://a:1883", 7, 1500.0)
    assert expulsion.covers(None)
    assert expulsion.covers(old)
    assert not expulsion.covers(young)


def test_a_command_that_only_reads_creates_no_store(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"There is no store .* --store FILE"):
        asyncio.run(SqliteStore.open(tmp_path / "topology.db", may_create=False))
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_only_one_document_names_does_not_count() -> None:
    truth = federation(3)
    documents = documents_of(truth, truth.federators)
    torn = [{**one, "neighbors": [], "kinds": []} if one["id"] == 0 else one for one in documents]
    assert assemble(1, torn).links.keys() == {(1, 2)}


def test_a_store_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="Name another file with --store"):
        asyncio.run(SqliteStore.open(tmp_path / "missing" / "topology.db"))


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "topology.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(LocalError, match="version 99"):
        asyncio.run(SqliteStore.open(path))


def test_a_file_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "topology.db"
    path.write_bytes(b"no database" * 200)
    with pytest.raises(LocalError, match="does not work"):
        asyncio.run(SqliteStore.open(path))


def test_the_store_file_is_for_its_owner_only(tmp_path: Path) -> None:
    async def body() -> None:
        await (await SqliteStore.open(tmp_path / "topology.db")).close()

    asyncio.run(body())
    assert (tmp_path / "topology.db").stat().st_mode & 0o077 == 0


def test_a_url_that_is_not_a_mongodb_url_is_refused() -> None:
    with pytest.raises(LocalError, match="expected mongodb://"):
        asyncio.run(MongoStore.open("http://localhost"))


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_mongodb_that_does_not_answer_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        asyncio.run(MongoStore.open("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200"))
    # pymongo leaves the socket of its last attempt to the garbage collector: collect here, not in the middle of another
    # test.
    gc.collect()


@pytest.mark.slow
@pytest.mark.processes
def test_ferretdb_can_be_built_if_it_is_missing() -> None:
    if ferretdb.find() is None:
        if shutil.which("go") is None:
            pytest.skip("no `go` on the path to build FerretDB with")
        ferretdb.build()
    assert ferretdb.find() is not None
