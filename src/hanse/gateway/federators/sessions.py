"""The records of clients whose sessions last, kept at the federators of the client's first two brokers.

Rules:

1. A record holds the place of the session and its subscriptions. It is written a moment after every change, and the
   newest one waits for a federator that is away.
2. Any gateway finds it: the first two brokers of a client are the same for all. Of two records the newer one counts.
3. The client never waits for a write, and for a read `FIND_S` at most.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from hanse.errors import HanseError
from hanse.gateway.federators.federators import Federators
from hanse.gateway.session import Subscription

FIND_S: Final = 1.0
WRITE_S: Final = 5.0
# Changes within this time are written together.
GATHER_S: Final = 0.05
RETRY_S: Final = 1.0
ROWS_PER_REQUEST: Final = 500
# Records that wait for one federator. Beyond it the oldest are dropped and counted.
WAITING_MAX: Final = 20_000

_log = logging.getLogger(__name__)


class SessionRecord(NamedTuple):
    """Knowledge about one session. `expiry_s` is None for a session without end."""

    broker_id: str
    subscriptions: tuple[Subscription, ...]
    expiry_s: int | None
    is_connected: bool
    version: int = 0


class SessionRecords:
    """The records of one worker's clients.

    Args:
        federators: the federators that keep the records.
        counters: receives `session_records`, `session_records_dropped`, `session_records_failed`.
        wall: the time of day, which orders versions of different gateways.
    """

    def __init__(self, federators: Federators, counters: Counter[str], wall: Callable[[], float] = time.time) -> None:
        self._federators = federators
        self._counters = counters
        self._wall = wall
        self._version = 0
        self._waiting: dict[str, dict[bytes, SessionRecord]] = {}
        self._writing: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, client_id: bytes, stores: Iterable[str], record: SessionRecord) -> None:
        """Write a record at the federators of these brokers."""
        self._version = max(self._version + 1, int(self._wall() * 1000))
        record = record._replace(version=self._version)
        for store in stores:
            waiting = self._waiting.setdefault(store, {})
            waiting.pop(client_id, None)
            waiting[client_id] = record
            if len(waiting) > WAITING_MAX:
                del waiting[next(iter(waiting))]
                self._counters["session_records_dropped"] += 1
            if store not in self._writing:
                self._writing.add(store)
                task = asyncio.get_running_loop().create_task(self._write(store))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Stop writing, except for waiting records that can be written at once."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GATHER_S * 4)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, store: str) -> None:
        pause_s = GATHER_S
        try:
            while self._waiting.get(store):
                await asyncio.sleep(pause_s)
                pause_s = GATHER_S
                connection = self._federators.connection(store)
                waiting = self._waiting[store]
                some = dict(list(waiting.items())[:ROWS_PER_REQUEST])
                if connection is None or not connection.is_open:
                    pause_s = RETRY_S
                    continue
                rows = [_row(client_id, record) for client_id, record in some.items()]
                try:
                    await connection.ask("session_put", {"rows": rows}, timeout_s=WRITE_S)
                except HanseError as error:
                    self._counters["session_records_failed"] += len(rows)
                    _log.warning("records of sessions at the federator of broker %s: %s", store, error)
                    pause_s = RETRY_S
                    continue
                self._counters["session_records"] += len(rows)
                for client_id, record in some.items():
                    if waiting.get(client_id) is record:
                        del waiting[client_id]
        finally:
            self._writing.discard(store)

    async def find(self, client_id: bytes, stores: Iterable[str]) -> SessionRecord | None:
        """Return the newest record of a client; None if no federator that can be asked has one."""
        own = [found for store in stores if (found := self._waiting.get(store, {}).get(client_id)) is not None]
        connections = [self._federators.connection(store) for store in stores]
        fields = {"clients": [client_id.hex()]}
        asked = [
            one.ask("session_get", fields, timeout_s=FIND_S) for one in connections if one is not None and one.is_open
        ]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, HanseError):
                    raise answer
                continue
            own += [_record(row) for row in answer.fields.get("rows", ())]
        return max(own, key=lambda one: one.version, default=None)


def _row(client_id: bytes, record: SessionRecord) -> list[Any]:
    filters = [
        [one.filter.decode("utf-8", "replace"), one.qos, one.options, one.identifier] for one in record.subscriptions
    ]
    return [client_id.hex(), record.version, record.broker_id, record.expiry_s, record.is_connected, filters]


def _record(row: Sequence[Any]) -> SessionRecord:
    _, version, broker_id, expiry_s, is_connected, filters = row
    subscriptions = tuple(Subscription(text.encode(), *rest) for text, *rest in filters)
    return SessionRecord(broker_id, subscriptions, expiry_s, is_connected, version)
