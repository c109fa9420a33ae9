"""The topology in MongoDB, where the papers keep it: one document per federator, with their six fields.

There are no transactions here, because they need a replica set. Not all servers that speak MongoDB's protocol make a
conditional update in one step, but all refuse a second document with the same `_id`. Everything that only one manager
may have is therefore an insertion: a term of the lease is a document `lease/<term>`, the use of a token a document
`<token>/<number>`.

Every federator's document carries the term of its last writer, and is replaced only if that term is not newer. A new
leader lifts the term of all documents before it reads them. A commit writes its documents and the epoch, and then
checks whether a newer term began. If not, the next leader reads what was written. If so, `Deposed` is raised before
anything was announced. The leftovers are overwritten or, at worst, read later as a federator that never learned its id.
"""

# ruff: noqa: D102 - `store.Store` describes each method

import json
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from bson.binary import Binary
from bson.objectid import ObjectId
from pymongo import AsyncMongoClient, UpdateOne
from pymongo.errors import ConfigurationError, DuplicateKeyError, InvalidURI, PyMongoError

from hanse.errors import LocalError, Unavailable
from hanse.topology.model import Federator, Topology
from hanse.topology.store import (
    AUDIT_ENTRIES_MAX,
    AuditEntry,
    Deposed,
    Lease,
    Revocation,
    Token,
    assemble,
    documents_of,
    health_of,
)

T = TypeVar("T")
Document = dict[str, Any]

DATABASE = "hanse"  # if the URL names none
SERVER_TIMEOUT_MS = 5_000
_NEWEST = [("at_s", -1), ("number", -1), ("_id", -1)]
TERMS_KEPT = 10  # leases of former leaders, for inspection


class MongoStore:
    """A `Store` in one database."""

    def __init__(self, client: "AsyncMongoClient[Document]") -> None:
        self._client = client
        database = client.get_default_database(DATABASE)
        self._federators = database["federators"]
        self._leases = database["leases"]
        self._secrets = database["secrets"]
        self._tokens = database["tokens"]
        self._uses = database["token_uses"]
        self._revocations = database["revocations"]
        self._audit = database["audit"]

    @classmethod
    async def open(cls, url: str) -> "MongoStore":
        """Connect. Raise LocalError for a bad URL, Unavailable for a server that does not answer."""
        # pymongo's own 30 s is longer than a lease. The URL has priority.
        is_told = "serverselectiontimeoutms" in url.lower()
        options: dict[str, Any] = {} if is_told else {"serverSelectionTimeoutMS": SERVER_TIMEOUT_MS}
        try:
            client: AsyncMongoClient[Document] = AsyncMongoClient(url, appname="hanse-manager", **options)
        except (InvalidURI, ConfigurationError, ValueError) as error:
            raise LocalError("mongo_url is not a MongoDB URL; expected mongodb://host:port/database.") from error
        store = cls(client)
        try:
            await _guard(client.admin.command("ping"))
        except Unavailable:
            await store.close()
            raise
        return store

    async def read_lease(self) -> Lease | None:
        return _lease(await self._newest())

    async def _newest(self) -> Document | None:
        found = await _guard(self._leases.find({}).sort("term", -1).limit(1).to_list())
        return found[0] if found else None

    async def take_lease(self, seen: Lease | None, holder: str, url: str) -> Lease | None:
        newest = await self._newest()
        if _lease(newest) != seen:
            return None
        taken = Lease(holder, url, (seen.term if seen else 0) + 1, 0)
        epoch = newest["epoch"] if newest else 0
        try:
            await _guard(self._leases.insert_one({"_id": f"lease/{taken.term}", "epoch": epoch, **asdict(taken)}))
        except DuplicateKeyError:
            return None
        await _guard(self._leases.delete_many({"term": {"$lt": taken.term - TERMS_KEPT}}))
        return taken

    async def renew_lease(self, lease: Lease) -> Lease:
        await self._set_as_leader(lease, {"beat": lease.beat + 1})
        return replace(lease, beat=lease.beat + 1)

    async def release_lease(self, lease: Lease) -> None:
        mine = {"_id": f"lease/{lease.term}"}
        await _guard(self._leases.update_one(mine, {"$set": {"holder": "", "url": ""}}))

    async def _set_as_leader(self, lease: Lease, values: Document) -> None:
        await _guard(self._leases.update_one({"_id": f"lease/{lease.term}"}, {"$set": values}))
        # Only now: a manager that takes a newer term after this check will read what was just written.
        newest = await self._newest()
        if newest is None or newest["term"] != lease.term:
            raise Deposed(f"Term {lease.term} is over: another manager leads.")

    async def load(self, lease: Lease | None) -> Topology:
        if lease is not None:
            older = {"term": {"$lt": lease.term}}
            await _guard(self._federators.update_many(older, {"$set": {"term": lease.term}}))
        documents = await _guard(self._federators.find({}).to_list())
        # The largest epoch, not that of the newest lease: the one before may have committed after this one was taken.
        terms = await _guard(self._leases.find({}).to_list())
        return assemble(max((int(term["epoch"]) for term in terms), default=0), documents)

    async def commit(self, lease: Lease, topology: Topology, changed: Collection[int], gone: Collection[int]) -> None:
        for document in documents_of(topology, changed):
            mine = {"_id": document["id"], "term": {"$lte": lease.term}}
            try:
                await _guard(self._federators.replace_one(mine, {**document, "term": lease.term}, upsert=True))
            except DuplicateKeyError as error:
                # The document has a newer term, so the filter missed it and the insertion collided with it.
                raise Deposed(f"Term {lease.term} is over: another manager leads.") from error
        if gone:
            mine = {"_id": {"$in": sorted(gone)}, "term": {"$lte": lease.term}}
            await _guard(self._federators.delete_many(mine))
        await self._set_as_leader(lease, {"epoch": topology.epoch})

    async def record_health(self, lease: Lease, federators: Sequence[Federator]) -> None:
        writes = []
        for one in federators:
            latency, checked = health_of(one)
            values = {"latency": latency, "latestHealthCheck": checked}
            writes.append(UpdateOne({"_id": one.id, "term": lease.term}, {"$set": values}))
        if writes:
            await _guard(self._federators.bulk_write(writes, ordered=False))

    async def read_secret(self, fresh: bytes) -> bytes:
        try:
            await _guard(self._secrets.insert_one({"_id": "secret", "value": Binary(fresh)}))
        except DuplicateKeyError:
            found = await _guard(self._secrets.find_one({"_id": "secret"}))
            assert found is not None
            return bytes(found["value"])
        return fresh

    async def add_token(self, token: Token) -> None:
        await _guard(self._tokens.insert_one({"_id": token.id, **asdict(token)}))

    async def find_token(self, token: str) -> Token | None:
        found = await _guard(self._tokens.find_one({"_id": token}, {"_id": 0}))
        return await self._with_uses(Token(**found)) if found else None

    async def _with_uses(self, token: Token) -> Token:
        if token.uses_left is None:
            return token
        used = await _guard(self._uses.count_documents({"token": token.id}))
        return replace(token, uses_left=max(0, token.uses_left - used))

    async def list_tokens(self) -> list[Token]:
        found = await _guard(self._tokens.find({}, {"_id": 0}).to_list())
        tokens = [await self._with_uses(Token(**one)) for one in found]
        return sorted(tokens, key=lambda one: (one.created_s, one.id))

    async def revoke_token(self, token: str) -> bool:
        result = await _guard(self._tokens.update_one({"_id": token}, {"$set": {"is_revoked": True}}))
        return bool(result.matched_count)

    async def spend_token(self, token: str, now_s: float) -> bool:
        found = await _guard(self._tokens.find_one({"_id": token}, {"_id": 0}))
        if not found or found["is_revoked"] or (found["expires_s"] is not None and found["expires_s"] <= now_s):
            return False
        uses: int | None = found["uses_left"]
        if uses is None:
            return True
        for number in range(await _guard(self._uses.count_documents({"token": token})), uses):
            try:
                await _guard(self._uses.insert_one({"_id": f"{token}/{number}", "token": token}))
            except DuplicateKeyError:
                continue
            return True
        return False

    async def refund_token(self, token: str) -> None:
        # The last number is removed, so the numbers in use stay 0 to n without a gap.
        used = await _guard(self._uses.count_documents({"token": token}))
        await _guard(self._uses.delete_one({"_id": f"{token}/{used - 1}"}))

    async def close_token(self, token: str, now_s: float) -> bool:
        found = await self.find_token(token)
        if found is None or found.is_revoked or found.uses_left == 0:
            return False
        if found.expires_s is not None and found.expires_s <= now_s:
            return False
        result = await _guard(self._tokens.update_one({"_id": token}, {"$set": {"expires_s": now_s}}))
        return bool(result.matched_count)

    async def add_revocation(self, revocation: Revocation) -> None:
        document = {"_id": revocation.key, **asdict(revocation)}
        await _guard(self._revocations.replace_one({"_id": revocation.key}, document, upsert=True))

    async def find_revocation(self, key: str) -> Revocation | None:
        found = await _guard(self._revocations.find_one({"_id": key}, {"_id": 0}))
        return Revocation(**found) if found else None

    async def list_revocations(self) -> list[Revocation]:
        found = await _guard(self._revocations.find({}, {"_id": 0}).to_list())
        return sorted((Revocation(**one) for one in found), key=lambda one: (one.revoked_s, one.key))

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        # The detail as text: its names may hold characters that a server does not allow in the name of a field.
        documents: list[Document] = [
            {"_id": ObjectId(), "number": n, **asdict(one), "detail": json.dumps(dict(one.detail))}
            for n, one in enumerate(entries)
        ]
        await _guard(self._audit.insert_many(documents))
        if await _guard(self._audit.count_documents({})) <= AUDIT_ENTRIES_MAX:
            return
        oldest = await _guard(
            self._audit.find({}, {"at_s": 1}).sort(_NEWEST).skip(AUDIT_ENTRIES_MAX).limit(1).to_list()
        )
        if oldest:
            await _guard(self._audit.delete_many({"at_s": {"$lte": oldest[0]["at_s"]}}))

    async def list_audit(self, *, offset: int, limit: int) -> tuple[int, list[AuditEntry]]:
        total = await _guard(self._audit.count_documents({}))
        found = await _guard(self._audit.find({}).sort(_NEWEST).skip(offset).limit(limit).to_list())
        return total, [_audit_entry(one) for one in found]

    async def close(self) -> None:
        await self._client.close()


def _audit_entry(found: Document) -> AuditEntry:
    detail = json.loads(found["detail"])
    return AuditEntry(found["at_s"], found["actor"], found["source"], found["action"], found["subject"], detail)


def _lease(found: Document | None) -> Lease | None:
    return None if found is None else Lease(found["holder"], found["url"], int(found["term"]), int(found["beat"]))


async def _guard(operation: Awaitable[T]) -> T:
    """Apply rule 5 of `store`. The one error that means something to the caller passes."""
    try:
        return await operation
    except DuplicateKeyError:
        raise
    except PyMongoError as error:
        raise Unavailable(f"MongoDB does not answer as it should: {type(error).__name__}.") from error
