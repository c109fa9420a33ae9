"""Registry of local interest: the reports of all adapters merged into one set of filters.

Rules:

1. A filter is wanted while at least one `(source, client)` holds a subscription to it. Its QoS is the largest held.
2. A subscription expires only if its end may go unnoticed: after a disconnect if nothing tells whether the session is
   kept, after a gap, after a restart, or if the source says so (beacons). A confirmation stops its time. The
   subscriptions of a session that is kept do not expire; only their number is limited.
3. If the source reports the end, the subscription ends at once. There is one exception: a client that reconnects with a
   clean start will nearly always subscribe again within moments. Its filters get that time before the meshes are told.
4. A report beyond the limits is dropped, and counted by reason. So is a filter that never leaves its broker.
5. Pure: time comes in, changes come out. Several reports in one call make one change. A subscription that ends and
   begins again within one call is no change.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from hanse.errors import LocalError, RemoteError
from hanse.interest.filters import NotFederated, check_filter, split_share
from hanse.interest.reports import (
    BridgeGone,
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
from hanse.protocol.topics import matches

_VERSION = 1
# Causes of an expiry that a confirmation by the source cancels.
_CONFIRMED_CAUSES = frozenset({"unconfirmed", "session_unknown"})


@dataclass(frozen=True, slots=True)
class InterestSettings:
    """Times after which interest expires, and limits.

    Attributes:
        absent_clients_max: clients that are not connected and whose sessions are kept. A broker keeps such sessions,
            and messages for them, until the client ends them, so no time ends their interest. If there are more, the
            interest of the client that left first ends.
        unknown_ttl_s: lifetime of the interest of a client that left, if the source cannot tell whether its session is
            kept. The protocol keeps absent memberships for the same hour.
        unconfirmed_ttl_s: lifetime of interest from before a gap or a restart. A client that stays connected through it
            causes no new line, so this is long: too short silences a healthy subscriber, too long forwards unwanted
            publications. A source that can be replayed (a log file) confirms at once. `expired` counts it, for an
            alarm.
        resubscribe_grace_s: lifetime of interest after a clean reconnect.
        filters_max: distinct filters; the protocol's limit of groups.
        clients_max: distinct clients with subscriptions.
        filters_per_client_max: filters of one client, so that it cannot use up the limit of all.
    """

    absent_clients_max: int = 100_000
    unknown_ttl_s: float = 3_600.0
    unconfirmed_ttl_s: float = 30 * 86_400.0
    resubscribe_grace_s: float = 2.0
    filters_max: int = 1_000_000
    clients_max: int = 1_000_000
    filters_per_client_max: int = 100_000


@dataclass(frozen=True, slots=True)
class Change:
    """Difference for the protocol (filters) and for the operator (share names, bridges).

    Attributes:
        added: filters that have become wanted, with their QoS.
        changed: filters whose largest QoS has changed.
        removed: filters that are no longer wanted.
        shares_added: `(name, filter)` of shared subscriptions that are new here.
        shares_removed: those that have ended.
    """

    added: tuple[tuple[str, int], ...] = ()
    changed: tuple[tuple[str, int], ...] = ()
    removed: tuple[str, ...] = ()
    shares_added: tuple[tuple[str, str], ...] = ()
    shares_removed: tuple[tuple[str, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether there is no difference."""
        return not (self.added or self.changed or self.removed or self.shares_added or self.shares_removed)


class _Held:
    """One subscription. It is mutable, because a million of them exist and their times change often."""

    __slots__ = ("cause", "expires_at_s", "filter", "qos", "share")

    def __init__(self, share: str | None, wanted: str, qos: int) -> None:
        self.share = share
        self.filter = wanted
        self.qos = qos
        self.expires_at_s: float | None = None
        self.cause = ""


_Owner = tuple[str, str]  # source, client


class InterestRegistry:
    """Registry: reports in, changes out."""

    def __init__(self, settings: InterestSettings | None = None) -> None:
        self.settings = settings or InterestSettings()
        # Dropped reports, by reason, and expired subscriptions, by the cause of their expiry.
        self.drops: Counter[str] = Counter()
        self.expired: Counter[str] = Counter()
        self._held: dict[_Owner, dict[str, _Held]] = {}
        self._held_count = 0
        # Number of subscriptions that hold a filter, by QoS.
        self._wanted: dict[str, list[int]] = {}
        self._shares: Counter[tuple[str, str]] = Counter()
        self._bridges: set[str] = set()
        # Owners whose client left and whose session is kept, in the order of leaving.
        self._absent: dict[_Owner, None] = {}
        # Times may be outdated: an entry counts only if the subscription still expires then.
        self._expiries: list[tuple[float, _Owner, str]] = []
        self._before: dict[str, int | None] = {}
        self._shares_before: dict[tuple[str, str], bool] = {}

    def apply(self, now_s: float, source: str, reports: Iterable[Report]) -> Change:
        """Apply the reports of one adapter, in order."""
        for report in reports:
            match report:
                case Subscribed(client, wanted, qos, ttl_s):
                    self._subscribe(now_s, (source, client), wanted, qos, ttl_s)
                case Unsubscribed(client, given_up):
                    self._remove((source, client), given_up)
                case ClientLeft(client, session, ttl_s):
                    self._leave(now_s, (source, client), session, ttl_s)
                case ClientBack(client, session_kept):
                    self._absent.pop((source, client), None)
                    until_s = None if session_kept else now_s + self.settings.resubscribe_grace_s
                    self._set_expiry((source, client), until_s, "clean_reconnect")
                case Gap():
                    for owner in [owner for owner in self._held if owner[0] == source]:
                        self._run_out(owner, now_s + self.settings.unconfirmed_ttl_s, "unconfirmed")
                case Confirmed():
                    self._confirm(source)
                case BridgeSeen(name):
                    self._bridges.add(name)
                case BridgeGone(name):
                    self._bridges.discard(name)
                case _:
                    assert_never(report)
        return self._change()

    def expire(self, now_s: float) -> Change:
        """End the subscriptions that have expired by now."""
        while self._expiries and self._expiries[0][0] <= now_s:
            at_s, owner, text = heapq.heappop(self._expiries)
            held = self._held.get(owner, {}).get(text)
            if held is not None and held.expires_at_s == at_s:
                self.expired[held.cause] += 1
                self._remove(owner, text)
        return self._change()

    def next_expiry_s(self) -> float | None:
        """Return the latest time for the next call of `expire`, perhaps earlier than needed."""
        return self._expiries[0][0] if self._expiries else None

    def filters(self) -> dict[str, int]:
        """Return all wanted filters, with their largest QoS."""
        return {wanted: _largest(counts) for wanted, counts in sorted(self._wanted.items())}

    def wanted(self) -> Iterable[str]:
        """Return a live view of the same filters, for immediate use."""
        return self._wanted.keys()

    def matches(self, topic: str) -> bool:
        """Return whether a wanted filter matches a topic; this compares all of them."""
        return any(matches(wanted, topic) for wanted in self._wanted)

    def references(self, wanted: str) -> int:
        """Return how many subscriptions hold this filter."""
        return sum(self._wanted.get(wanted, ()))

    def held_of(self, source: str) -> list[tuple[str, str, int]]:
        """Return client, filter and QoS of all subscriptions that one adapter reported."""
        return [
            (client, text, held.qos)
            for (name, client), texts in sorted(self._held.items())
            if name == source
            for text, held in sorted(texts.items())
        ]

    def shares(self) -> dict[str, frozenset[str]]:
        """Return the share names in use here and their filters.

        A name in use at two brokers gets each message at both.
        """
        names: dict[str, set[str]] = {}
        for name, wanted in self._shares:
            names.setdefault(name, set()).add(wanted)
        return {name: frozenset(names[name]) for name in sorted(names)}

    def has_bridges(self) -> bool:
        """Return whether the host broker has an active bridge of its own."""
        return bool(self._bridges)

    def dump(self, now_s: float, wall_s: float) -> dict[str, Any]:
        """Return the registry as JSON can hold it. `wall_s` is the wall clock, because a restart may be a reboot."""
        subscriptions = [
            [source, client, text, held.qos, None if held.expires_at_s is None else held.expires_at_s - now_s]
            for (source, client), texts in sorted(self._held.items())
            for text, held in sorted(texts.items())
        ]
        absent = [list(owner) for owner in self._absent]
        return {"version": _VERSION, "saved_at_s": wall_s, "subscriptions": subscriptions, "absent": absent}

    def load(self, now_s: float, wall_s: float, document: Mapping[str, Any]) -> Change:
        """Load the result of `dump` from before a restart, unconfirmed, without subscriptions that expired meanwhile.

        Raises:
            LocalError: the document is not one of this registry.
        """
        version = document.get("version")
        rows = document.get("subscriptions")
        saved_at_s = document.get("saved_at_s")
        if version != _VERSION or not isinstance(rows, list) or not isinstance(saved_at_s, int | float):
            raise LocalError(
                f"The stored interest has version {version!r}, expected {_VERSION} with its list of subscriptions; "
                "move the file away to begin without stored interest."
            )
        # A wall clock that stepped back must not lengthen anything.
        away_s = max(0.0, wall_s - min(max(saved_at_s, 0), wall_s))
        for row in rows:
            try:
                source, client, text, qos, left_s = row
                source, client, text = str(source), str(client), str(text)
                left_s = None if left_s is None else float(left_s) - away_s
                # JSON in Python has NaN and Infinity, times that no clock reaches.
                left_s = left_s if left_s is None or math.isfinite(left_s) else 0.0
            except (OverflowError, TypeError, ValueError) as error:
                raise LocalError(
                    "The stored interest holds a row that is not [source, client, filter, qos, seconds left]; "
                    "move the file away to begin without stored interest."
                ) from error
            if left_s is not None and left_s <= 0:
                continue
            if text in self._held.get((source, client), {}):
                continue  # already reported since the start: newer than the file
            ttl_s = self.settings.unconfirmed_ttl_s
            self._subscribe(now_s, (source, client), text, qos, ttl_s if left_s is None else min(ttl_s, left_s))
            if (held := self._held.get((source, client), {}).get(text)) is not None:
                held.cause = "unconfirmed"
        self._load_absent(document.get("absent"))
        return self._change()

    def _load_absent(self, rows: object) -> None:
        """Take up which clients were away, in the order in which they left; ignore rows that are not ours."""
        for row in rows if isinstance(rows, list) else ():
            match row:
                case [str(source), str(client)]:
                    self._keep((source, client))
                case _:
                    continue

    def _subscribe(self, now_s: float, owner: _Owner, text: str, qos: int, ttl_s: float | None) -> None:
        if type(qos) is not int or not 0 <= qos <= 2:
            self.drops["qos_out_of_range"] += 1
            return
        texts = self._held.get(owner, {})
        held = texts.get(text)
        if held is None:
            held = self._admit(owner, texts, text, qos)
            if held is None:
                return
        elif held.qos != qos:
            self._note(held.filter)
            self._wanted[held.filter][held.qos] -= 1
            self._wanted[held.filter][qos] += 1
            held.qos = qos
        self._expire_at(owner, text, held, None if ttl_s is None else now_s + ttl_s, "not_renewed")

    def _admit(self, owner: _Owner, texts: dict[str, _Held], text: str, qos: int) -> _Held | None:
        try:
            share, wanted = split_share(text)
            check_filter(wanted)
        except NotFederated:
            self.drops["filter_never_federated"] += 1
            return None
        except RemoteError:
            self.drops["filter_malformed"] += 1
            return None
        settings = self.settings
        if owner not in self._held and len(self._held) >= settings.clients_max:
            self.drops["clients_max"] += 1
            return None
        if len(texts) >= settings.filters_per_client_max:
            self.drops["filters_per_client_max"] += 1
            return None
        if wanted not in self._wanted and len(self._wanted) >= settings.filters_max:
            self.drops["filters_max"] += 1
            return None
        self._note(wanted)
        held = _Held(share, wanted, qos)
        self._held.setdefault(owner, texts)[text] = held
        self._held_count += 1
        self._wanted.setdefault(wanted, [0, 0, 0])[qos] += 1
        if share is not None:
            self._shares_before.setdefault((share, wanted), (share, wanted) in self._shares)
            self._shares[share, wanted] += 1
        return held

    def _remove(self, owner: _Owner, text: str) -> None:
        texts = self._held.get(owner)
        held = texts.pop(text, None) if texts is not None else None
        if texts is None or held is None:
            return  # Mosquitto also logs unsubscriptions of clients that never subscribed
        self._held_count -= 1
        if not texts:
            del self._held[owner]
            self._absent.pop(owner, None)
        self._note(held.filter)
        counts = self._wanted[held.filter]
        counts[held.qos] -= 1
        if not any(counts):
            del self._wanted[held.filter]
        if held.share is not None:
            key = (held.share, held.filter)
            self._shares_before.setdefault(key, True)
            self._shares[key] -= 1
            if not self._shares[key]:
                del self._shares[key]

    def _leave(self, now_s: float, owner: _Owner, session: Session, ttl_s: float | None) -> None:
        match session:
            case Session.ENDED:
                for text in list(self._held.get(owner, {})):
                    self._remove(owner, text)
            case Session.KEPT:
                self._keep(owner)
                if ttl_s is not None:
                    self._run_out(owner, now_s + ttl_s, "session_kept")
            case Session.UNKNOWN:
                self._run_out(owner, now_s + self.settings.unknown_ttl_s, "session_unknown")
            case _:
                assert_never(session)

    def _keep(self, owner: _Owner) -> None:
        """Note a session that is kept without its client, and end the oldest one if there are too many."""
        if owner not in self._held:
            return
        self._absent.pop(owner, None)
        self._absent[owner] = None
        if len(self._absent) > self.settings.absent_clients_max:
            oldest = next(iter(self._absent))
            for text in list(self._held[oldest]):
                self.expired["absent_clients_max"] += 1
                self._remove(oldest, text)

    def _confirm(self, source: str) -> None:
        """Stop the expiry of everything that waits for confirmation by this source."""
        for owner, texts in self._held.items():
            if owner[0] == source:
                for held in texts.values():
                    if held.cause in _CONFIRMED_CAUSES:
                        held.expires_at_s = None

    def _run_out(self, owner: _Owner, at_s: float, cause: str) -> None:
        """Let a client's subscriptions expire at a time, unless they expire sooner."""
        for text, held in self._held.get(owner, {}).items():
            if held.expires_at_s is None or held.expires_at_s > at_s:
                self._expire_at(owner, text, held, at_s, cause)

    def _set_expiry(self, owner: _Owner, at_s: float | None, cause: str) -> None:
        for text, held in self._held.get(owner, {}).items():
            self._expire_at(owner, text, held, at_s, cause)

    def _expire_at(self, owner: _Owner, text: str, held: _Held, at_s: float | None, cause: str) -> None:
        if held.expires_at_s == at_s:
            return
        held.expires_at_s = at_s
        held.cause = cause
        if at_s is not None:
            heapq.heappush(self._expiries, (at_s, owner, text))
            self._sweep()

    def _sweep(self) -> None:
        """Drop outdated times before they accumulate: a beacon renewed for days leaves many behind."""
        if len(self._expiries) < 2 * self._held_count + 1024:
            return
        self._expiries = [
            (held.expires_at_s, owner, text)
            for owner, texts in self._held.items()
            for text, held in texts.items()
            if held.expires_at_s is not None
        ]
        heapq.heapify(self._expiries)

    def _note(self, wanted: str) -> None:
        if wanted not in self._before:
            counts = self._wanted.get(wanted)
            self._before[wanted] = None if counts is None else _largest(counts)

    def _change(self) -> Change:
        added: list[tuple[str, int]] = []
        changed: list[tuple[str, int]] = []
        removed: list[str] = []
        for wanted, before in sorted(self._before.items()):
            counts = self._wanted.get(wanted)
            if counts is None:
                if before is not None:
                    removed.append(wanted)
                continue
            now = _largest(counts)
            if before is None:
                added.append((wanted, now))
            elif before != now:
                changed.append((wanted, now))
        shares = sorted(self._shares_before.items())
        self._before = {}
        self._shares_before = {}
        return Change(
            tuple(added),
            tuple(changed),
            tuple(removed),
            tuple(key for key, was_there in shares if not was_there and key in self._shares),
            tuple(key for key, was_there in shares if was_there and key not in self._shares),
        )


def _largest(counts: list[int]) -> int:
    return 2 if counts[2] else 1 if counts[1] else 0
