"""Records of lasting sessions, which gateways must find again: the broker of the session, and its filters.

MQTT cannot list the subscriptions of a session. A gateway to which a client comes back, perhaps another one than
before, asks here. Two requests of gateways (`hanse.federator.gateways`):

- `session_put`: `rows` of `[client, version, broker, expiry in s or null, whether it is connected, filters]`. A filter
  is `[text, QoS, options, identifier]`, the client its id in hexadecimal. The answer comes when the rows are on disk.
- `session_get`: `clients`; the answer has `rows` of the known ones.

Rules:

1. A row replaces one with a smaller version. An expiry of 0 removes it.
2. A row of a client that is gone ends with its session; one of a connected client when nobody has renewed it for
   `CONNECTED_S`, because its gateway may have died.
3. Rows are bounded in number and size. Beyond that they are refused and counted; the client is then not moved.
4. A damaged file is put aside with a warning, and the store starts empty.
"""

import asyncio
import json
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hanse.errors import RemoteError, Unavailable
from hanse.federator.damaged import put_aside
from hanse.federator.gateways import GatewayPeer, Gateways
from hanse.request_channel import Answer, Request

ROWS_PER_REQUEST: Final = 1_000
ROWS_MAX: Final = 200_000
# 10,000 filters of 100 bytes.
ROW_BYTES_MAX: Final = 1 << 20
CONNECTED_S: Final = 30 * 86_400.0
# A session without end is forgotten when its client has not been seen for a year.
NEVER_S: Final = 365 * 86_400.0
SWEEP_S: Final = 600.0

Row = list[Any]
_log = logging.getLogger(__name__)


class GatewaySessions:
    """The store of one federator.

    Args:
        path: the file; the first row creates it.
        counters: receives `gateway_sessions_refused`, `gateway_sessions_failed`.
        wall: the time of day in seconds, because rows outlive processes.
    """

    def __init__(
        self, path: Path, gateways: Gateways, counters: Counter[str], wall: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._counters = counters
        self._wall = wall
        self._connection: sqlite3.Connection | None = None
        self._lock = asyncio.Lock()
        self._swept_at = float("-inf")
        gateways.offer("session_put", self._put)
        gateways.offer("session_get", self._get)

    async def _put(self, _peer: GatewayPeer, request: Request) -> Answer:
        rows = [_checked(row) for row in _list(request.fields.get("rows"))]
        refused = await self._run(lambda: self._write(rows))
        return Answer({"refused": refused})

    async def _get(self, _peer: GatewayPeer, request: Request) -> Answer:
        clients = [one for one in _list(request.fields.get("clients")) if isinstance(one, str)]
        if not self._path.exists():
            return Answer({"rows": []})
        return Answer({"rows": await self._run(lambda: self._read(clients))})

    async def _run(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the work returns
        async with self._lock:
            try:
                return await asyncio.to_thread(work)
            except sqlite3.Error as error:
                self._counters["gateway_sessions_failed"] += 1
                self.close()
                raise Unavailable(f"The store of sessions {self._path} failed: {error}; look at the disk.") from error

    # --- on disk, in a thread -----------------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                self._connection = self._prepared()
            except sqlite3.DatabaseError as error:
                put_aside(self._path, str(error))
                self._connection = self._prepared()
        return self._connection

    def _prepared(self) -> sqlite3.Connection:
        made = sqlite3.connect(self._path, check_same_thread=False)
        try:
            made.execute("PRAGMA journal_mode = WAL")
            made.execute("PRAGMA synchronous = FULL")
            made.execute(
                "CREATE TABLE IF NOT EXISTS sessions "
                "(client TEXT PRIMARY KEY, version INTEGER NOT NULL, ends_at REAL NOT NULL, row TEXT NOT NULL)"
            )
        except sqlite3.Error:
            made.close()
            raise
        return made

    def _write(self, rows: list[Row]) -> int:
        now = self._wall()
        refused = 0
        connection = self._open()
        with connection:
            if now - self._swept_at > SWEEP_S:
                self._swept_at = now
                connection.execute("DELETE FROM sessions WHERE ends_at < ?", (now,))
            (count,) = connection.execute("SELECT count(*) FROM sessions").fetchone()
            for row in rows:
                client, version, _, expiry_s, is_connected, _ = row
                text = json.dumps(row, separators=(",", ":"))
                known = connection.execute("SELECT version FROM sessions WHERE client = ?", (client,)).fetchone()
                if known is not None and known[0] >= version:
                    continue
                if expiry_s == 0:
                    connection.execute("DELETE FROM sessions WHERE client = ?", (client,))
                    continue
                if len(text) > ROW_BYTES_MAX or (known is None and count >= ROWS_MAX):
                    refused += 1
                    continue
                count += known is None
                lasts_s = NEVER_S if expiry_s is None else float(expiry_s)
                ends_at = now + (max(lasts_s, CONNECTED_S) if is_connected else lasts_s)
                new = (client, version, ends_at, text)
                connection.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?)", new)
        self._counters["gateway_sessions_refused"] += refused
        return refused

    def _read(self, clients: list[str]) -> list[Row]:
        now = self._wall()
        found = []
        for client in clients:
            known = self._open().execute("SELECT row, ends_at FROM sessions WHERE client = ?", (client,)).fetchone()
            if known is not None and known[1] >= now:
                found.append(json.loads(known[0]))
        return found

    def close(self) -> None:
        """Close the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _list(value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > ROWS_PER_REQUEST:
        raise RemoteError(f"A gateway's request about sessions has no list of at most {ROWS_PER_REQUEST}.")
    return value


def _checked(row: object) -> Row:
    match row:
        case [str(), int(), str(), int() | None as expiry_s, bool(), list()] if expiry_s is None or expiry_s >= 0:
            return list(row)
    raise RemoteError("A row of a session is malformed; is the gateway of another version?")
