"""Reports of the subscriptions of one worker's clients at one broker, to that broker's federator.

Rules:

1. The table always holds the current state. Rows report each change to the federator, in order, one request at a time.
2. Each new connection begins with a snapshot of the table, so nothing has to be kept for a federator that is away.
3. Rows that wait are bounded: a federator that is too slow gets a snapshot instead, once it takes requests again.
4. Filters that are never federated (`$SYS/#` and others that begin with `$`) are not reported; `$share/...` is.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from hanse.errors import HanseError, RemoteError, Unavailable
from hanse.gateway.federators.connection import FederatorConnection

# Rows per request, and characters of their filters, so that a frame stays far below the channel's limit.
ROWS_PER_REQUEST: Final = 1_000
CHARACTERS_PER_REQUEST: Final = 1 << 20
# Rows that wait for a slow federator before a snapshot replaces them.
WAITING_MAX: Final = 50_000
ANSWER_S: Final = 10.0
REFUSED_PAUSE_S: Final = 5.0
SHARE: Final = "$share/"

Row = list[Any]
_log = logging.getLogger(__name__)


class Held:
    """A client at a broker, with its filters.

    Attributes:
        key: the client's connection; a later connection of the same id replaces it.
        is_complete: whether `filters` are all filters of its session.
        expiry_s: expiry of its session; None without end.
        filters: QoS, and time of the subscription, by filter.
    """

    __slots__ = ("client_id", "expiry_s", "filters", "is_complete", "key")

    def __init__(self, key: object, client_id: str, *, is_complete: bool, expiry_s: int | None) -> None:
        self.key = key
        self.client_id = client_id
        self.is_complete = is_complete
        self.expiry_s = expiry_s
        self.filters: dict[str, tuple[int, float]] = {}


class Reporter:
    """The table of one broker, and the requests that bring it to the federator.

    Args:
        connection: connection to the federator.
        counters: receives `interest_rows`, `interest_snapshots`, `interest_overflows`, `interest_failures`.
        clock: the time in seconds.
    """

    def __init__(self, connection: FederatorConnection, counters: Counter[str], clock: Callable[[], float]) -> None:
        self.connection = connection
        # Whether the federator accepts rows: it may have another source of interest.
        self.is_taken = True
        self._counters = counters
        self._clock = clock
        self._held: dict[str, Held] = {}
        self._waiting: list[Row] = []
        # Reported rows, and rows that the federator has answered, counted over all time.
        self._said = 0
        self._done = 0
        self._needs_snapshot = True
        self._wake = asyncio.Event()
        self._answered = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"interest for {connection.endpoint}")

    async def stop(self) -> None:
        """Stop reporting."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def opened(self) -> None:
        """Take note of a new connection (rule 2)."""
        self._needs_snapshot = True
        self.is_taken = True
        self._wake.set()

    def lost(self) -> None:
        """Take note of the end of a connection."""
        self._needs_snapshot = True
        self._waiting.clear()
        self._answered.set()

    # --- changes ------------------------------------------------------------------------------------------------------

    def here(self, held: Held) -> None:
        """Report a client that is here, with its filters."""
        self._held[held.client_id] = held
        self._say([_here(held)])
        self._say(self._subscribed_rows(held, held.filters))

    def subscribed(self, held: Held, filters: Iterable[str]) -> None:
        """Report filters that a broker has granted, and that are in `held`."""
        if self._held.get(held.client_id) is held:
            self._say(self._subscribed_rows(held, filters))

    def unsubscribed(self, held: Held, filters: Iterable[str]) -> None:
        """Report filters that a broker has removed."""
        if self._held.get(held.client_id) is held:
            self._say([["unsubscribed", held.client_id, text] for text in filters if _is_told(text)])

    def left(self, held: Held) -> None:
        """Report that the client's connection to the broker has ended, unless a later one has replaced it."""
        if self._held.get(held.client_id) is held:
            del self._held[held.client_id]
            self._say([["left", held.client_id, held.expiry_s]])

    def _subscribed_rows(self, held: Held, filters: Iterable[str]) -> list[Row]:
        now = self._clock()
        rows: list[Row] = []
        for text in filters:
            qos, since = held.filters[text]
            if _is_told(text):
                rows.append(["subscribed", held.client_id, text, qos, int((now - since) * 1e3)])
        return rows

    def _say(self, rows: list[Row]) -> None:
        self._said += len(rows)
        if self._needs_snapshot or not self.is_taken:
            # The snapshot will hold it.
            return
        self._waiting += rows
        if len(self._waiting) > WAITING_MAX:
            self._counters["interest_overflows"] += 1
            self._needs_snapshot = True
            self._waiting.clear()
        self._wake.set()

    async def flushed(self) -> None:
        """Wait until the federator has answered every report from before this call.

        Raises:
            Unavailable: There is no connection, or it ended meanwhile.
        """
        said = self._said
        while self.is_taken and (self._needs_snapshot or self._done < said):
            if not self.connection.is_open:
                raise Unavailable(f"There is no connection to the federator at {self.connection.endpoint}.")
            self._answered.clear()
            await self._answered.wait()

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while self.connection.is_open and self.is_taken and (self._needs_snapshot or self._waiting):
                    if self._needs_snapshot:
                        await self._send_snapshot()
                    else:
                        await self._send_waiting()
            except HanseError as error:
                self._counters["interest_failures"] += 1
                self._needs_snapshot = True
                self._waiting.clear()
                if isinstance(error, RemoteError) or self.connection.is_open:
                    _log.warning("interest for the federator at %s: %s", self.connection.endpoint, error)
                    await asyncio.sleep(REFUSED_PAUSE_S)
                    self._wake.set()
            finally:
                self._answered.set()

    async def _send_snapshot(self) -> None:
        self._counters["interest_snapshots"] += 1
        # Later reports follow the snapshot; they may repeat what the snapshot holds.
        self._needs_snapshot = False
        self._waiting.clear()
        said = self._said
        await self._ask([], snapshot="begin")
        rows: list[Row] = []
        size = 0
        for client_id in list(self._held):
            held = self._held.get(client_id)
            if held is None:
                continue
            own = [_here(held), *self._subscribed_rows(held, held.filters)]
            rows += own
            size += sum(len(row[2]) for row in own[1:])
            if len(rows) >= ROWS_PER_REQUEST or size >= CHARACTERS_PER_REQUEST:
                for part in parts(rows):
                    await self._ask(part)
                rows, size = [], 0
        for part in parts(rows):
            await self._ask(part)
        await self._ask([], snapshot="end")
        self._done = said
        self._answered.set()

    async def _send_waiting(self) -> None:
        rows, self._waiting = self._waiting, []
        done = self._said
        for part in parts(rows):
            await self._ask(part)
        self._done = done
        self._answered.set()

    async def _ask(self, rows: list[Row], snapshot: str | None = None) -> None:
        fields: dict[str, Any] = {"rows": rows}
        if snapshot is not None:
            fields["snapshot"] = snapshot
        answer = await self.connection.ask("interest", fields, timeout_s=ANSWER_S)
        self._counters["interest_rows"] += len(rows)
        if answer.fields.get("taken") is False:
            self.is_taken = False
            self._waiting.clear()


def parts(rows: list[Row]) -> Iterable[list[Row]]:
    """Cut rows into requests of bounded size."""
    part: list[Row] = []
    size = 0
    for row in rows:
        length = len(row[2]) if row[0] == "subscribed" else 0
        if part and (len(part) >= ROWS_PER_REQUEST or size + length > CHARACTERS_PER_REQUEST):
            yield part
            part, size = [], 0
        part.append(row)
        size += length
    if part:
        yield part


def _here(held: Held) -> Row:
    return ["here", held.client_id, held.is_complete, held.expiry_s]


def _is_told(text: str) -> bool:
    return not text.startswith("$") or text.startswith(SHARE)
