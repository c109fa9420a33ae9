"""Advice from the measured traffic: the federator that should be the core of each group.

A publication travels from its origin to the group's core, and from the core down the mesh to the members. A link that
lies on both routes carries it once. The cost of a core is therefore the number of link crossings: for each origin, its
publications times the number of links in the union of the origin's route to the core and the members' routes to it.
`advise` computes this cost for every candidate on the current overlay. It advises a move only if the move saves enough
to justify building a new mesh (hysteresis).

This module only computes advice from gold tables. The manager decides whether to follow it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field

import networkx as nx
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.errors import LocalError
from hanse.pipeline.schemas.advice import TABLE

# Up to this many federators, every federator on the overlay is a candidate. On a larger overlay, only the members and
# origins of a group are candidates.
CANDIDATES_MAX = 100
# Only the groups with the most traffic are considered. Moving the core of a quiet group saves nothing.
GROUPS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class AdviceSettings:
    """Thresholds above which a move is worth its cost."""

    saving_share_min: float = 0.2  # share of the crossings; smaller moves cores for little gain, larger keeps bad cores
    publications_min: int = 1_000  # in the traffic considered; fewer predict little

    def __post_init__(self) -> None:
        if not 0 < self.saving_share_min < 1:
            raise LocalError(f"saving_share_min is {self.saving_share_min}; it is a share between 0 and 1.")
        if self.publications_min < 0:
            raise LocalError(f"publications_min is {self.publications_min}; it must be 0 or more.")


@dataclass(frozen=True, slots=True)
class GroupTraffic:
    """Traffic of one group: publications per origin, and the members that receive them."""

    group: str
    published: Mapping[str, int] = field(default_factory=dict)
    members: frozenset[str] = frozenset()
    core: str | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """Best core of one group, its cost and the cost of the current core: a row of `gold_advice`."""

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
    """Return the best core of each group on the overlay made of `links`, sorted by group name.

    Origins and members that the overlay does not reach are not counted. A group without any reachable federator gets no
    advice.
    """
    chosen = settings or AdviceSettings()
    overlay = nx.Graph(sorted(links))
    busiest = sorted(groups, key=lambda group: (-sum(group.published.values()), group.group))[:GROUPS_MAX]
    trees = _Trees(overlay)
    found = [_advise_one(group, trees, chosen) for group in busiest]
    return sorted((advice for advice in found if advice is not None), key=lambda advice: advice.group)


class _Trees:
    """Shortest routes from each federator to all others, computed once.

    Ties go to the smaller id, as in the protocol.
    """

    def __init__(self, overlay: nx.Graph) -> None:
        self.overlay = overlay
        self._parents: dict[str, dict[str, str]] = {}

    def way(self, core: str, federator: str) -> set[frozenset[str]] | None:
        """Return the links between the two federators, or None if there is no route."""
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
    # A candidate does not pay for federators that it cannot reach, so only candidates with the largest reach compete.
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
    """Compute `gold_advice` from `gold_traffic_matrix`, `gold_topology_intervals` and `silver_mesh`.

    The search runs on the driver: summed over its windows, the matrix has at most brokers² rows per group.
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
        # Each destination received nearly all publications, so the largest count is closest to the number published.
        of_group[row["origin"]] = max(of_group.get(row["origin"], 0), row["publications"])
        members.setdefault(row["group"], set()).add(row["destination"])
    return [GroupTraffic(group, published[group], frozenset(members[group]), cores.get(group)) for group in published]
