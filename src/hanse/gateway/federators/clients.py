"""The connected clients of one worker, reported so that a client id is open at one broker only.

Rules:

1. Each accepted client is reported to the federators of its first two brokers, with the time of its connection and the
   broker where it is. So is each move, and its end. `hanse.federator.gateway_clients` decides which connection ends.
2. Two connections of one id within this worker are compared here, also without federators. If both are at the same
   broker, the broker ends the older one.
3. Each new connection to a federator begins with all clients that belong there. Nothing is kept for one that is away.
4. Only the digest of a client id is sent: it has a fixed size.
"""

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from hanse.errors import HanseError, RemoteError
from hanse.request_channel import Answer, Handler, Request

ROWS_PER_REQUEST: Final = 1_000
# Changes within this time are reported together.
GATHER_S: Final = 0.02
ANSWER_S: Final = 5.0
RETRY_S: Final = 2.0
# Clients that have left and wait to be reported to one federator. Beyond that it gets all clients anew.
GONE_MAX: Final = 20_000

_log = logging.getLogger(__name__)


class Connection(Protocol):
    """A connection to a federator, as this module needs it."""

    @property
    def is_open(self) -> bool:
        """Return whether the federator is reachable."""

    async def ask(self, kind: str, fields: dict[str, Any] | None = None, *, timeout_s: float) -> Answer:
        """Ask the federator."""


class FederatorsOfBrokers(Protocol):
    """The federators, as this module needs them."""

    handlers: dict[str, Handler]
    on_open: Callable[[str], None] | None

    def connection(self, broker_id: str) -> Connection | None:
        """Return the connection to a broker's federator."""


class _Entry:
    """A connected client. `stores` are the brokers whose federators hear of it."""

    __slots__ = ("at_ms", "broker_id", "key", "stores")

    def __init__(self, key: object, at_ms: int, broker_id: str, stores: tuple[str, ...]) -> None:
        self.key = key
        self.at_ms = at_ms
        self.broker_id = broker_id
        self.stores = stores


class ConnectedClients:
    """The clients of one worker.

    Args:
        federators: the federators that keep the register.
        counters: receives `clients_reported`, `clients_refused`, `clients_failed`, `clients_overflows`,
            `clients_taken_over`.
        end: ends a client whose id has connected elsewhere.
        wall: the time of day in seconds.
    """

    def __init__(
        self,
        federators: FederatorsOfBrokers,
        counters: Counter[str],
        end: Callable[[Any], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._federators = federators
        self._counters = counters
        self._end = end
        self._wall = wall
        self._last_ms = 0
        self._entries: dict[str, _Entry] = {}
        # Clients to report, with the time of their connection, by broker; and brokers whose federator needs all.
        self._waiting: dict[str, dict[str, int]] = {}
        self._first: set[str] = set()
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._is_refused: set[str] = set()
        self._is_stopped = False
        federators.handlers["client_ended"] = self._on_ended
        federators.on_open = self._opened

    # --- clients ------------------------------------------------------------------------------------------------------

    def accepted(self, key: object, client_id: bytes, broker_id: str, stores: Iterable[str]) -> None:
        """Take a client that a broker has accepted."""
        client = digest(client_id)
        self._last_ms = max(self._last_ms + 1, int(self._wall() * 1000))
        older = self._entries.get(client)
        entry = self._entries[client] = _Entry(key, self._last_ms, broker_id, tuple(stores))
        self._note(client, entry)
        if older is not None and older.key is not key and older.broker_id != broker_id:
            self._take_over(older.key)

    def moved(self, key: object, client_id: bytes, broker_id: str, stores: Iterable[str]) -> bool:
        """Take note of the broker where a client is now; return whether it stays."""
        client = digest(client_id)
        entry = self._entries.get(client)
        if entry is None:
            return True
        if entry.key is not key:
            # A later connection of this id was at the broker that this one has left, which could not tell.
            if entry.broker_id == broker_id:
                return True
            self._take_over(key)
            return False
        entry.broker_id, entry.stores = broker_id, tuple(stores)
        self._note(client, entry)
        return True

    def gone(self, key: object, client_id: bytes) -> None:
        """Forget a client whose connection has ended."""
        client = digest(client_id)
        entry = self._entries.get(client)
        if entry is not None and entry.key is key:
            del self._entries[client]
            self._note(client, entry)

    def _take_over(self, key: object) -> None:
        self._counters["clients_taken_over"] += 1
        self._end(key)

    async def _on_ended(self, request: Request) -> Answer:
        self._ended(request.fields.get("rows"))
        return Answer()

    def _ended(self, rows: object) -> None:
        if not isinstance(rows, list):
            raise RemoteError("A federator's list of clients that connected elsewhere is none.")
        for row in rows:
            match row:
                case [str() as client, int() as at_ms]:
                    entry = self._entries.get(client)
                    # It may have gone, or come back here, since the federator was told.
                    if entry is not None and entry.at_ms == at_ms:
                        del self._entries[client]
                        self._take_over(entry.key)
                case _:
                    raise RemoteError("A federator's row of a client that connected elsewhere is malformed.")

    # --- reports ------------------------------------------------------------------------------------------------------

    def _note(self, client: str, entry: _Entry) -> None:
        for store in entry.stores:
            connection = self._federators.connection(store)
            if connection is None or not connection.is_open:
                continue
            waiting = self._waiting.setdefault(store, {})
            waiting[client] = entry.at_ms
            if len(waiting) > len(self._entries) + GONE_MAX:
                self._counters["clients_overflows"] += 1
                self._opened(store)
            else:
                self._wake(store)

    def _opened(self, store: str) -> None:
        """Report all clients of a federator."""
        self._waiting[store] = {client: entry.at_ms for client, entry in self._entries.items() if store in entry.stores}
        self._first.add(store)
        self._wake(store)

    def _wake(self, store: str) -> None:
        if store not in self._writing and not self._is_stopped:
            self._writing[store] = asyncio.get_running_loop().create_task(self._write(store))

    async def stop(self) -> None:
        """Stop reporting. Federators notice the end of the connection."""
        self._is_stopped = True
        tasks = list(self._writing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, store: str) -> None:
        try:
            await asyncio.sleep(GATHER_S)
            while self._waiting.get(store) or store in self._first:
                connection = self._federators.connection(store)
                if connection is None or not connection.is_open:
                    # It gets all of them when it is back.
                    self._waiting.pop(store, None)
                    self._first.discard(store)
                    return
                if not await self._send(store, connection):
                    await asyncio.sleep(RETRY_S)
        finally:
            self._writing.pop(store, None)

    async def _send(self, store: str, connection: Connection) -> bool:
        """Send some rows; return whether the federator took them."""
        waiting = self._waiting.setdefault(store, {})
        some = dict(list(waiting.items())[:ROWS_PER_REQUEST])
        for client in some:
            del waiting[client]
        rows = [self._row(client, at_ms) for client, at_ms in some.items()]
        fields = {"now_ms": int(self._wall() * 1000), "first": store in self._first, "rows": rows}
        self._first.discard(store)
        try:
            answer = await connection.ask("client_put", fields, timeout_s=ANSWER_S)
            self._ended(answer.fields.get("ended"))
        except HanseError as error:
            self._counters["clients_failed"] += len(rows)
            if isinstance(error, RemoteError) and store not in self._is_refused:
                self._is_refused.add(store)
                _log.warning(
                    "clients that connect twice are not noticed", extra={"broker": store, "reason": str(error)}
                )
            # It is not known what the federator took.
            self._opened(store)
            return False
        self._is_refused.discard(store)
        self._counters["clients_reported"] += len(rows)
        refused = answer.fields.get("refused")
        self._counters["clients_refused"] += refused if isinstance(refused, int) else 0
        return True

    def _row(self, client: str, at_ms: int) -> list[Any]:
        entry = self._entries.get(client)
        return [client, at_ms, ""] if entry is None else [client, entry.at_ms, entry.broker_id]


def digest(client_id: bytes) -> str:
    """Return the name of a client in the register."""
    return hashlib.blake2b(client_id, digest_size=16).hexdigest()
