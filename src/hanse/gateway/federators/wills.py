"""Reports of clients' wills to federators, which publish them if this gateway dies.

`hanse.federator.gateway_wills` is the other side.

Rules:

1. A will is at one federator: that of the client's broker, or else the first of the client's stores. It follows the
   client.
2. It is taken back when the client says goodbye, and just before the gateway publishes it itself. If the gateway dies
   in between, the will may be lost, but it is not published twice.
3. A new connection gets all wills again, as a snapshot. Changes wait for a federator that is away; only the last state
   of each client does.
4. A federator asks who is here before it publishes. The answer also names clients that were here within the time it
   gives, as far as `RECENT_MAX` reaches back.
"""

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from hanse.errors import HanseError
from hanse.gateway.federators.connection import FederatorConnection
from hanse.gateway.federators.federators import Federators
from hanse.request_channel import Answer, Request

WRITE_S: Final = 5.0
# Between two looks whether a connection is new.
LOOK_S: Final = 0.5
REFUSED_PAUSE_S: Final = 5.0
# A federator is told so long before the gateway publishes a will that has waited.
MARGIN_S: Final = 1.0
ROWS_PER_REQUEST: Final = 500
# Hexadecimal digits per request: 64 KiB of payload and topic have 256 Ki of them.
CHARACTERS_PER_REQUEST: Final = 1 << 20
# Clients that have left and are remembered for rule 4; about 200 bytes each.
RECENT_MAX: Final = 100_000

_log = logging.getLogger(__name__)


class ClientWill(Protocol):
    """A will as CONNECT has it."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes


class _Client:
    def __init__(self, client: str, will: ClientWill | None, delay_s: int) -> None:
        self.client = client
        self.will = will
        self.delay_s = delay_s
        # The broker whose federator has the will; empty for none.
        self.at = ""
        # Set while the will of a client that is gone waits for its delay.
        self.timer: asyncio.TimerHandle | None = None


class WillReports:
    """The wills of one worker's clients.

    Args:
        federators: the federators that get them.
        grace_s: the time that a federator waits for a lost gateway.
        is_on: whether wills are reported at all. Questions of federators are answered in any case.
        counters: receives `will_rows`, `will_rows_refused`, `will_rows_failed`.
        clock: the time in seconds.
    """

    def __init__(
        self,
        federators: Federators,
        counters: Counter[str],
        clock: Callable[[], float],
        *,
        grace_s: float,
        is_on: bool = True,
    ) -> None:
        self._federators = federators
        self._counters = counters
        self._clock = clock
        self._grace_s = grace_s
        self._is_on = is_on
        self._loop = asyncio.get_running_loop()
        self._clients: dict[object, _Client] = {}
        self._here: Counter[str] = Counter()
        self._recent: OrderedDict[str, float] = OrderedDict()
        # Per broker: the wills that its federator should have, and the clients whose row it has not been told.
        self._wills: dict[str, dict[str, _Client]] = {}
        self._changed: dict[str, dict[str, None]] = {}
        self._wake: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        federators.handlers["clients_here"] = self._answer

    # --- clients ------------------------------------------------------------------------------------------------------

    def accepted(self, key: object, client_id: bytes, will: ClientWill | None, delay_s: int, places: list[str]) -> None:
        """Take over a client that a broker has accepted. `places` are brokers, the preferred one first."""
        client = client_id.hex()
        self._clients[key] = _Client(client, will if self._is_on else None, delay_s)
        self._here[client] += 1
        self._recent.pop(client, None)
        self.arrived(key, places)

    def arrived(self, key: object, places: list[str]) -> None:
        """Bring the will to where the client is now."""
        one = self._clients.get(key)
        if one is None or one.will is None:
            return
        place = next((place for place in places if self._federators.connection(place) is not None), "")
        if place == one.at:
            return
        self._remove(one)
        if place:
            one.at = place
            self._wills.setdefault(place, {})[one.client] = one
            self._note(place, one.client)

    def part(self, key: object) -> None:
        """Take note that the client's connection has ended: the gateway publishes the will after its delay."""
        one = self._clients.get(key)
        if one is None or one.will is None or one.timer is not None:
            return
        if one.delay_s > MARGIN_S:
            one.timer = self._loop.call_later(one.delay_s - MARGIN_S, self.withdraw, key)
        else:
            self.withdraw(key)

    def withdraw(self, key: object) -> None:
        """Take the will back, because the gateway publishes it now, or nobody does."""
        one = self._clients.get(key)
        if one is not None:
            self._remove(one)
            one.will = None
            if one.timer is not None:
                one.timer.cancel()

    def forget(self, key: object) -> None:
        """Take note that the client is gone."""
        self.withdraw(key)
        one = self._clients.pop(key, None)
        if one is None:
            return
        self._here[one.client] -= 1
        if not self._here[one.client]:
            del self._here[one.client]
            self._recent[one.client] = self._clock()
            if len(self._recent) > RECENT_MAX:
                self._recent.popitem(last=False)

    def _remove(self, one: _Client) -> None:
        place, one.at = one.at, ""
        wills = self._wills.get(place, {})
        # A later connection of the same client id may have put its own.
        if wills.get(one.client) is one:
            del wills[one.client]
            self._note(place, one.client)

    def _note(self, place: str, client: str) -> None:
        self._changed.setdefault(place, {})[client] = None
        self._wake.setdefault(place, asyncio.Event()).set()
        if place not in self._tasks:
            self._tasks[place] = self._loop.create_task(self._keep(place), name=f"wills for broker {place}")

    # --- federators ---------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Answer:
        now = self._clock()
        clients = request.fields.get("clients")
        served = []
        for row in clients if isinstance(clients, list) else ():
            match row:
                case [str() as client, int() as age_ms]:
                    left_at = self._recent.get(client)
                    if client in self._here or (left_at is not None and left_at >= now - age_ms / 1e3):
                        served.append(client)
        return Answer({"clients": served})

    async def stop(self) -> None:
        """Report no more. `Federators.stop` then says goodbye, so that no federator publishes anything."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, place: str) -> None:
        told: tuple[FederatorConnection, int] | None = None
        wake = self._wake[place]
        while True:
            connection = self._federators.connection(place)
            try:
                if connection is not None and connection.is_open:
                    now = connection, connection.opened
                    if told != now:
                        await self._tell_all(place, connection)
                        told = now
                    elif self._changed.get(place):
                        await self._tell_changes(place, connection)
            except HanseError as error:
                self._counters["will_rows_failed"] += 1
                told = None
                if connection is not None and connection.is_open:
                    _log.warning("wills for the federator of broker %s: %s", place, error)
                    await asyncio.sleep(REFUSED_PAUSE_S)
                continue
            wake.clear()
            if not self._changed.get(place) or connection is None or not connection.is_open:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await wake.wait()

    async def _tell_all(self, place: str, connection: FederatorConnection) -> None:
        await self._tell(connection, [], snapshot="begin")
        self._changed.pop(place, None)
        await self._tell_clients(place, connection, list(self._wills.get(place, ())))
        await self._tell(connection, [], snapshot="end")

    async def _tell_changes(self, place: str, connection: FederatorConnection) -> None:
        await self._tell_clients(place, connection, list(self._changed.pop(place)))

    async def _tell_clients(self, place: str, connection: FederatorConnection, clients: Iterable[str]) -> None:
        rows: list[list[Any]] = []
        size = 0
        for client in clients:
            one = self._wills.get(place, {}).get(client)
            row = ["drop", client] if one is None else _row(one)
            rows.append(row)
            size += sum(len(text) for text in row if isinstance(text, str))
            if len(rows) >= ROWS_PER_REQUEST or size >= CHARACTERS_PER_REQUEST:
                await self._tell(connection, rows)
                rows, size = [], 0
        if rows:
            await self._tell(connection, rows)

    async def _tell(self, connection: FederatorConnection, rows: list[list[Any]], snapshot: str | None = None) -> None:
        fields: dict[str, Any] = {"rows": rows, "grace_ms": int(self._grace_s * 1e3)}
        if snapshot is not None:
            fields["snapshot"] = snapshot
        answer = await connection.ask("wills", fields, timeout_s=WRITE_S)
        self._counters["will_rows"] += len(rows)
        self._counters["will_rows_refused"] += int(answer.fields.get("refused") or 0)


def _row(one: _Client) -> list[Any]:
    will = one.will
    assert will is not None, "a client without a will has no row"
    return [
        "put",
        one.client,
        will.topic.hex(),
        will.payload.hex(),
        will.qos,
        will.retain,
        will.properties.hex(),
        one.delay_s,
    ]
