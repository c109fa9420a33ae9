"""Interest from gateways, which see every SUBSCRIBE of their clients: for brokers of any make, and without log topics.

A gateway says a row for each change, a JSON list:

    ["here", CLIENT, COMPLETE, EXPIRY]      the client is connected here; COMPLETE: what it holds beside the filters
                                            that follow is gone; EXPIRY: seconds, or null for a session without end
    ["subscribed", CLIENT, FILTER, QOS, AGE_MS]     granted AGE_MS ago, which the registry does not need yet
    ["unsubscribed", CLIENT, FILTER]
    ["left", CLIENT, EXPIRY]                its connection to the broker has ended

Rules:

1. The owner of a client is the connection of the gateway that reported it last: (gateway, incarnation, connection). A
   `left` of another owner is out of date: the client has come back through another gateway.
2. After each new connection the owner says a snapshot: what it does not name there has left.
3. When the connection of an owner is lost, its clients stay for a lease. Then they count as left. An owner that comes
   back with the same incarnation within the lease goes on. One with a new incarnation has restarted: with its first
   whole snapshot the clients of the former one have left.
4. A client that has left keeps its interest for its session's expiry; without a session it ends at once.
5. A malformed row is counted and left out. Everything is bounded.
6. Pure: time comes in, reports for the registry come out.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from hanse.interest.reports import ClientBack, ClientLeft, Report, Session, Subscribed, Unsubscribed

LEASE_S: Final = 60.0
# Clients, here or with a session. The registry has its own bounds; this one keeps the table from growing beyond them.
CLIENTS_MAX: Final = 1_000_000
FILTERS_PER_CLIENT_MAX: Final = 100_000
# Sessions that are kept without their client; the oldest ends first, as in the registry.
ABSENT_MAX: Final = 100_000


class Owner(NamedTuple):
    """One connection of a gateway."""

    gateway: str
    incarnation: str
    connection: int


class _Client:
    __slots__ = ("expires_at_s", "expiry_s", "filters", "owner", "seen_in", "stale")

    def __init__(self) -> None:
        self.owner: Owner | None = None
        # Of its session, in seconds; infinite if the session has no end.
        self.expiry_s = 0.0
        self.filters: set[str] = set()
        # Filters that the snapshot under way has not named.
        self.stale: set[str] | None = None
        # The number of the last snapshot that named it.
        self.seen_in = 0
        # When its session ends; None while the client is here.
        self.expires_at_s: float | None = None


class _Owned:
    __slots__ = ("clients", "lease_ends_s", "snapshot")

    def __init__(self) -> None:
        self.clients: dict[str, None] = {}
        # None while it is connected.
        self.lease_ends_s: float | None = None
        # The number of the snapshot under way; 0 if there is none.
        self.snapshot = 0


class GatewayAdapter:
    """Rows of gateways in, reports out.

    Args:
        lease_s: how long the clients of a lost connection stay.
    """

    source = "gateway"

    def __init__(self, lease_s: float = LEASE_S) -> None:
        # rows_malformed, rows_out_of_date, clients_max, filters_per_client_max, absent_max, leases_ended.
        self.counters: Counter[str] = Counter()
        self.lease_s = lease_s
        self.changes = 0
        self._clients: dict[str, _Client] = {}
        self._owners: dict[Owner, _Owned] = {}
        self._absent: dict[str, None] = {}
        self._expiries: list[tuple[float, str]] = []
        self._snapshots = 0

    def __len__(self) -> int:
        """Return how many clients are known."""
        return len(self._clients)

    def topics(self) -> list[str]:
        """Return nothing: the host broker is not asked."""
        return []

    # --- connections --------------------------------------------------------------------------------------------------

    def connected(self, owner: Owner) -> None:
        """Take note of a connection; its snapshot follows."""
        self._owners.setdefault(owner, _Owned()).lease_ends_s = None

    def disconnected(self, now_s: float, owner: Owner) -> None:
        """Take note of its end (rule 3)."""
        owned = self._owners.get(owner)
        if owned is not None:
            owned.lease_ends_s = now_s + self.lease_s
            owned.snapshot = 0

    def begin_snapshot(self, owner: Owner) -> None:
        """Begin: what is named until the end is all that the owner has."""
        self._snapshots += 1
        self._owned(owner).snapshot = self._snapshots

    def end_snapshot(self, now_s: float, owner: Owner) -> list[Report]:
        """End it, and let those leave that it has not named."""
        owned = self._owned(owner)
        number, owned.snapshot = owned.snapshot, 0
        if not number:
            return []
        reports: list[Report] = []
        for name in list(owned.clients):
            client = self._clients[name]
            if client.seen_in != number:
                reports += self._leave(now_s, name, client, client.expiry_s)
                continue
            stale, client.stale = client.stale, None
            for text in sorted(stale or ()):
                reports.append(Unsubscribed(name, text))
        former = [one for one in self._owners if one[::2] == owner[::2] and one != owner]
        for one in former:
            reports += self._end_owner(now_s, one)
        return reports

    # --- rows ---------------------------------------------------------------------------------------------------------

    def rows(self, now_s: float, owner: Owner, rows: Iterable[object]) -> list[Report]:
        """Take rows, in their order."""
        owned = self._owned(owner)
        reports: list[Report] = []
        for row in rows:
            match row:
                case ["here", str(name), bool(complete), (int() | float() | None) as expiry] if _is_expiry(expiry):
                    reports += self._here(owner, owned, name, complete, _seconds(expiry))
                case ["subscribed", str(name), str(text), int(qos), *_] if type(qos) is int and 0 <= qos <= 2:
                    reports += self._subscribe(owner, owned, name, text, qos)
                case ["unsubscribed", str(name), str(text)]:
                    client = self._clients.get(name)
                    if client is not None and client.owner == owner:
                        client.filters.discard(text)
                        reports.append(Unsubscribed(name, text))
                case ["left", str(name), (int() | float() | None) as expiry] if _is_expiry(expiry):
                    client = self._clients.get(name)
                    if client is None or client.owner != owner:
                        self.counters["rows_out_of_date"] += 1
                    else:
                        reports += self._leave(now_s, name, client, _seconds(expiry))
                case _:
                    self.counters["rows_malformed"] += 1
        if reports:
            self.changes += 1
        return reports

    def _here(self, owner: Owner, owned: _Owned, name: str, complete: bool, expiry_s: float) -> list[Report]:
        client = self._clients.get(name)
        if client is None:
            client = self._admit(name)
            if client is None:
                return []
        self._own(owner, owned, name, client)
        client.expiry_s = expiry_s
        client.expires_at_s = None
        self._absent.pop(name, None)
        client.seen_in = owned.snapshot
        if not owned.snapshot:
            if complete:
                client.filters.clear()
            return [ClientBack(name, session_kept=not complete)]
        if complete:
            # The registry keeps what is named again, and loses the rest at the end of the snapshot.
            # An earlier snapshot may have ended halfway.
            client.stale, client.filters = client.filters | (client.stale or set()), set()
        return [ClientBack(name, session_kept=True)]

    def _subscribe(self, owner: Owner, owned: _Owned, name: str, text: str, qos: int) -> list[Report]:
        client = self._clients.get(name)
        if client is None or client.owner != owner:
            self.counters["rows_out_of_date"] += 1
            return []
        if text not in client.filters and len(client.filters) >= FILTERS_PER_CLIENT_MAX:
            self.counters["filters_per_client_max"] += 1
            return []
        client.filters.add(text)
        if client.stale is not None and owned.snapshot:
            client.stale.discard(text)
        return [Subscribed(name, text, qos)]

    def _admit(self, name: str) -> _Client | None:
        if len(self._clients) >= CLIENTS_MAX:
            self.counters["clients_max"] += 1
            return None
        client = self._clients[name] = _Client()
        return client

    def _own(self, owner: Owner, owned: _Owned, name: str, client: _Client) -> None:
        if client.owner is not None and client.owner != owner:
            former = self._owners.get(client.owner)
            if former is not None:
                former.clients.pop(name, None)
        client.owner = owner
        owned.clients[name] = None

    def _owned(self, owner: Owner) -> _Owned:
        return self._owners.setdefault(owner, _Owned())

    def _leave(self, now_s: float, name: str, client: _Client, expiry_s: float) -> list[Report]:
        if client.owner is not None:
            owned = self._owners.get(client.owner)
            if owned is not None:
                owned.clients.pop(name, None)
        client.owner = None
        client.stale = None
        if expiry_s <= 0:
            del self._clients[name]
            return [ClientLeft(name, Session.ENDED)]
        client.expiry_s = expiry_s
        client.expires_at_s = now_s + expiry_s
        reports: list[Report] = [ClientLeft(name, Session.KEPT, None if math.isinf(expiry_s) else expiry_s)]
        self._absent[name] = None
        if not math.isinf(expiry_s):
            heapq.heappush(self._expiries, (client.expires_at_s, name))
            self._sweep()
        if len(self._absent) > ABSENT_MAX:
            oldest = next(iter(self._absent))
            self.counters["absent_max"] += 1
            reports.append(self._forget(oldest))
        return reports

    def _forget(self, name: str) -> Report:
        self._absent.pop(name, None)
        del self._clients[name]
        return ClientLeft(name, Session.ENDED)

    def _end_owner(self, now_s: float, owner: Owner) -> list[Report]:
        owned = self._owners[owner]
        reports: list[Report] = []
        for name in list(owned.clients):
            client = self._clients[name]
            reports += self._leave(now_s, name, client, client.expiry_s)
        del self._owners[owner]
        return reports

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Report]:
        """End leases and sessions whose time is over."""
        reports: list[Report] = []
        for owner, owned in list(self._owners.items()):
            if owned.lease_ends_s is not None and owned.lease_ends_s <= now_s:
                self.counters["leases_ended"] += bool(owned.clients)
                reports += self._end_owner(now_s, owner)
        while self._expiries and self._expiries[0][0] <= now_s:
            at_s, name = heapq.heappop(self._expiries)
            client = self._clients.get(name)
            if client is not None and client.expires_at_s == at_s:
                reports.append(self._forget(name))
        if reports:
            self.changes += 1
        return reports

    def _sweep(self) -> None:
        """Drop expiries that no longer count, before they are many."""
        if len(self._expiries) > 2 * len(self._absent) + 1024:
            self._expiries = [one for one in self._expiries if self._expires(*one)]
            heapq.heapify(self._expiries)

    def _expires(self, at_s: float, name: str) -> bool:
        client = self._clients.get(name)
        return client is not None and client.expires_at_s == at_s

    # --- over a restart -----------------------------------------------------------------------------------------------

    def dump(self, now_s: float) -> list[list[Any]]:
        """Return what the next process must know: client, expiry, its owner if it is here, seconds left if not."""
        return [
            [
                name,
                None if math.isinf(client.expiry_s) else client.expiry_s,
                None if client.owner is None else list(client.owner),
                None if client.expires_at_s is None or math.isinf(client.expires_at_s) else client.expires_at_s - now_s,
            ]
            for name, client in self._clients.items()
        ]

    def load(
        self, now_s: float, away_s: float, rows: Sequence[object], held: Iterable[tuple[str, str, int]]
    ) -> list[Report]:
        """Take up what `dump` gave before a restart; the leases of all owners begin.

        Args:
            now_s: the time.
            away_s: how long ago the rows were saved.
            rows: as `dump` gave them.
            held: client, filter and QoS of what the registry still holds of this source.

        Returns:
            Reports on clients of which nothing was saved.
        """
        filters: dict[str, set[str]] = {}
        for name, text, _ in held:
            filters.setdefault(name, set()).add(text)
        for row in rows:
            match row:
                case [str(name), (int() | float() | None) as expiry, [str(gateway), str(incarnation), int(number)], _]:
                    if name in filters and _is_expiry(expiry):
                        self._load_here(now_s, name, _seconds(expiry), Owner(gateway, incarnation, number), filters)
                case [str(name), (int() | float() | None) as expiry, None, (int() | float() | None) as left_s]:
                    left_s = math.inf if left_s is None else left_s - away_s
                    if name in filters and _is_expiry(expiry) and left_s > 0:
                        client = self._clients[name] = _Client()
                        client.expiry_s, client.filters = _seconds(expiry), filters.pop(name)
                        client.expires_at_s = now_s + left_s
                        self._absent[name] = None
                        if not math.isinf(left_s):
                            heapq.heappush(self._expiries, (client.expires_at_s, name))
                case _:
                    self.counters["rows_malformed"] += 1
        return [ClientLeft(name, Session.UNKNOWN) for name in sorted(filters)]

    def _load_here(self, now_s: float, name: str, expiry_s: float, owner: Owner, filters: dict[str, set[str]]) -> None:
        client = self._clients[name] = _Client()
        client.expiry_s, client.filters = expiry_s, filters.pop(name)
        owned = self._owned(owner)
        owned.lease_ends_s = now_s + self.lease_s
        self._own(owner, owned, name, client)


def _is_expiry(value: float | None) -> bool:
    return value is None or (type(value) in (int, float) and value >= 0 and math.isfinite(value))


def _seconds(value: float | None) -> float:
    return math.inf if value is None else float(value)
