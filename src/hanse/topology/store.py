"""Interface of a store of the topology. SQLite and MongoDB implement it; one test suite checks both.

Rules:

1. One manager leads: the holder of the lease. Its term grows each time the lease is taken. Every write names the term.
   A write of an older term changes nothing that a newer one has read, and raises `Deposed`.
2. A commit counts when it returns: the caller answers, announces and tells others only after that.
3. A lease holds no time, because the clocks of two machines differ. Its holder increments `beat`. A watcher takes it if
   the beat stood still for the watcher's own measure of time (`lease`).
4. A token is spent by one atomic step: if many try a single use at once, one succeeds.
5. Every failure of the store itself is `Unavailable`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from hanse.errors import Unavailable
from hanse.topology.model import (
    Federator,
    Link,
    LinkKind,
    Probe,
    State,
    Topology,
    format_time,
    link_of,
    listing_2,
    parse_time,
)

# Some 3 MB. A federation of 1,000 whose brokers all fail and return writes a fifth of it.
AUDIT_ENTRIES_MAX = 10_000


class Deposed(Unavailable):
    """Another manager holds the lease now."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease of the leader. An empty holder means that it was released."""

    holder: str
    url: str
    term: int
    beat: int


@dataclass(frozen=True, slots=True)
class Token:
    """Join or read token as it is stored: never its secret, only the hash. `uses_left` None: any number."""

    id: str
    hash: str
    role: str
    label: str
    created_s: float
    expires_s: float | None
    uses_left: int | None
    is_revoked: bool = False


@dataclass(frozen=True, slots=True)
class Revocation:
    """Expulsion of one federator, by the address of its broker. It has no end."""

    key: str
    id: int
    revoked_s: float

    def covers(self, token: Token | None) -> bool:
        """Return whether a federator that this token admitted is expelled; a token made later admits it again."""
        return token is None or token.created_s <= self.revoked_s


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change: its time, author, source, action and subject. `detail` holds texts and numbers."""

    at_s: float
    actor: str
    source: str
    action: str
    subject: str
    detail: Mapping[str, object]


class Store(Protocol):
    """Storage that outlives the manager."""

    async def read_lease(self) -> Lease | None:
        """Return the current lease."""

    async def take_lease(self, seen: Lease | None, holder: str, url: str) -> Lease | None:
        """Take the lease if it still equals `seen`; return None if another manager was faster."""

    async def renew_lease(self, lease: Lease) -> Lease:
        """Increment the beat. Raise `Deposed` if another manager leads."""

    async def release_lease(self, lease: Lease) -> None:
        """Release the lease, so that the next manager need not wait. Do nothing for a lease that is already lost."""

    async def load(self, lease: Lease | None) -> Topology:
        """Read everything; with a lease, also block the writes of older terms."""

    async def commit(self, lease: Lease, topology: Topology, changed: Collection[int], gone: Collection[int]) -> None:
        """Store the epoch and the documents of `changed`, delete those of `gone`. Raise `Deposed` if not leading."""

    async def record_health(self, lease: Lease, federators: Sequence[Federator]) -> None:
        """Store latency and time of the last check, nothing else. Raise `Deposed` if not leading."""

    async def read_secret(self, fresh: bytes) -> bytes:
        """Return the federation's secret; `fresh` becomes it if there is none yet."""

    async def add_token(self, token: Token) -> None:
        """Store a new token."""

    async def find_token(self, token: str) -> Token | None:
        """Return the token with this id."""

    async def list_tokens(self) -> list[Token]:
        """Return all tokens, the oldest first."""

    async def revoke_token(self, token: str) -> bool:
        """Revoke a token; return False if there is none with this id."""

    async def spend_token(self, token: str, now_s: float) -> bool:
        """Take one use of a token that is neither revoked nor expired nor used up; return False if there is none."""

    async def refund_token(self, token: str) -> None:
        """Give one use back, after a join that was not stored."""

    async def close_token(self, token: str, now_s: float) -> bool:
        """Let a token admit nobody from now on; those that it admitted stay. Return False if it admitted nobody."""

    async def add_revocation(self, revocation: Revocation) -> None:
        """Store the expulsion of a federator, in place of an earlier one of the same address."""

    async def find_revocation(self, key: str) -> Revocation | None:
        """Return the expulsion of the federator at this address."""

    async def list_revocations(self) -> list[Revocation]:
        """Return all expulsions, the oldest first."""

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Append to the audit log, and delete its oldest entries beyond `AUDIT_ENTRIES_MAX`."""

    async def list_audit(self, *, offset: int, limit: int) -> tuple[int, list[AuditEntry]]:
        """Return how many entries there are, and some of them, the newest first."""

    async def close(self) -> None:
        """Release files and connections."""


def to_document(one: Federator, topology: Topology, neighbors: Sequence[int]) -> dict[str, object]:
    """Return the stored document of a federator: the papers' six fields, and the others that a restart needs."""
    return {
        **listing_2(one, [topology.federators[node] for node in neighbors]),
        "key": one.key,
        "link": one.link,
        "state": one.state.value,
        "probe": one.probe.value,
        "token": one.token,
        "former": list(one.former),
        "changedEpoch": one.changed_epoch,
        "since": format_time(one.since),
        "kinds": [topology.links[link_of(one.id, node)].value for node in neighbors],
    }


_TEXTS = ("ip", "key", "link", "state", "probe", "token", "latestHealthCheck", "since")


def from_document(document: Mapping[str, object]) -> Federator:
    """Return the federator of a stored document."""
    text = {name: None if document[name] is None else str(document[name]) for name in _TEXTS}
    latency, former, node, epoch = (document[k] for k in ("latency", "former", "id", "changedEpoch"))
    assert isinstance(latency, float | int | None)
    assert isinstance(former, list)
    assert isinstance(node, int)
    assert isinstance(epoch, int)
    return Federator(
        id=node,
        ip=str(text["ip"]),
        key=str(text["key"]),
        link=text["link"],
        state=State(str(text["state"])),
        probe=Probe(str(text["probe"])),
        latency_ms=latency,
        latest_health_check=parse_time(text["latestHealthCheck"]),
        token=text["token"],
        former=tuple(former),
        changed_epoch=epoch,
        since=parse_time(text["since"]),
    )


def assemble(epoch: int, documents: Collection[Mapping[str, object]]) -> Topology:
    """Return the topology of stored documents.

    A link counts if both ends name it and are up. A manager that died between two documents of one commit has told
    nobody of it yet, and repair adds what is missing.
    """
    federators: dict[int, Federator] = {}
    named: dict[tuple[int, int], LinkKind] = {}
    for document in documents:
        one = from_document(document)
        federators[one.id] = one
        neighbors, kinds = document["neighbors"], document["kinds"]
        assert isinstance(neighbors, list)
        assert isinstance(kinds, list)
        for neighbor, kind in zip(neighbors, kinds, strict=True):
            named[one.id, neighbor["id"]] = LinkKind(kind)
    links: dict[Link, LinkKind] = {}
    for (a, b), kind in sorted(named.items()):
        ends = federators.get(a), federators.get(b)
        if a < b and (b, a) in named and all(end is not None and end.state is State.UP for end in ends):
            links[a, b] = kind
    return Topology(epoch, dict(sorted(federators.items())), links)


def documents_of(topology: Topology, nodes: Collection[int]) -> list[dict[str, object]]:
    """Return the documents of some federators, ready to store."""
    around = topology.neighbor_map()
    return [to_document(topology.federators[node], topology, around[node]) for node in sorted(nodes)]


def health_of(one: Federator) -> tuple[float | None, str | None]:
    """Return the two fields that a health round writes."""
    return one.latency_ms, format_time(one.latest_health_check)


def seconds(moment: datetime) -> float:
    """Return a time in the form in which the stores compare it."""
    return moment.timestamp()
