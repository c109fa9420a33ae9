"""Advice from the traffic: which federator should anchor which group.

A publication goes from its origin to the group's core, and from the core down the mesh to the members; a link that
lies on both ways carries it once. So what a core costs is the number of link crossings: over all origins,
publications times the links in the union of the origin's way to the core and the members' ways to it. `advise`
counts that for every candidate on the overlay as it is now, and advises a move only when it saves enough to be
worth a new mesh (hysteresis).

It is a pure function on what gold says; the manager decides what becomes of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field

import networkx as nx
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.errors import LocalError
from hanse.pipeline.schemas.advice import TABLE

# The overlay's federators that may be a core are all tried up to this many; beyond, only a group's own members and
# origins.
CANDIDATES_MAX = 100
# The groups with the most traffic. A move of a quiet group saves nothing.
GROUPS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class AdviceSettings:
    """When a move is worth its trouble."""

    saving_share_min: float = 0.2  # of the crossings; smaller moves cores for little, larger leaves traffic astray
    publications_min: int = 1_000  # in the traffic looked at; fewer say too little about tomorrow's

    def __post_init__(self) -> None:
        if not 0 < self.saving_share_min < 1:
            raise LocalError(f"saving_share_min is {self.saving_share_min}; it is a share between 0 and 1.")
        if self.publications_min < 0:
            raise LocalError(f"publications_min is {self.publications_min}; it must be 0 or more.")


@dataclass(frozen=True, slots=True)
class GroupTraffic:
    """What one group carries: publications by origin, and who wants them."""

    group: str
    published: Mapping[str, int] = field(default_factory=dict)
    members: frozenset[str] = frozenset()
    core: str | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """One group's best core, what it would cost and what today's costs: a row of `gold_advice`."""

    group: str
    core: str | None
    advised_core: str
    publications: int
    crossings: int | None
    advised_crossings: int
    saving_share: float | None
    is_worth_moving: bool


def advise(
    groups: Iterable[GroupTraffic], links: Iterable[tuple[str, str]], settings: AdviceSettings | None = None
) -> list[Advice]:
    """The best core of each group on the overlay that `links` make, in the order of the groups' names.

    Origins and members that the overlay does not reach are left out of the count; a group that it does not reach at
    all is left out of the advice.
    """
    chosen = settings or AdviceSettings()
    overlay = nx.Graph(sorted(links))
    busiest = sorted(groups, key=lambda group: (-sum(group.published.values()), group.group))[:GROUPS_MAX]
    trees = _Trees(overlay)
    found = [_advise_one(group, trees, chosen) for group in busiest]
    return sorted((advice for advice in found if advice is not None), key=lambda advice: advice.group)


class _Trees:
    """Each federator's shortest ways to all others, found once; ties go to the smaller id, as in the protocol."""

    def __init__(self, overlay: nx.Graph) -> None:
        self.overlay = overlay
        self._parents: dict[str, dict[str, str]] = {}

    def way(self, core: str, federator: str) -> set[frozenset[str]] | None:
        """The links between the two; None if there is no way."""
        if core not in self._parents:
            self._parents[core] = {
                child: parent for parent, child in nx.bfs_edges(self.overlay, core, sort_neighbors=sorted)
            }
        parents = self._parents[core]
        links = set()
        while federator != core:
            if federator not in parents:
                return None
            links.add(frozenset((federator, parents[federator])))
            federator = parents[federator]
        return links


def _advise_one(group: GroupTraffic, trees: _Trees, settings: AdviceSettings) -> Advice | None:
    own = {name for name in (*group.members, *group.published) if name in trees.overlay}
    candidates = sorted(trees.overlay if len(trees.overlay) <= CANDIDATES_MAX else own)
    if not own or not candidates:
        return None
    costs = {core: _crossings(group, core, trees) for core in candidates}
    # Whom a candidate does not reach it does not pay for: only those that reach the most are compared.
    reach_most = max(reached for reached, _ in costs.values())
    cost, best = min((cost, core) for core, (reached, cost) in costs.items() if reached == reach_most)
    publications = sum(group.published.values())
    now = _crossings(group, group.core, trees)[1] if group.core in trees.overlay else None
    saving_share = (now - cost) / now if now else None
    is_worth_moving = (
        best != group.core
        and publications >= settings.publications_min
        and (now is None or (saving_share or 0.0) >= settings.saving_share_min)
    )
    return Advice(group.group, group.core, best, publications, now, cost, saving_share, is_worth_moving)


def _crossings(group: GroupTraffic, core: str | None, trees: _Trees) -> tuple[int, int]:
    assert core is not None
    ways = [trees.way(core, member) for member in sorted(group.members)]
    mesh: set[frozenset[str]] = set().union(*[way for way in ways if way is not None])
    reached = sum(way is not None for way in ways)
    total = 0
    for origin, publications in sorted(group.published.items()):
        way = trees.way(core, origin)
        if way is not None:
            reached += 1
            total += publications * len(mesh | way)
    return reached, total


def advice(
    matrix: DataFrame, intervals: DataFrame, mesh: DataFrame, settings: AdviceSettings | None = None
) -> DataFrame:
    """`gold_advice` from `gold_traffic_matrix`, `gold_topology_intervals` and `silver_mesh`.

    The matrix has at most brokers² rows a group once it is summed over its windows, so the search runs where the
    driver is.
    """
    flows = matrix.groupBy("group", "origin", "destination").agg(F.sum("publications").alias("publications"))
    cores = (
        mesh.where("event = 'core_elected'")
        .groupBy("group")
        .agg(F.max_by("federator", F.struct("epoch", "at")).alias("core"))
    )
    up = intervals.where("element = 'link' and down_at is null").select("federator", "neighbour").distinct()
    links = [(row["federator"], row["neighbour"]) for row in up.collect()]
    elected = {row["group"]: row["core"] for row in cores.collect()}
    rows = [astuple(row) for row in advise(_groups(flows, elected), links, settings)]
    return matrix.sparkSession.createDataFrame(rows, TABLE.struct)


def _groups(flows: DataFrame, cores: Mapping[str, str]) -> list[GroupTraffic]:
    published: dict[str, dict[str, int]] = {}
    members: dict[str, set[str]] = {}
    for row in flows.collect():
        of_group = published.setdefault(row["group"], {})
        # Each destination got about all of them: the largest is nearest to what was published.
        of_group[row["origin"]] = max(of_group.get(row["origin"], 0), row["publications"])
        members.setdefault(row["group"], set()).add(row["destination"])
    return [GroupTraffic(group, published[group], frozenset(members[group]), cores.get(group)) for group in published]
