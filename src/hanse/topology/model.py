"""The overlay as the manager knows it: federators, links, and the epoch of the last change.

Rules:

1. A `Topology` is a value. Every change makes a new one (`changes`), which counts once the store has it.
2. The epoch grows with every change, under every manager. An answer with a smaller epoch than one already seen comes
   from a former leader.
3. A federator keeps its id as long as it is remembered, up or not. No other address gets that id.
4. Links exist between federators that are `UP`. The links that a federator had when it was lost are kept in `former`,
   for its return.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

ID_MAX = 2**32 - 1
FEDERATORS_MAX = 10_000  # a health round of one manager is measured to 1,000; beyond ten times that, refuse
FORMER_MAX = 64  # links remembered for a return; the largest degree that a setting allows

Link = tuple[int, int]


class State(StrEnum):
    """State of a federator: part of the overlay, or the reason why it is not."""

    UP = "up"
    GONE = "gone"  # its probes fail
    LEFT = "left"  # in order, on its own request
    REVOKED = "revoked"  # its token was revoked


class LinkKind(StrEnum):
    """Origin of a link. Links of repair and of federators themselves are removed when they are not needed."""

    PLACED = "placed"
    REPAIR = "repair"
    SELF = "self"


class Probe(StrEnum):
    """Method by which a federator's health is measured. The federator chooses it when it joins."""

    BROKER = "broker"  # the publication's return from the broker is enough, as in the papers
    FEDERATOR = "federator"  # the federator must answer as well
    SELF = "self"  # behind NAT: the federator measures and reports


@dataclass(frozen=True, slots=True)
class Federator:
    """One federator. `ip` and `link` are as it wrote them; `key` is the canonical spelling of `ip`."""

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
    changed_epoch: int = 0  # epoch of the last change of its neighbours
    since: datetime | None = None  # time of the last change of `state`


@dataclass(frozen=True, slots=True)
class Topology:
    """All federators and links."""

    epoch: int = 0
    federators: Mapping[int, Federator] = field(default_factory=dict)
    links: Mapping[Link, LinkKind] = field(default_factory=dict)

    def living(self) -> list[int]:
        """Return the ids of federators that are up, ascending."""
        return sorted(one.id for one in self.federators.values() if one.state is State.UP)

    def by_key(self, key: str) -> Federator | None:
        """Return the federator with this address, in any state."""
        return next((one for one in self.federators.values() if one.key == key), None)

    def neighbors(self, node: int) -> list[int]:
        """Return the ids of its neighbours, ascending."""
        return sorted(b if a == node else a for a, b in self.links if node in (a, b))

    def neighbor_map(self) -> dict[int, list[int]]:
        """Return every federator's neighbours at once: O(links) for all instead of for each."""
        result: dict[int, list[int]] = {node: [] for node in self.federators}
        for a, b in self.links:
            result[a].append(b)
            result[b].append(a)
        for neighbors in result.values():
            neighbors.sort()
        return result


def link_of(a: int, b: int) -> Link:
    """Return the link between two federators, the smaller id first."""
    assert a != b, f"federator {a} cannot be its own neighbour"
    return (a, b) if a < b else (b, a)


def format_time(moment: datetime | None) -> str | None:
    """Return the timestamp of the papers' Listing 2: `2023-01-01 00:00:00.000Z`."""
    if moment is None:
        return None
    moment = moment.astimezone(UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def parse_time(text: str | None) -> datetime | None:
    """Parse the output of `format_time`."""
    return None if text is None else datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%fZ").replace(tzinfo=UTC)


def listing_2(one: Federator, neighbors: Iterable[Federator]) -> dict[str, object]:
    """Return the papers' document of a federator, field for field and in their order; `latency` in milliseconds."""
    named = [{"id": other.id, "ip": other.ip} for other in neighbors]
    return {
        "id": one.id,
        "ip": one.ip,
        "neighbors": named,
        "neighborsAmount": len(named),
        "latency": one.latency_ms,
        "latestHealthCheck": format_time(one.latest_health_check),
    }
