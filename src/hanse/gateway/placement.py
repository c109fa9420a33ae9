"""The broker for a client, as a pure function of the client and the known state of the brokers.

Rules:

1. By default a client goes to the first broker that is a candidate, in the order of a rendezvous hash of its client id
   over the configured set. Measured values, which two gateways may see differently, have no part in it. So every
   gateway makes the same choice.
2. `score` is BLAKE2b with 8 bytes of output, keyed with the broker's id, of the raw client id, read as a big-endian
   number. An id of more than 64 bytes is replaced by its 64-byte BLAKE2b. The largest score comes first; between equal
   scores the smaller broker id does.
3. The other policies apply to clients without a session before or after this connection. All others are placed by the
   hash whatever the policy: their session must be found again.
4. Every broker appears in the ranking with the reason for its place, or for not being a candidate.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

HASH: Final = "hash"
LATENCY: Final = "latency"
LEAST_CONNECTIONS: Final = "least-connections"
ROUND_ROBIN: Final = "round-robin"
STATIC_RR: Final = "static-rr"
RANDOM: Final = "random"
POLICIES: Final = (HASH, LATENCY, LEAST_CONNECTIONS, ROUND_ROBIN, STATIC_RR, RANDOM)

# EMMA's groups of brokers by round trip, in milliseconds: within one, load decides.
LATENCY_GROUPS_MS: Final = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

_KEY_BYTES_MAX: Final = 64
_SCORES: Final = 1 << 64


class Broker:
    """Configured broker.

    Attributes:
        id: key of the hash; the same at all gateways.
        url: its address for the gateway.
        site: the set that it belongs to.
        reference: its address for redirected clients, if it is not `url`.
        federator: the address of its federator for gateways, if it has one.
    """

    __slots__ = ("federator", "id", "key", "reference", "site", "url")

    def __init__(self, id: str, url: str, site: str = "", reference: str = "", federator: str = "") -> None:  # noqa: A002
        self.id = id
        self.url = url
        self.site = site
        self.reference = reference
        self.federator = federator
        self.key = hash_key(id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Broker) and self.as_tuple() == other.as_tuple()

    def __hash__(self) -> int:
        return hash(self.as_tuple())

    def __repr__(self) -> str:
        return f"Broker({self.id!r}, {self.url!r})"

    def as_tuple(self) -> tuple[str, str, str, str, str]:
        """Return all that is configured."""
        return self.id, self.url, self.site, self.reference, self.federator


class BrokerView:
    """A broker and its known state.

    Attributes:
        verdict: `up`, or why it takes no clients now, such as `refused` or `hung`.
        is_agreed: every gateway knows that it is up. A broker that returned takes clients only then.
        is_drained: an operator moves its clients away.
        offers_less: parts of the contract of this set of brokers that it lacks; empty if none.
        rtt_ms: its measured round trip; None if it was not measured.
        connections: clients that this gateway has there.
    """

    __slots__ = ("broker", "connections", "is_agreed", "is_drained", "offers_less", "rtt_ms", "verdict")

    def __init__(
        self,
        broker: Broker,
        *,
        verdict: str = "up",
        is_agreed: bool = True,
        is_drained: bool = False,
        offers_less: str = "",
        rtt_ms: float | None = None,
        connections: int = 0,
    ) -> None:
        self.broker = broker
        self.verdict = verdict
        self.is_agreed = is_agreed
        self.is_drained = is_drained
        self.offers_less = offers_less
        self.rtt_ms = rtt_ms
        self.connections = connections

    @property
    def obstacle(self) -> str:
        """Return why it accepts no clients; empty if it does."""
        if self.verdict != "up":
            return f"it is {self.verdict}"
        if not self.is_agreed:
            return "it has returned, and not every gateway knows yet"
        if self.is_drained:
            return "it is drained"
        if self.offers_less:
            return f"it offers less than the others: {self.offers_less}"
        return ""


class Query:
    """Known properties of a client at its placement.

    Attributes:
        key: the bytes that are hashed: the client id, or the user name with `placement_key = username`.
        is_transient: it has no session before or after this connection.
        turn: a number that grows by one with each client, for the policies that take turns.
        draw: a random number from 0 to below 1, for `random`.
    """

    __slots__ = ("draw", "is_transient", "key", "turn")

    def __init__(self, key: bytes, *, is_transient: bool = False, turn: int = 0, draw: float = 0.0) -> None:
        self.key = key
        self.is_transient = is_transient
        self.turn = turn
        self.draw = draw


class Entry:
    """One broker's place in a ranking."""

    __slots__ = ("broker", "is_candidate", "reason", "score")

    def __init__(self, broker: Broker, score: int, is_candidate: bool, reason: str) -> None:
        self.broker = broker
        self.score = score
        self.is_candidate = is_candidate
        self.reason = reason


class Ranking:
    """All brokers of the set: first the candidates, in the order in which they are tried."""

    __slots__ = ("entries", "policy", "policy_reason")

    def __init__(self, policy: str, policy_reason: str, entries: list[Entry]) -> None:
        self.policy = policy
        self.policy_reason = policy_reason
        self.entries = entries

    @property
    def chosen(self) -> Broker | None:
        """Return the first candidate; None if there is none."""
        entries = self.entries
        return entries[0].broker if entries and entries[0].is_candidate else None

    @property
    def candidates(self) -> list[Broker]:
        """Return all candidates, in order."""
        return [entry.broker for entry in self.entries if entry.is_candidate]


def hash_key(broker_id: str) -> bytes:
    """Return the key of a broker's hash (rule 2)."""
    raw = broker_id.encode()
    return raw if len(raw) <= _KEY_BYTES_MAX else hashlib.blake2b(raw).digest()


def score(key: bytes, client: bytes) -> int:
    """Return the score of a client at a broker; `key` is the broker's `hash_key` (rule 2). About 1 us."""
    return int.from_bytes(hashlib.blake2b(client, digest_size=8, key=key).digest(), "big")


def choose(query: Query, views: Sequence[BrokerView]) -> Broker | None:
    """Return the first candidate by the hash alone: what `rank` would choose, without the reasons.

    This is the path of every CONNECT with the policy `hash`.
    """
    best: Broker | None = None
    best_score = -1
    client = query.key
    for view in views:
        if view.obstacle:
            continue
        broker = view.broker
        found = score(broker.key, client)
        if best is None or found > best_score or (found == best_score and broker.id < best.id):
            best = broker
            best_score = found
    return best


def rank(query: Query, views: Sequence[BrokerView], policy: str = HASH) -> Ranking:
    """Rank the brokers of a set for a client.

    Args:
        query: the client.
        views: the brokers of the set, in the order in which they are configured.
        policy: one of `POLICIES`.
    """
    assert policy in POLICIES, f"no such policy: {policy}"
    by_hash = [(-score(view.broker.key, query.key), view.broker.id, view) for view in views]
    by_hash.sort(key=_order)
    scores = {broker_id: -negative for negative, broker_id, _ in by_hash}
    hashed = [view for _, _, view in by_hash]
    applied, why = policy, "the configured policy"
    if policy != HASH and not query.is_transient:
        applied, why = HASH, f"the client keeps a session, so the hash decides and not {policy}"
    ordered = _by_policy(applied, query, list(views), hashed)
    good: list[Entry] = []
    bad: list[Entry] = []
    for view, reason in ordered:
        obstacle = view.obstacle
        entry = Entry(view.broker, scores[view.broker.id], not obstacle, obstacle or reason)
        (bad if obstacle else good).append(entry)
    return Ranking(applied, why, good + bad)


def _order(found: tuple[int, str, BrokerView]) -> tuple[int, str]:
    return found[0], found[1]


def _by_policy(
    policy: str, query: Query, configured: list[BrokerView], hashed: list[BrokerView]
) -> list[tuple[BrokerView, str]]:
    if policy == HASH:
        return [(view, f"place {k + 1} by the hash") for k, view in enumerate(hashed)]
    if policy == LATENCY:
        return _by_latency(hashed)
    if policy == LEAST_CONNECTIONS:
        ordered = sorted(hashed, key=_load)
        return [(view, f"{view.connections} clients of this gateway") for view in ordered]
    if policy == RANDOM:
        return _from(configured, int(query.draw * len(configured)), "drawn at random")
    if policy == ROUND_ROBIN:
        # Turns use only brokers that accept clients, so that the one behind a broker that is down gets no more.
        live = [view for view in configured if not view.obstacle]
        rest = [view for view in configured if view.obstacle]
        return _from(live, query.turn, "next in turn") + [(view, "") for view in rest]
    return _from(configured, query.turn, "next in turn, over all brokers of the set")


def _from(views: list[BrokerView], start: int, reason: str) -> list[tuple[BrokerView, str]]:
    if not views:
        return []
    start %= len(views)
    turned = views[start:] + views[:start]
    return [(view, reason if k == 0 else f"{k} behind that one") for k, view in enumerate(turned)]


def latency_group(rtt_ms: float | None) -> int:
    """Return the number of the group of a round trip; the last one is for those not measured."""
    if rtt_ms is None:
        return len(LATENCY_GROUPS_MS) + 1
    for k, bound in enumerate(LATENCY_GROUPS_MS):
        if rtt_ms < bound:
            return k
    return len(LATENCY_GROUPS_MS)


def _load(view: BrokerView) -> int:
    return view.connections


def _by_latency(hashed: list[BrokerView]) -> list[tuple[BrokerView, str]]:
    ordered = sorted(hashed, key=_latency_and_load)
    return [(view, _latency_reason(view)) for view in ordered]


def _latency_and_load(view: BrokerView) -> tuple[int, int]:
    return latency_group(view.rtt_ms), view.connections


def _latency_reason(view: BrokerView) -> str:
    if view.rtt_ms is None:
        return f"round trip not measured, {view.connections} clients"
    group = latency_group(view.rtt_ms)
    low = LATENCY_GROUPS_MS[group - 1] if group else 0.0
    high = f"{LATENCY_GROUPS_MS[group]:g}" if group < len(LATENCY_GROUPS_MS) else "more"
    return f"round trip {view.rtt_ms:.2f} ms (group {low:g} to {high} ms), {view.connections} clients"
