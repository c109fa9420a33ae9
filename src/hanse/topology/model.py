"""The overlay as the manager knows it: federators, links, and the epoch of the last change.

Rules:

1. A `Topology` is a value. Every change makes a new one (`changes`), which becomes true when the store has it.
2. The epoch grows with every change, under whichever manager; an answer with a smaller epoch than one already seen
   is an older leader's word.
3. A federator keeps its id as long as it is remembered, up or not; no other address gets that id.
4. Links stand between federators that are `UP`. What a federator had when it was lost is kept in `former`, for
   its return.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

ID_MAX = 2**32 - 1
FEDERATORS_MAX = 10_000  # a health round of one manager is measured to 1,000; beyond ten times that, refuse
FORMER_MAX = 64  # links remembered for a return; the largest degree a setting allows

Link = tuple[int, int]


class State(StrEnum):
    """Whether a federator counts as part of the overlay, and if not, why."""

    UP = "up"
    GONE = "gone"  # its probes fail
    LEFT = "left"  # it said so
    REVOKED = "revoked"  # its token was revoked


class LinkKind(StrEnum):
    """Who asked for a link. Links of repair and of federators themselves go again when they are not needed."""

    PLACED = "placed"
    REPAIR = "repair"
    SELF = "self"


class Probe(StrEnum):
    """How a federator's health is measured; the federator chooses when it joins."""

    BROKER = "broker"  # the publication's return from the broker is enough (the seeds' way)
    FEDERATOR = "federator"  # the federator must answer too
    SELF = "self"  # behind NAT: the federator measures and reports


@dataclass(frozen=True, slots=True)
class Federator:
    """One federator. `ip` and `link` are as it wrote them; `key` is `ip` in its one spelling."""

    id: int
    ip: str
    key: str
    link: str | None = None
    state: State = State.UP
    probe: Probe = Probe.BROKER
    latency_ms: float | None = None
    latest_health_check: datetime | None = None
    token: str | None = None
    former: tuple[int, ...] = ()
    changed_epoch: int = 0  # when its neighbours last changed
    since: datetime | None = None  # of `state`


@dataclass(frozen=True, slots=True)
class Topology:
    """All federators and links."""

    epoch: int = 0
    federators: Mapping[int, Federator] = field(default_factory=dict)
    links: Mapping[Link, LinkKind] = field(default_factory=dict)

    def living(self) -> list[int]:
        """Ids of those who are up, ascending."""
        return sorted(one.id for one in self.federators.values() if one.state is State.UP)

    def by_key(self, key: str) -> Federator | None:
        """The federator with this address, whatever its state."""
        return next((one for one in self.federators.values() if one.key == key), None)

    def neighbors(self, node: int) -> list[int]:
        """Ids of its neighbours, ascending."""
        return sorted(b if a == node else a for a, b in self.links if node in (a, b))

    def neighbor_map(self) -> dict[int, list[int]]:
        """Every federator's neighbours at once: O(links) for all instead of for each."""
        result: dict[int, list[int]] = {node: [] for node in self.federators}
        for a, b in self.links:
            result[a].append(b)
            result[b].append(a)
        for neighbors in result.values():
            neighbors.sort()
        return result


def link_of(a: int, b: int) -> Link:
    """The link between two federators, the smaller id first."""
    assert a != b, f"federator {a} cannot be its own neighbour"
    return (a, b) if a < b else (b, a)


def format_time(moment: datetime | None) -> str | None:
    """The timestamp of the papers' Listing 2: `2023-01-01 00:00:00.000Z`."""
    if moment is None:
        return None
    moment = moment.astimezone(UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def parse_time(text: str | None) -> datetime | None:
    """Reads what `format_time` wrote."""
    return None if text is None else datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%fZ").replace(tzinfo=UTC)


def listing_2(one: Federator, neighbors: Iterable[Federator]) -> dict[str, object]:
    """The papers' document of a federator, field for field and in their order; `latency` in milliseconds."""
    named = [{"id": other.id, "ip": other.ip} for other in neighbors]
    return {
        "id": one.id,
        "ip": one.ip,
        "neighbors": named,
        "neighborsAmount": len(named),
        "latency": one.latency_ms,
        "latestHealthCheck": format_time(one.latest_health_check),
    }
