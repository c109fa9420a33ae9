"""Wills of gateways' clients, which this federator publishes when a gateway dies.

No broker has the will of a client whose gateway publishes it itself. One request of gateways
(`hanse.federator.gateways`), and one to them:

- `wills`: `rows` of `["put", client, topic, payload, QoS, retain, properties, delay in s]` and `["drop", client]`;
  client, topic, payload and properties are hexadecimal. `snapshot` is `begin` or `end` where the rows begin or end a
  snapshot, `grace_ms` is the grace of this gateway, and `goodbye` drops everything that the gateway has put.
- `clients_here`: `clients` of `[client, age in ms]`; a gateway answers with those that it serves now, or has served
  within the age.

Rules:

1. A will belongs to the gateway's connection (gateway, incarnation, number) that has put it. While that connection
   stands, the gateway itself publishes the will.
2. When the connection ends without a goodbye, the wills are published after the grace, or after their own delay if that
   is longer. A connection of the same incarnation that returns stops this; its snapshot says which wills are left.
3. A will is dropped when another gateway puts one for the same client, or when a connected gateway answers that it has
   served the client since the loss. A gateway that does not answer is asked again, and the will waits.
4. A will is published once. The federator opens a short session of its own login, with the client's will as its will,
   and leaves it with DISCONNECT 0x04. From CONNACK on the broker publishes the will whatever happens to the federator.
   An attempt without a CONNACK is not repeated, because the broker may have accepted it.
5. Wills are kept in memory, bounded in number and bytes. Beyond that they are refused and counted, and so are wills on
   topics that belong to brokers and federators (`$...`, `federator/#`).
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from hanse.errors import HanseError, RemoteError
from hanse.federator.gateways import GatewayName, GatewayPeer, Gateways
from hanse.mqtt.client import Client, ClientHandler, ClientSettings, Will
from hanse.mqtt.properties import walk
from hanse.mqtt.refusal import Refusal
from hanse.protocol.topics import may_cross
from hanse.request_channel import SILENCE_S, Answer, Request

WILLS_MAX: Final = 200_000
BYTES_MAX: Final = 64 << 20
# For each will, beyond its content.
ROW_BYTES: Final = 512
ROWS_PER_REQUEST: Final = 1_000
DELAY_S_MAX: Final = 0xFFFFFFFF
GRACE_S: Final = 60.0
GRACE_S_MAX: Final = 3_600.0
TICK_S: Final = 0.5
ASK_S: Final = 5.0
# So few that the answer is still true when the last of them is published.
QUESTION_ROWS: Final = 100
# A will whose broker or whose gateways cannot be asked for so long has lost its meaning.
LATE_S: Final = 600.0

_OF_WILL: Final = frozenset({0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26})
_log = logging.getLogger(__name__)


class KeptWill(NamedTuple):
    """A will, and the delay that its client has asked for."""

    will: Will
    delay_s: int
    size: int
    put_at: float


class _Owner:
    """One connection of a gateway, which may have ended."""

    def __init__(self) -> None:
        self.wills: dict[str, KeptWill] = {}
        self.grace_s = GRACE_S
        self.lost_at: float | None = None
        # Clients of a snapshot that has begun.
        self.fresh: set[str] | None = None


class _Due(NamedTuple):
    name: GatewayName
    owner: _Owner
    client: str
    kept: KeptWill


class GatewayWills:
    """The wills of one federator.

    Args:
        publish: publishes a will at the host broker, at most once; raises HanseError if it has not.
        is_host_up: returns whether the host broker can be expected to accept a session.
        counters: receives `gateway_wills_published`, `gateway_wills_cancelled`, `gateway_wills_lost`,
            `gateway_wills_refused`.
        clock: the time in seconds.
    """

    def __init__(
        self,
        gateways: Gateways,
        publish: Callable[[Will], Awaitable[None]],
        is_host_up: Callable[[], bool],
        counters: Counter[str],
        clock: Callable[[], float],
    ) -> None:
        self._gateways = gateways
        self._publish = publish
        self._is_host_up = is_host_up
        self._counters = counters
        self._clock = clock
        self._owners: dict[GatewayName, _Owner] = {}
        self._owners_of: dict[str, set[GatewayName]] = {}
        self.count = 0
        self.bytes = 0
        gateways.offer("wills", self._take)
        gateways.watch(self._come, self._gone)

    async def watch(self) -> None:
        """Publish the wills of lost gateways as their time comes."""
        while True:
            await asyncio.sleep(TICK_S)
            await self.tick()

    # --- connections --------------------------------------------------------------------------------------------------

    def _come(self, peer: GatewayPeer) -> None:
        owner = self._owners.get(peer.name)
        if owner is not None:
            owner.lost_at = None
            owner.fresh = None

    def _gone(self, peer: GatewayPeer) -> None:
        owner = self._owners.get(peer.name)
        if owner is not None:
            owner.lost_at = self._clock()
            owner.fresh = None
            self._forget_if_empty(peer.name, owner)
            _log.info("gateway %s is gone and has left %d wills", peer.name, len(owner.wills))

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _take(self, peer: GatewayPeer, request: Request) -> Answer:
        fields = request.fields
        rows = fields.get("rows", [])
        if not isinstance(rows, list) or len(rows) > ROWS_PER_REQUEST:
            raise RemoteError(f"The wills of a gateway's request are no list of at most {ROWS_PER_REQUEST}.")
        name = peer.name
        owner = self._owners.setdefault(name, _Owner())
        grace_ms = fields.get("grace_ms")
        if isinstance(grace_ms, int | float) and grace_ms >= 0:
            owner.grace_s = min(grace_ms / 1e3, GRACE_S_MAX)
        if fields.get("snapshot") == "begin":
            owner.fresh = set()
        refused = sum(not self._row(name, owner, row) for row in rows)
        self._counters["gateway_wills_refused"] += refused
        if fields.get("snapshot") == "end" and owner.fresh is not None:
            stale, owner.fresh = owner.wills.keys() - owner.fresh, None
            for client in stale:
                self._drop(name, owner, client)
        if fields.get("goodbye"):
            for client in list(owner.wills):
                self._drop(name, owner, client)
        self._forget_if_empty(name, owner)
        return Answer({"refused": refused})

    def _row(self, name: GatewayName, owner: _Owner, row: object) -> bool:
        match row:
            case ["drop", str() as client]:
                self._drop(name, owner, client)
                return True
            case ["put", str() as client, *rest]:
                former = owner.wills.get(client)
                kept = _kept(rest, self._clock() if former is None else former.put_at)
                self._drop(name, owner, client)
                self._drop_of_lost(client)
                if kept is None or self.count >= WILLS_MAX or self.bytes + kept.size > BYTES_MAX:
                    return False
                owner.wills[client] = kept
                self._owners_of.setdefault(client, set()).add(name)
                self.count += 1
                self.bytes += kept.size
                if owner.fresh is not None:
                    owner.fresh.add(client)
                return True
        raise RemoteError("A row of a will is malformed; is the gateway of another version?")

    def _drop(self, name: GatewayName, owner: _Owner, client: str) -> None:
        kept = owner.wills.pop(client, None)
        if kept is None:
            return
        self.count -= 1
        self.bytes -= kept.size
        names = self._owners_of[client]
        names.discard(name)
        if not names:
            del self._owners_of[client]

    def _drop_of_lost(self, client: str) -> None:
        """Drop what lost gateways have put for a client that another one reports."""
        for name in list(self._owners_of.get(client, ())):
            owner = self._owners[name]
            if owner.lost_at is not None:
                self._counters["gateway_wills_cancelled"] += 1
                self._drop(name, owner, client)
                self._forget_if_empty(name, owner)

    def _forget_if_empty(self, name: GatewayName, owner: _Owner) -> None:
        if not owner.wills and owner.fresh is None:
            self._owners.pop(name, None)

    # --- publishing ---------------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Publish what is due, unless a gateway has served the client since (rules 2 and 3)."""
        due = deque(self._due())
        while due:
            some = [due.popleft() for _ in range(min(len(due), QUESTION_ROWS))]
            served = await self._served(some)
            for one in some:
                if not self._is_still_due(one):
                    continue
                if served is not None and one.client in served:
                    self._end(one, "gateway_wills_cancelled")
                elif served is None or not self._is_host_up():
                    if self._late_s(one) > LATE_S:
                        _log.warning("a will of gateway %s is given up: its time was long ago", one.name)
                        self._end(one, "gateway_wills_lost")
                else:
                    # Removed before: whatever happens now, it is not published again.
                    self._end(one)
                    await self._publish_one(one)

    def _due(self) -> Iterable[_Due]:
        return [
            one
            for name, owner in self._owners.items()
            if owner.lost_at is not None
            for client, kept in owner.wills.items()
            if self._late_s(one := _Due(name, owner, client, kept)) >= 0
        ]

    def _late_s(self, one: _Due) -> float:
        since = self._clock() if one.owner.lost_at is None else one.owner.lost_at
        return self._clock() - since - max(one.owner.grace_s, one.kept.delay_s)

    def _is_still_due(self, one: _Due) -> bool:
        return (
            one.owner.lost_at is not None
            and self._owners.get(one.name) is one.owner
            and one.owner.wills.get(one.client) is one.kept
        )

    async def _served(self, some: list[_Due]) -> set[str] | None:
        """Return the clients that connected gateways have served since; None if one of them does not answer."""
        now = self._clock()
        # A gateway may have died some time before its connection ended here. What was before the will does not count.
        rows = []
        for one in some:
            lost_at = now if one.owner.lost_at is None else one.owner.lost_at
            rows.append([one.client, int((now - max(lost_at - SILENCE_S, one.kept.put_at)) * 1e3)])
        peers = list(self._gateways.peers.values())
        asked = (peer.channel.ask("clients_here", {"clients": rows}, timeout_s=ASK_S) for peer in peers)
        served: set[str] = set()
        is_complete = True
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, RemoteError):
                # A gateway of an older version, which does not know the request.
                continue
            if isinstance(answer, HanseError):
                # Also of a gateway that was lost meanwhile: the next round does not ask it.
                is_complete = False
                continue
            if isinstance(answer, BaseException):
                raise answer
            served.update(one for one in answer.fields.get("clients", ()) if isinstance(one, str))
        return served if is_complete else None

    def _end(self, one: _Due, counted: str = "") -> None:
        if counted:
            self._counters[counted] += 1
        self._drop(one.name, one.owner, one.client)
        self._forget_if_empty(one.name, one.owner)

    async def _publish_one(self, one: _Due) -> None:
        try:
            await self._publish(one.kept.will)
        except (HanseError, ValueError) as error:
            self._counters["gateway_wills_lost"] += 1
            _log.warning("a will of the lost gateway %s could not be published: %s", one.name, error)
        else:
            self._counters["gateway_wills_published"] += 1


class WillPublisher:
    """Publisher of wills at the host broker, each in a session of its own (rule 4).

    Args:
        settings: those of the federator's session at the host broker.
        client_id: the client id of these sessions.
    """

    def __init__(self, settings: ClientSettings, client_id: str) -> None:
        self._settings = replace(
            settings,
            client_id=client_id,
            clean_start=True,
            session_expiry_s=0,
            tells_packet_max=True,
            probe_topic=None,
        )

    async def publish(self, will: Will) -> None:
        """Publish a will, at most once.

        Raises:
            HanseError: The broker has not accepted the session.
        """
        client = Client(replace(self._settings, will=will), ClientHandler())
        await client.start(must_connect=True)
        # Its task has not begun yet. So it cannot connect again, which would publish the will twice.
        await client.stop(with_will=True)


def _kept(rest: list[Any], put_at: float) -> KeptWill | None:
    """Return the will of a row; None if this federator does not publish it.

    One client's odd will must not fail the request, which has the wills of others.

    Raises:
        RemoteError: The row is malformed.
    """
    match rest:
        case [
            str() as topic_hex,
            str() as payload,
            int() as qos,
            bool() as retain,
            str() as properties,
            int() as delay_s,
        ]:
            pass
        case _:
            raise RemoteError("A row of a will is malformed; is the gateway of another version?")
    try:
        topic = bytes.fromhex(topic_hex).decode()
        will = _will(topic, bytes.fromhex(payload), qos, retain, bytes.fromhex(properties))
    except (ValueError, Refusal):
        return None
    is_good = bool(topic) and not any(one in topic for one in "+#\0") and 0 <= qos <= 2 and 0 <= delay_s <= DELAY_S_MAX
    if not is_good or topic.startswith("$") or not may_cross(topic):
        return None
    size = ROW_BYTES + (len(topic_hex) + len(payload) + len(properties)) // 2
    return KeptWill(will, delay_s, size, put_at)


def _will(topic: str, payload: bytes, qos: int, retain: bool, properties: bytes) -> Will:
    found: dict[int, bytes] = {}
    user: list[tuple[str, str]] = []
    for kind, first, last in walk(properties, 0, len(properties), allowed=_OF_WILL):
        value = properties[first + 1 : last]
        if kind == 0x26:
            end = 2 + int.from_bytes(value[:2])
            user.append((value[2:end].decode(), value[end + 2 :].decode()))
        else:
            found[kind] = value
    return Will(
        topic,
        payload,
        qos,
        retain,
        expiry_s=int.from_bytes(found[0x02]) if 0x02 in found else None,
        payload_format_indicator=found.get(0x01, b"\0")[0],
        content_type=found[0x03][2:].decode() if 0x03 in found else None,
        response_topic=found[0x08][2:].decode() if 0x08 in found else None,
        correlation_data=found[0x09][2:] if 0x09 in found else None,
        user_properties=tuple(user),
    )
