"""Ledger of every subscription that a broker's log reported, checked against the broker's own counts.

The log tells of subscriptions only while somebody listens, and it does not tell how an MQTT 5 session ends. The broker
also publishes how many subscriptions it holds. The difference shows both what the log never told and what has ended
unseen. The ledger owns this comparison; it stands between the reader of the log and the registry.

Rules:

1. The ledger holds every (client, filter) that was ever reported and not ended, also filters that never cross and the
   federator's own, because the broker counts them all.
2. Counts arrive in the same session and in the same order as log lines. So at every tick, "excess" is exactly the
   number of subscriptions that the broker holds and the ledger does not (negative: the other way round).
3. Subscriptions are *unknown* if the excess was above 0 at two ticks in a row. Topics of configured bridges, which are
   never logged, are subtracted first.
4. An MQTT 5 client that left is *uncertain* until the next tick. Nothing missing since the last tick means that its
   session is kept. As much missing as all uncertain clients had means that their sessions ended. Otherwise the number
   of disconnected clients decides, then the only combination of clients that explains what is missing. If several do,
   the clients stay *doubtful*: interest stays, and rule 6 can end it. Sessions of federators that began clean are not
   uncertain: they end with their connections.
5. Nothing is ended at a tick at which an unknown subscription may have ended as well.
6. The broker acknowledges a publication with "no matching subscribers" exactly if nobody subscribes. That ends the
   doubtful and uncertain subscriptions that match its topic.
7. After a gap everything is doubtful. A tick without excess confirms everything. If the broker holds more than the
   ledger at two ticks, nothing shows that anything has ended: subscriptions stay doubtful, but time does not end them.
8. A client that reconnects to its session has all that the ledger holds of it, so all of it is reported again.
9. A *snapshot* lists what the broker holds, and reaches the ledger by another way than the log. So of clients that the
   log named since the snapshot was asked for, the log is right, and of all others the snapshot.
10. If as many subscriptions are missing as are doubtful, all of these have ended.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hanse.errors import RemoteError
from hanse.interest.reports import (
    BridgeSeen,
    ClientBack,
    ClientLeft,
    Confirmed,
    Gap,
    Report,
    Session,
    Subscribed,
    Unsubscribed,
)

# Client ids of the broker's own bridges begin with this, unless they are configured; the name of the bridge follows.
BRIDGE_PREFIX = "local."
# As many as the registry holds filters. Beyond it the counts can no longer be compared.
SUBSCRIPTIONS_MAX = 1_000_000
# Clients that left in one tick and are distinguished by their number of subscriptions: 2 to this power combinations.
_COMBINED_MAX = 10


class Counts(NamedTuple):
    """The broker's counts at one tick.

    Attributes:
        ordinary: subscriptions without a share name.
        shared: subscriptions with one; None if the broker did not say, so that they cannot be compared.
        away: sessions whose client is not connected; None if the broker does not say.
    """

    ordinary: int
    shared: int | None
    away: int | None = None


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Result of the comparison, for metrics and health.

    Attributes:
        known: subscriptions in the ledger, the federator's own included.
        unknown: subscriptions that the broker holds and the log never told; None while that cannot be known.
        ended_unseen: subscriptions in the ledger that the broker does not hold; None while that cannot be known.
        doubtful: subscriptions in the ledger that may have ended.
        unknown_shared: how many of the unknown ones are shared subscriptions.
    """

    known: int
    unknown: int | None
    ended_unseen: int | None
    doubtful: int
    unknown_shared: int = 0


class _Client:
    """One client id with its subscriptions. Mutable, because there may be a million."""

    __slots__ = ("doubtful", "filters", "is_away", "is_temporary", "is_undecided")

    def __init__(self) -> None:
        # Filter to QoS.
        self.filters: dict[str, int] = {}
        self.doubtful: set[str] = set()
        # Whether its session is known to be among the broker's disconnected ones.
        self.is_away = False
        # Whether it left since the last tick and its session's fate is open.
        self.is_undecided = False
        # Whether its session ends with its connection, although the log does not tell.
        self.is_temporary = False


class Ledger:
    """Reports of a log reader in, reports for the registry out.

    Args:
        own_prefix: prefix of the client ids of federators, whose subscriptions are no interest.
        counters: counts `lines_of_our_own` and `ledger_full`.
        bridge_topics: number of topics that the bridges in the broker's configuration subscribe to.

    Attributes:
        changes: number of changes so far; equal numbers mean that `dump` returns the same.
        gaps, ticks: number of gaps and of the broker's ticks so far.
    """

    def __init__(
        self,
        own_prefix: str,
        counters: Counter[str],
        *,
        bridge_topics: int = 0,
        subscriptions_max: int = SUBSCRIPTIONS_MAX,
    ) -> None:
        self._own_prefix = own_prefix
        self._counters = counters
        self._bridge_topics = bridge_topics
        self._subscriptions_max = subscriptions_max
        self._clients: dict[str, _Client] = {}
        self._ordinary = 0
        self._shared = 0
        self._undecided: dict[str, _Client] = {}
        self._doubtful = 0
        self._is_complete = True
        self.changes = 0
        # Excess at the last two ticks; None before there was one.
        self._excess: tuple[int, int] | None = None
        self._excess_before: tuple[int, int] | None = None
        # Number of disconnected sessions: at the last tick, known changes since, and whether there may be unknown ones.
        self._away: int | None = None
        self._away_known = 0
        self._away_change = 0
        self._is_away_open = False
        # Whether an unknown or doubtful subscription may have ended since the last tick (rule 5).
        self._is_open = False
        # Clients that the log named since a snapshot was asked for; None if none was.
        self._named: set[str] | None = None
        # Client ids under which bridges of the broker's own subscribe, which the log never names.
        self._bridges: set[str] = set()
        self._bridge_count = 0
        # Whether subscriptions expire since a gap.
        self._is_time_running = False
        self.gaps = 0
        self.ticks = 0

    # --- reports --------------------------------------------------------------------------------------------------

    @property
    def has_counts(self) -> bool:
        """Return whether the broker's counts have been compared since the last gap."""
        return self._excess is not None

    def take(self, reports: Iterable[Report]) -> list[Report]:
        """Enter reports of the log; return those for the registry."""
        passed: list[Report] = []
        for report in reports:
            match report:
                case Subscribed(client, wanted, qos):
                    self._add(client, wanted, qos)
                case Unsubscribed(client, given_up):
                    if not self._drop(client, given_up):
                        self._is_open = True
                case ClientLeft(client, session):
                    report = ClientLeft(client, self._leave(client, session))  # noqa: PLW2901
                case ClientBack(client, session_kept):
                    self._come(client, session_kept=session_kept)
                case Gap():
                    self.gaps += 1
                    self._doubt_everything()
                case BridgeSeen(name):
                    passed += self._know_bridge(BRIDGE_PREFIX + name)
                case _:
                    pass
            client_id = getattr(report, "client", None)
            if client_id is not None and self._named is not None:
                self._named.add(client_id)
            if client_id is not None and client_id.startswith(self._own_prefix):
                self._counters["lines_of_our_own"] += 1
                continue
            passed.append(report)
            if isinstance(report, ClientBack) and report.session_kept:
                passed += self._all_of(report.client)
        return passed

    def _know_bridge(self, client_id: str) -> list[Report]:
        """Note a client id of a bridge; what a snapshot showed of it before is no interest."""
        self._bridges.add(client_id)
        client = self._clients.get(client_id)
        if client is None:
            return []
        filters = list(client.filters)
        self._bridge_count += len(filters)
        self._end(client_id, client)
        return [Unsubscribed(client_id, wanted) for wanted in filters]

    def _all_of(self, client_id: str) -> list[Report]:
        client = self._clients.get(client_id)
        return [] if client is None else [Subscribed(client_id, wanted, qos) for wanted, qos in client.filters.items()]

    def _add(self, client_id: str, wanted: str, qos: int) -> None:
        client = self._clients.get(client_id)
        if client is None:
            client = self._new_client(client_id)
            if client_id not in self._clients:
                return
        if wanted not in client.filters:
            if self._ordinary + self._shared >= self._subscriptions_max:
                self._counters["ledger_full"] += 1
                self._is_complete = False
                return
            self._count(wanted, 1)
            if self._unknown_before() > 0:
                # It may have been one of the unknown subscriptions, made again.
                self._is_open = True
        elif wanted in client.doubtful:
            client.doubtful.discard(wanted)
            self._doubtful -= 1
            self._is_open = True
        client.filters[wanted] = qos

    def _new_client(self, client_id: str) -> _Client:
        """Return an entry for a client; beyond the limit it is not kept, and the counts can no longer be compared."""
        client = _Client()
        if len(self._clients) >= self._subscriptions_max:
            self._counters["ledger_full"] += 1
            self._is_complete = False
        else:
            self._clients[client_id] = client
        return client

    def _drop(self, client_id: str, given_up: str) -> bool:
        """Remove one subscription; return False if it was not known, or may have ended before."""
        client = self._clients.get(client_id)
        if client is None or client.filters.pop(given_up, None) is None:
            return False
        self._count(given_up, -1)
        was_doubtful = given_up in client.doubtful
        if was_doubtful:
            client.doubtful.discard(given_up)
            self._doubtful -= 1
        self._forget_if_empty(client_id, client)
        return not was_doubtful

    def _count(self, wanted: str, change: int) -> None:
        self.changes += 1
        if wanted.startswith("$share/"):
            self._shared += change
        else:
            self._ordinary += change

    def _leave(self, client_id: str, session: Session) -> Session:
        """Return what the registry is to believe of the session."""
        client = self._clients.get(client_id)
        if client is not None and client.is_temporary:
            session = Session.ENDED
        if session is Session.ENDED:
            if client is not None:
                self._note_back(client)
                self._end(client_id, client)
            else:
                self._note_unknown()
            return session
        if client is None:
            # Without subscriptions it is of interest only for the number of disconnected sessions.
            client = self._new_client(client_id)
            self._is_open = self._is_open or self._unknown_before() > 0
        if session is Session.KEPT:
            if not client.is_away:
                self._away_change += 1
                client.is_away = True
                self._away_known += 1
            return session
        self.changes += 1
        if not client.is_away and not client.is_undecided:
            client.is_undecided = True
            self._undecided[client_id] = client
        # Without counts only time can end it.
        return Session.KEPT if self.has_counts else Session.UNKNOWN

    def _come(self, client_id: str, *, session_kept: bool) -> None:
        self.changes += 1
        client = self._clients.get(client_id)
        if client is None:
            self._note_unknown()
            client = self._new_client(client_id)
        else:
            self._note_back(client)
        if session_kept:
            client.is_temporary = False
            if client.is_undecided:
                # It is connected again: no longer among the sessions whose number may tell, but its old subscriptions
                # may be gone with its old session.
                client.is_undecided = False
                del self._undecided[client_id]
                self._doubt(client)
                self._is_away_open = True
            return
        self._end(client_id, client)
        self._new_client(client_id).is_temporary = client_id.startswith(self._own_prefix)

    def _note_back(self, client: _Client) -> None:
        """Note that a session no longer counts as disconnected."""
        if client.is_away:
            client.is_away = False
            self._away_known -= 1
            self._away_change -= 1
        elif client.is_undecided:
            pass  # it counted at neither tick, or the fate of its former session is asked for no more
        elif client.doubtful:
            self._is_away_open = True

    def _note_unknown(self) -> None:
        """Note that a session which the ledger does not know may have been among the disconnected ones."""
        if self._away is None or self._away > self._away_known:
            self._is_away_open = True
        if self._unknown_before() > 0:
            self._is_open = True

    def _unknown_before(self) -> int:
        return 1 if self._excess is None else max(0, self._excess[0]) + max(0, self._excess[1])

    def _end(self, client_id: str, client: _Client) -> None:
        """Remove a client with all of its subscriptions."""
        if client.doubtful:
            self._is_open = True
            self._doubtful -= len(client.doubtful)
            client.doubtful.clear()
        for wanted in client.filters:
            self._count(wanted, -1)
        client.filters.clear()
        self._undecided.pop(client_id, None)
        client.is_undecided = False
        if client.is_away:
            client.is_away = False
            self._away_known -= 1
        self._clients.pop(client_id, None)

    def _forget_if_empty(self, client_id: str, client: _Client) -> None:
        if not client.filters and not client.is_away and not client.is_undecided:
            self._clients.pop(client_id, None)

    def _doubt(self, client: _Client) -> None:
        self._doubtful += len(client.filters) - len(client.doubtful)
        client.doubtful = set(client.filters)

    def _doubt_everything(self) -> None:
        self._is_time_running = True
        for client in self._clients.values():
            self._doubt(client)
            client.is_undecided = False
        self._undecided.clear()
        self._excess = self._excess_before = None
        self._away = None
        self._is_open = self._is_away_open = True

    # --- counts ---------------------------------------------------------------------------------------------------

    def tick(self, counts: Counts) -> list[Report]:
        """Compare with the broker's counts of one moment; return reports for the registry."""
        self.ticks += 1
        reports: list[Report] = []
        if self._undecided:
            reports += self._decide(counts)
        self._excess_before = self._excess
        self._excess = self._excess_of(counts)
        if self._doubtful and self._excess == (0, 0) and self._is_complete:
            self._believe_everything()
            reports.append(Confirmed())
        elif self._doubtful and self._have_all_doubtful_ended():
            reports += self._end_doubtful(lambda _: True)
            self._excess = self._excess_before = (0, 0)
        elif self._is_time_running and self._shows_no_end():
            self._is_time_running = False
            reports.append(Confirmed())
        elif self._excess_before is not None and self._ended_unseen():
            for client in self._clients.values():
                if client.is_away:
                    self._doubt(client)
        self._away = counts.away
        self._away_change = 0
        self._is_away_open = self._is_open = False
        return reports

    def _shows_no_end(self) -> bool:
        """Return whether the broker held no less than the ledger at two ticks (rule 7)."""
        ticks = (self._excess, self._excess_before)
        return self._is_complete and all(one is not None and min(one) >= 0 for one in ticks)

    def _excess_of(self, counts: Counts) -> tuple[int, int]:
        shared = 0 if counts.shared is None else counts.shared - self._shared
        return counts.ordinary - max(self._bridge_topics, self._bridge_count) - self._ordinary, shared

    def _decide(self, counts: Counts) -> list[Report]:
        """Decide what became of the sessions of those who left since the last tick (rule 4)."""
        undecided, self._undecided = self._undecided, {}
        for client in undecided.values():
            client.is_undecided = False
        ended = self._ended_among(undecided, counts)
        reports: list[Report] = []
        for client_id, client in undecided.items():
            if ended is None:
                self._doubt(client)
                self._forget_if_empty(client_id, client)
            elif client_id in ended:
                self._end(client_id, client)
                if not client_id.startswith(self._own_prefix):
                    reports.append(ClientLeft(client_id, Session.ENDED))
            elif client.filters:
                client.is_away = True
                self._away_known += 1
            else:
                self._forget_if_empty(client_id, client)
        return reports

    def _ended_among(self, undecided: Mapping[str, _Client], counts: Counts) -> set[str] | None:
        """Return the clients whose sessions ended; None if that is not known."""
        before = self._excess
        if not self._is_complete:
            return None
        if before is None:
            return set() if self._excess_of(counts) == (0, 0) else None
        excess = self._excess_of(counts)
        missing = (before[0] - excess[0], before[1] - excess[1])
        if missing == (0, 0):
            return set()
        if self._is_open and (self._unknown_before() or self._doubtful):
            return None
        sizes = {client_id: _size(client) for client_id, client in undecided.items() if client.filters}
        total = (sum(size[0] for size in sizes.values()), sum(size[1] for size in sizes.values()))
        if missing == total:
            return set(sizes)
        if not self._is_away_open and counts.away is not None and self._away is not None:
            kept = counts.away - self._away - self._away_change
            if kept <= 0:
                return set(sizes)
            if kept >= len(undecided):
                return set()
        return _only_combination(sizes, missing)

    def _ended_unseen(self) -> int:
        now, before = self._excess, self._excess_before
        if now is None or before is None:
            return 0
        return min(max(0, -now[0]), max(0, -before[0])) + min(max(0, -now[1]), max(0, -before[1]))

    def _believe_everything(self) -> None:
        for client in self._clients.values():
            client.doubtful = set()
        self._doubtful = 0

    @property
    def state(self) -> LedgerState:
        """The result of the comparison so far."""
        known = self._ordinary + self._shared
        now, before = self._excess, self._excess_before
        if now is None or before is None or not self._is_complete:
            return LedgerState(known, None, None, self._doubtful)
        shared = max(0, min(now[1], before[1]))
        unknown = max(0, min(now[0], before[0])) + shared
        return LedgerState(known, unknown, self._ended_unseen(), self._doubtful, shared)

    def unmatched(self, is_match: Callable[[str], bool]) -> list[Report]:
        """End the doubtful subscriptions that a topic without subscribers matches (rule 6)."""
        for client in self._undecided.values():
            if any(map(is_match, client.filters)):
                # Its session has ended, or it would have this subscription.
                self._doubt(client)
        return self._end_doubtful(is_match) if self._doubtful else []

    def _end_doubtful(self, is_match: Callable[[str], bool]) -> list[Report]:
        reports: list[Report] = []
        for client_id, client in list(self._clients.items()):
            for wanted in sorted(client.doubtful):
                if is_match(wanted):
                    self._drop(client_id, wanted)
                    self._is_open = True
                    if not client_id.startswith(self._own_prefix):
                        reports.append(Unsubscribed(client_id, wanted))
        return reports

    def _have_all_doubtful_ended(self) -> bool:
        """Return whether at two ticks exactly the doubtful subscriptions were missing (rule 10)."""
        if self._excess is None or self._excess != self._excess_before or not self._is_complete or self._is_open:
            return False
        doubtful = [wanted for client in self._clients.values() for wanted in client.doubtful]
        shared = sum(wanted.startswith("$share/") for wanted in doubtful)
        return self._excess == (shared - len(doubtful), -shared)

    @property
    def is_uncertain(self) -> bool:
        """Return whether there are doubtful subscriptions, or clients that are uncertain."""
        return bool(self._doubtful or self._undecided)

    def shared_filters(self) -> set[str]:
        """Return the filters of all known shared subscriptions, without their share names."""
        held = (
            wanted for client in self._clients.values() for wanted in client.filters if wanted.startswith("$share/")
        )
        return {"/".join(wanted.split("/")[2:]) for wanted in held}

    # --- snapshots ------------------------------------------------------------------------------------------------

    def begin_snapshot(self) -> None:
        """Note that a snapshot is about to be asked for: from here on the log is newer."""
        self._named = set()

    def abandon_snapshot(self) -> None:
        """Note that the snapshot did not come."""
        self._named = None

    def require_own(self, held: Iterable[tuple[str, str, int]]) -> None:
        """Refuse a snapshot without any subscription of a federator: it is another broker's, or none at all.

        Raises:
            RemoteError: there is none.
        """
        if not any(client_id.startswith(self._own_prefix) for client_id, _, _ in held):
            raise RemoteError("it does not show this federator's own subscriptions; is it another broker's?")

    def take_snapshot(self, held: Iterable[tuple[str, str, int]], *, is_whole: bool) -> list[Report]:
        """Enter a snapshot (rule 9); return reports for the registry.

        Args:
            held: client, filter and QoS of the ordinary subscriptions.
            is_whole: whether what is not in it has ended.
        """
        named, self._named = self._named or set(), None
        snapshot: dict[str, dict[str, int]] = {}
        self._bridge_count = 0
        for client_id, wanted, qos in held:
            if client_id in self._bridges:
                self._bridge_count += 1
            elif client_id not in named:
                snapshot.setdefault(client_id, {})[wanted] = qos
        reports = self._end_absent(snapshot, named) if is_whole else []
        for client_id, filters in snapshot.items():
            for wanted, qos in filters.items():
                client = self._clients.get(client_id)
                if client is None or wanted not in client.filters or wanted in client.doubtful:
                    self._add(client_id, wanted, qos)
                    if not client_id.startswith(self._own_prefix):
                        reports.append(Subscribed(client_id, wanted, qos))
        # What is missing at the next tick says nothing of the sessions that ended since the last one.
        for client in self._undecided.values():
            client.is_undecided = False
            self._doubt(client)
        self._undecided.clear()
        self._excess = self._excess_before = None
        return reports

    def take_hints(self, held: Iterable[tuple[str, str, int]]) -> list[Report]:
        """Enter subscriptions that the broker held at some time, as doubtful ones; return reports for the registry."""
        named, self._named = self._named or set(), None
        reports: list[Report] = []
        for client_id, wanted, qos in held:
            client = self._clients.get(client_id)
            if client_id in named or (client is not None and wanted in client.filters):
                continue
            self._add(client_id, wanted, qos)
            client = self._clients.get(client_id)
            if client is None or wanted not in client.filters:
                continue
            client.doubtful.add(wanted)
            self._doubtful += 1
            if not client_id.startswith(self._own_prefix):
                reports.append(Subscribed(client_id, wanted, qos))
        if reports:
            self._excess = self._excess_before = None
        return reports

    def _end_absent(self, snapshot: Mapping[str, Mapping[str, int]], named: set[str]) -> list[Report]:
        """End the ordinary subscriptions that a whole snapshot does not show."""
        reports: list[Report] = []
        for client_id, client in list(self._clients.items()):
            if client_id in named:
                continue
            there = snapshot.get(client_id, {})
            for wanted in [one for one in client.filters if one not in there and not one.startswith("$share/")]:
                self._drop(client_id, wanted)
                if not client_id.startswith(self._own_prefix):
                    reports.append(Unsubscribed(client_id, wanted))
        return reports

    # --- restart --------------------------------------------------------------------------------------------------

    def dump(self) -> list[list[Any]]:
        """Return the ledger as JSON can hold it: rows of client, whether it is away, and its filters with QoS."""
        return [
            [client_id, client.is_away, sorted(client.filters.items())]
            for client_id, client in sorted(self._clients.items())
            if client.filters
        ]

    def load(self, rows: object) -> None:
        """Take up what `dump` returned before a restart, all of it doubtful; skip rows that are not ours."""
        if not isinstance(rows, list):
            return
        for row in rows:
            match row:
                case [str(client_id), bool(is_away), list(filters)]:
                    for item in filters:
                        match item:
                            case [str(wanted), int(qos)]:
                                self._add(client_id, wanted, qos)
                            case _:
                                continue
                    client = self._clients.get(client_id)
                    if client is not None and is_away and not client.is_away:
                        client.is_away = True
                        self._away_known += 1
                case _:
                    continue
        self._doubt_everything()


def plain_filter(wanted: str) -> str:
    """Return a filter without its share name."""
    return wanted.split("/", 2)[2] if wanted.startswith("$share/") and wanted.count("/") > 1 else wanted


def _size(client: _Client) -> tuple[int, int]:
    shared = sum(wanted.startswith("$share/") for wanted in client.filters)
    return len(client.filters) - shared, shared


def _only_combination(sizes: Mapping[str, tuple[int, int]], missing: tuple[int, int]) -> set[str] | None:
    """Return the only set of clients that together had what is missing; None if there is none, or another one."""
    if len(sizes) > _COMBINED_MAX:
        return None
    found: set[str] | None = None
    for count in range(1, len(sizes)):
        for some in itertools.combinations(sizes, count):
            if (sum(sizes[one][0] for one in some), sum(sizes[one][1] for one in some)) == missing:
                if found is not None:
                    return None
                found = set(some)
    return found
