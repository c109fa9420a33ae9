"""The topology in a SQLite file: the default, for one machine.

All statements run in order on one dedicated thread. Every write is one immediate transaction that checks the term
first, so two managers on one file cannot both write as leaders. The file is in WAL mode with full synchronisation: a
join that was answered survives a power cut.
"""

# ruff: noqa: D102 - `store.Store` describes each method

import asyncio
import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import TypeVar

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

SCHEMA_VERSION = 1
BUSY_TIMEOUT_S = 5.0  # how long to wait for the other manager's transaction; each takes milliseconds
_SCHEMA = """
CREATE TABLE IF NOT EXISTS federators (
  id INTEGER PRIMARY KEY, document TEXT NOT NULL, latency REAL, latest_health_check TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS lease (
  one INTEGER PRIMARY KEY CHECK (one = 1), holder TEXT NOT NULL, url TEXT NOT NULL, term INTEGER NOT NULL,
  beat INTEGER NOT NULL, epoch INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS secret (one INTEGER PRIMARY KEY CHECK (one = 1), value BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS tokens (
  id TEXT PRIMARY KEY, hash TEXT NOT NULL, role TEXT NOT NULL, label TEXT NOT NULL, created_s REAL NOT NULL,
  expires_s REAL, uses_left INTEGER, is_revoked INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS revocations (key TEXT PRIMARY KEY, id INTEGER NOT NULL, revoked_s REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS audit (
  number INTEGER PRIMARY KEY AUTOINCREMENT, at_s REAL NOT NULL, actor TEXT NOT NULL, source TEXT NOT NULL,
  action TEXT NOT NULL, subject TEXT NOT NULL, detail TEXT NOT NULL
) STRICT;
"""
_SPENDABLE = "is_revoked = 0 AND (expires_s IS NULL OR expires_s > ?) AND (uses_left IS NULL OR uses_left > 0)"


class SqliteStore:
    """A `Store` in one file."""

    def __init__(self, path: Path, *, may_create: bool = True) -> None:
        self._path = path
        self._may_create = may_create
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hanse-store")
        self._connection: sqlite3.Connection | None = None

    @classmethod
    async def open(cls, path: Path, *, may_create: bool = True) -> "SqliteStore":
        """Open the file, or create it if that is allowed. Raise LocalError if it cannot be opened."""
        store = cls(path, may_create=may_create)
        try:
            await store._call(store._open)
        except Unavailable as error:
            await store.close()
            raise LocalError(f"{error} Name another file with --store, or repair its folder.") from error
        except LocalError:
            await store.close()
            raise
        return store

    def _open(self) -> None:
        is_new = not self._path.exists()
        if is_new and not self._may_create:
            raise LocalError(
                f"There is no store {self._path}. Run this command where the manager runs, or name the manager's file: "
                "--store FILE, or --config FILE with the manager's settings."
            )
        if is_new and self._path.parent.is_dir():
            # The file holds the secret and the hashes of the tokens: nobody else may read it.
            self._path.touch(mode=0o600)
        self._connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        with self._transaction() as cursor:
            version = cursor.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA_VERSION):
                raise LocalError(
                    f"The store {self._path} has version {version}, this hanse knows {SCHEMA_VERSION}; "
                    "use the hanse that wrote it, or another file."
                )
            for statement in _SCHEMA.split(";"):
                cursor.execute(statement)
            cursor.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
        except sqlite3.Error as error:
            raise Unavailable(f"The store {self._path} does not work: {error}.") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        assert self._connection is not None, "the store is closed"
        cursor = self._connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            yield cursor
        except BaseException:
            cursor.execute("ROLLBACK")
            raise
        cursor.execute("COMMIT")

    @contextmanager
    def _led(self, lease: Lease) -> Iterator[sqlite3.Cursor]:
        """Open a transaction of the leader (rule 1 of `store`)."""
        with self._transaction() as cursor:
            row = cursor.execute("SELECT term, holder FROM lease").fetchone()
            if row != (lease.term, lease.holder):
                raise Deposed(f"Term {lease.term} is over: another manager leads.")
            yield cursor

    async def read_lease(self) -> Lease | None:
        return await self._call(self._read_lease)

    def _read_lease(self) -> Lease | None:
        with self._transaction() as cursor:
            row = cursor.execute("SELECT holder, url, term, beat FROM lease").fetchone()
        return None if row is None else Lease(*row)

    async def take_lease(self, seen: Lease | None, holder: str, url: str) -> Lease | None:
        return await self._call(self._take_lease, seen, holder, url)

    def _take_lease(self, seen: Lease | None, holder: str, url: str) -> Lease | None:
        with self._transaction() as cursor:
            row = cursor.execute("SELECT holder, url, term, beat FROM lease").fetchone()
            if (None if row is None else Lease(*row)) != seen:
                return None
            taken = Lease(holder, url, (seen.term if seen else 0) + 1, 0)
            cursor.execute(
                "INSERT INTO lease VALUES (1, ?, ?, ?, ?, 0) ON CONFLICT (one) DO UPDATE SET "
                "holder = excluded.holder, url = excluded.url, term = excluded.term, beat = excluded.beat",
                astuple(taken),
            )
            return taken

    async def renew_lease(self, lease: Lease) -> Lease:
        return await self._call(self._renew_lease, lease)

    def _renew_lease(self, lease: Lease) -> Lease:
        with self._led(lease) as cursor:
            cursor.execute("UPDATE lease SET beat = beat + 1")
        return Lease(lease.holder, lease.url, lease.term, lease.beat + 1)

    async def release_lease(self, lease: Lease) -> None:
        await self._call(self._release_lease, lease)

    def _release_lease(self, lease: Lease) -> None:
        with self._transaction() as cursor:
            cursor.execute(
                "UPDATE lease SET holder = '', url = '' WHERE term = ? AND holder = ?", (lease.term, lease.holder)
            )

    async def load(self, lease: Lease | None) -> Topology:
        del lease  # the term is checked inside every transaction; there is nothing to block
        return await self._call(self._load)

    def _load(self) -> Topology:
        with self._transaction() as cursor:
            row = cursor.execute("SELECT epoch FROM lease").fetchone()
            rows = cursor.execute("SELECT document, latency, latest_health_check FROM federators").fetchall()
        documents = [{**json.loads(text), "latency": latency, "latestHealthCheck": t} for text, latency, t in rows]
        return assemble(0 if row is None else row[0], documents)

    async def commit(self, lease: Lease, topology: Topology, changed: Collection[int], gone: Collection[int]) -> None:
        await self._call(self._commit, lease, topology, changed, gone)

    def _commit(self, lease: Lease, topology: Topology, changed: Collection[int], gone: Collection[int]) -> None:
        rows = [(d["id"], json.dumps(d), d["latency"], d["latestHealthCheck"]) for d in documents_of(topology, changed)]
        with self._led(lease) as cursor:
            cursor.executemany("INSERT OR REPLACE INTO federators VALUES (?, ?, ?, ?)", rows)
            cursor.executemany("DELETE FROM federators WHERE id = ?", [(node,) for node in gone])
            cursor.execute("UPDATE lease SET epoch = ?", (topology.epoch,))

    async def record_health(self, lease: Lease, federators: Sequence[Federator]) -> None:
        await self._call(self._record_health, lease, federators)

    def _record_health(self, lease: Lease, federators: Sequence[Federator]) -> None:
        with self._led(lease) as cursor:
            cursor.executemany(
                "UPDATE federators SET latency = ?, latest_health_check = ? WHERE id = ?",
                [(*health_of(one), one.id) for one in federators],
            )

    async def read_secret(self, fresh: bytes) -> bytes:
        return await self._call(self._read_secret, fresh)

    def _read_secret(self, fresh: bytes) -> bytes:
        with self._transaction() as cursor:
            cursor.execute("INSERT OR IGNORE INTO secret VALUES (1, ?)", (fresh,))
            return bytes(cursor.execute("SELECT value FROM secret").fetchone()[0])

    async def add_token(self, token: Token) -> None:
        await self._call(self._execute, "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?)", astuple(token))

    def _execute(self, statement: str, values: tuple[object, ...]) -> int:
        with self._transaction() as cursor:
            return cursor.execute(statement, values).rowcount

    async def find_token(self, token: str) -> Token | None:
        found = await self._call(self._select_tokens, "WHERE id = ?", (token,))
        return found[0] if found else None

    async def list_tokens(self) -> list[Token]:
        return await self._call(self._select_tokens, "ORDER BY created_s, id", ())

    def _select_tokens(self, rest: str, values: tuple[object, ...]) -> list[Token]:
        with self._transaction() as cursor:
            rows = cursor.execute(f"SELECT * FROM tokens {rest}", values).fetchall()  # noqa: S608 - our own text
        return [replace(Token(*row), is_revoked=bool(row[-1])) for row in rows]

    async def revoke_token(self, token: str) -> bool:
        return await self._call(self._execute, "UPDATE tokens SET is_revoked = 1 WHERE id = ?", (token,)) == 1

    async def spend_token(self, token: str, now_s: float) -> bool:
        statement = f"UPDATE tokens SET uses_left = uses_left - 1 WHERE id = ? AND {_SPENDABLE}"  # noqa: S608
        return await self._call(self._execute, statement, (token, now_s)) == 1

    async def refund_token(self, token: str) -> None:
        await self._call(self._execute, "UPDATE tokens SET uses_left = uses_left + 1 WHERE id = ?", (token,))

    async def close_token(self, token: str, now_s: float) -> bool:
        statement = f"UPDATE tokens SET expires_s = ? WHERE id = ? AND {_SPENDABLE}"  # noqa: S608
        return await self._call(self._execute, statement, (now_s, token, now_s)) == 1

    async def add_revocation(self, revocation: Revocation) -> None:
        await self._call(self._execute, "INSERT OR REPLACE INTO revocations VALUES (?, ?, ?)", astuple(revocation))

    async def find_revocation(self, key: str) -> Revocation | None:
        found = await self._call(self._select_revocations, "WHERE key = ?", (key,))
        return found[0] if found else None

    async def list_revocations(self) -> list[Revocation]:
        return await self._call(self._select_revocations, "ORDER BY revoked_s, key", ())

    def _select_revocations(self, rest: str, values: tuple[object, ...]) -> list[Revocation]:
        with self._transaction() as cursor:
            rows = cursor.execute(f"SELECT * FROM revocations {rest}", values).fetchall()  # noqa: S608 - our own text
        return [Revocation(*row) for row in rows]

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        await self._call(self._add_audit, entries)

    def _add_audit(self, entries: Sequence[AuditEntry]) -> None:
        rows = [(e.at_s, e.actor, e.source, e.action, e.subject, json.dumps(dict(e.detail))) for e in entries]
        with self._transaction() as cursor:
            names = "at_s, actor, source, action, subject, detail"
            cursor.executemany(f"INSERT INTO audit ({names}) VALUES (?, ?, ?, ?, ?, ?)", rows)  # noqa: S608
            cursor.execute(
                "DELETE FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?", (AUDIT_ENTRIES_MAX,)
            )

    async def list_audit(self, *, offset: int, limit: int) -> tuple[int, list[AuditEntry]]:
        return await self._call(self._list_audit, offset, limit)

    def _list_audit(self, offset: int, limit: int) -> tuple[int, list[AuditEntry]]:
        with self._transaction() as cursor:
            total = cursor.execute("SELECT count(*) FROM audit").fetchone()[0]
            rows = cursor.execute(
                "SELECT at_s, actor, source, action, subject, detail FROM audit ORDER BY number DESC LIMIT ? OFFSET ?",
                (limit, offset),
            ).fetchall()
        return total, [AuditEntry(one[0], one[1], one[2], one[3], one[4], json.loads(one[5])) for one in rows]

    async def close(self) -> None:
        def close() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        await self._call(close)
        self._thread.shutdown(wait=True)
