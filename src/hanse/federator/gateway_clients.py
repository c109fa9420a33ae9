"""The register of connected clients: if two gateways have the same client id at two brokers, the older connection ends.

A broker ends the older of two connections itself if it has both. Gateways that judge a broker differently, or place
clients by a policy other than the hash, open one client id at two brokers. So each gateway reports its clients to the
federators of the client's first two brokers. There is one request of gateways, and one of this federator:

- `client_put`: `now_ms`, the gateway's time of day; `first`, if earlier rows of this connection no longer count; and
  `rows` of `[client, connected at in ms, broker]`. The client is a digest of its id; the broker is empty if the client
  is gone. The answer has `ended`, rows `[client, connected at]` that the gateway must end, and the number `refused`.
- `client_ended`: the same rows `[client, connected at]`, to a gateway whose client has connected elsewhere since.

Rules:

1. The later connection stays, by its time and then by the name of its gateway. So all federators decide alike, in
   whichever order they hear of the two.
2. Nobody is told about two connections at the same broker: the broker ends one.
3. Rows of a gateway count while it is connected. When it is back, it reports all its clients again.
4. The clocks of a gateway and this federator may differ by `CLOCK_MS`. Otherwise the wrong connection would end, so
   the gateway's rows are refused. So is a row whose time is later than that.
5. The register is bounded and in memory. Clients beyond its bound are refused and counted.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from hanse.errors import HanseError, RemoteError
from hanse.federator.gateways import GatewayName, GatewayPeer, Gateways
from hanse.request_channel import Answer, Request

ROWS_PER_REQUEST: Final = 1_000
# About 400 bytes each.
ROWS_MAX: Final = 200_000
CLIENT_CHARACTERS_MAX: Final = 64
BROKER_CHARACTERS_MAX: Final = 200
CLOCK_MS: Final = 2_000
TELL_S: Final = 2.0

_log = logging.getLogger(__name__)


class _Row(NamedTuple):
    at_ms: int
    broker: str
    owner: GatewayName

    def is_later_than(self, other: "_Row") -> bool:
        return (self.at_ms, str(self.owner)) > (other.at_ms, str(other.owner))


class Register:
    """The table, without connections.

    Args:
        is_connected: whether rows of a gateway's connection count.
    """

    def __init__(self, is_connected: Callable[[GatewayName], bool]) -> None:
        self.refused = 0
        self._is_connected = is_connected
        self._rows: dict[str, _Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def forget(self, owner: GatewayName) -> None:
        """Drop all rows of a connection."""
        self._rows = {client: row for client, row in self._rows.items() if row.owner != owner}

    def put(self, owner: GatewayName, client: str, at_ms: int, broker: str) -> tuple[GatewayName, int] | None:
        """Take a row; return the connection that must end, by its gateway and time, if there is one."""
        known = self._rows.get(client)
        if known is not None and known.owner != owner and not self._is_connected(known.owner):
            known = None
        if not broker:
            if known is not None and known.owner == owner and known.at_ms <= at_ms:
                del self._rows[client]
            return None
        row = _Row(at_ms, broker, owner)
        if known is not None and known.owner != owner:
            earlier = row
            if row.is_later_than(known):
                self._rows[client], earlier = row, known
            return None if row.broker == known.broker else (earlier.owner, earlier.at_ms)
        if client not in self._rows and not self._has_room():
            self.refused += 1
            return None
        self._rows[client] = row
        return None

    def _has_room(self) -> bool:
        if len(self._rows) >= ROWS_MAX:
            gone = {row.owner for row in self._rows.values() if not self._is_connected(row.owner)}
            if gone:
                self._rows = {client: row for client, row in self._rows.items() if row.owner not in gone}
        return len(self._rows) < ROWS_MAX


class GatewayClients:
    """The register of one federator, and its conversation with gateways.

    Args:
        counters: receives `gateway_clients_refused`, `gateway_clients_clock`, `gateway_clients_ended`, and
            `gateway_clients_untold` for gateways that did not answer.
        wall: the time of day in seconds.
    """

    def __init__(self, gateways: Gateways, counters: Counter[str], wall: Callable[[], float] = time.time) -> None:
        self.register = Register(gateways.peers.__contains__)
        self._gateways = gateways
        self._counters = counters
        self._wall = wall
        self._telling: set[asyncio.Task[None]] = set()
        gateways.offer("client_put", self._put)

    async def _put(self, peer: GatewayPeer, request: Request) -> Answer:
        fields = request.fields
        now_ms = int(self._wall() * 1000)
        self._check_clock(now_ms, fields.get("now_ms"))
        rows = _checked(fields.get("rows"))
        if fields.get("first") is True:
            self.register.forget(peer.name)
        before = self.register.refused
        ended: dict[GatewayName, list[list[Any]]] = {}
        future = 0
        for client, at_ms, broker in rows:
            if at_ms > now_ms + CLOCK_MS:
                # The gateway's clock has been set back since: this row would win for ever.
                future += 1
                continue
            found = self.register.put(peer.name, client, at_ms, broker)
            if found is not None:
                owner, ended_at = found
                ended.setdefault(owner, []).append([client, ended_at])
        refused = self.register.refused - before + future
        self._counters["gateway_clients_refused"] += refused
        self._counters["gateway_clients_ended"] += sum(map(len, ended.values()))
        own = ended.pop(peer.name, [])
        for owner, some in ended.items():
            task = asyncio.get_running_loop().create_task(self._tell(owner, some))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)
        return Answer({"ended": own, "refused": refused})

    def _check_clock(self, now_ms: int, shown_ms: object) -> None:
        if type(shown_ms) is not int:
            raise RemoteError("A gateway's report of clients has no time now_ms; is the gateway of another version?")
        late_ms = now_ms - shown_ms
        if abs(late_ms) > CLOCK_MS:
            self._counters["gateway_clients_clock"] += 1
            raise RemoteError(
                f"The gateway's clock and the federator's differ by {late_ms / 1000:.1f} s, with at most "
                f"{CLOCK_MS / 1000:g} s allowed; set both by NTP."
            )

    async def _tell(self, owner: GatewayName, rows: list[list[Any]]) -> None:
        peer = self._gateways.peers.get(owner)
        if peer is None:
            # It reports its clients again when it is back, and learns it then.
            return
        try:
            await peer.channel.ask("client_ended", {"rows": rows}, timeout_s=TELL_S)
        except HanseError as error:
            self._counters["gateway_clients_untold"] += len(rows)
            _log.info("gateway %s was not told of %d clients that connected elsewhere: %s", owner, len(rows), error)


def _checked(rows: object) -> Iterable[tuple[str, int, str]]:
    if not isinstance(rows, list) or len(rows) > ROWS_PER_REQUEST:
        raise RemoteError(f"A gateway's report of clients has no list of at most {ROWS_PER_REQUEST} rows.")
    found = []
    for row in rows:
        match row:
            case [str() as client, int() as at_ms, str() as broker] if (
                0 < len(client) <= CLIENT_CHARACTERS_MAX and len(broker) <= BROKER_CHARACTERS_MAX
            ):
                found.append((client, at_ms, broker))
            case _:
                raise RemoteError("A row of a connected client is malformed; is the gateway of another version?")
    return found
