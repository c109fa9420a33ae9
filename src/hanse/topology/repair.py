"""Repair: keeps the overlay of the living connected, also after any single further loss. Pure.

After `repair`, for n living federators and a maximum degree D of at least 2 (the smallest that settings allow):

1. No federator has more than D neighbours.
2. The overlay is connected.
3. If n is at least 3, it is two-connected: any one federator or link may fail and the rest is still connected. The
   degrees need only D >= 2, because a ring over all has it. An overlay of two has nothing to cut.
4. The number of added links is minimal (the bound of `blocks`), as long as the leaves have capacity. Without capacity,
   a link is moved, which costs no more new links.

Method: the components are joined in a line by their leaves. Then leaves are linked in pairs, each chosen so that the
bound falls by one. A leaf whose members are all full gives up a link to its cut vertex. The member that loses it takes
the new link instead. Everything between the two now lies on the circle that the new link closes, so nothing is cut. A
full component without a cut vertex gives up any one link, for the same reason.

`avoid` holds pairs whose link was reported broken while both live. They are used only if nothing else connects: a link
that may come back is better than none.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import networkx as nx

from hanse.topology.blocks import BlockTree, Leaf
from hanse.topology.model import Link, link_of

CHOICE_MAX = 8  # members of a leaf compared as the end of a link


@dataclass(frozen=True, slots=True)
class Repair:
    """Links to add and to remove, in ascending order."""

    add: tuple[Link, ...]
    remove: tuple[Link, ...]


def graph_of(living: Iterable[int], links: Iterable[Link]) -> nx.Graph:
    """Return the overlay of the living, without links to others."""
    graph = nx.Graph()
    graph.add_nodes_from(sorted(living))
    graph.add_edges_from(sorted(link for link in links if link[0] in graph and link[1] in graph))
    return graph


def is_connected(graph: nx.Graph) -> bool:
    """Return whether the graph is connected; an empty graph and a single federator are."""
    return len(graph) <= 1 or nx.is_connected(graph)


def is_two_connected(graph: nx.Graph) -> bool:
    """Return whether any single loss leaves the rest connected."""
    return is_connected(graph) and (len(graph) < 3 or nx.is_biconnected(graph))


def repair(
    living: Collection[int],
    links: Collection[Link],
    degree_max: int,
    *,
    latency_ms: Mapping[int, float | None] | None = None,
    avoid: Collection[Link] = (),
) -> Repair:
    """Return the links to add and remove so that the overlay of the living satisfies rules 1 to 3."""
    assert degree_max >= 2, f"the maximum degree is {degree_max}; below 2 no three federators can be connected"
    before = {link_of(a, b) for a, b in graph_of(living, links).edges}
    work = _Work(graph_of(living, before - set(avoid)), degree_max, latency_ms or {}, frozenset(avoid))
    work.lower_degrees()
    work.connect()
    work.make_two_connected()
    after = {link_of(a, b) for a, b in work.graph.edges}
    return Repair(tuple(sorted(after - before)), tuple(sorted(before - after)))


def trim(
    living: Collection[int], links: Collection[Link], removable: Iterable[Link], *, wanted: int = 2
) -> tuple[Link, ...]:
    """Return the `removable` links without which the overlay stays connected, or two-connected if it is.

    The first given is removed first. No federator is left with fewer than `wanted` neighbours by it.
    """
    graph = graph_of(living, links)
    holds = is_two_connected if is_two_connected(graph) else is_connected
    if not holds(graph):
        return ()
    gone: list[Link] = []
    for a, b in removable:
        if graph.has_edge(a, b) and graph.degree[a] > wanted and graph.degree[b] > wanted:
            graph.remove_edge(a, b)
            if holds(graph):
                gone.append((a, b))
            else:
                graph.add_edge(a, b)
    return tuple(gone)


class _Work:
    """One repair on one graph."""

    def __init__(
        self, graph: nx.Graph, degree_max: int, latency_ms: Mapping[int, float | None], avoid: frozenset[Link]
    ) -> None:
        self.graph = graph
        self._degree_max = degree_max
        self._latency_ms = latency_ms
        self._avoid = avoid

    def lower_degrees(self) -> None:
        """Apply rule 1 after the maximum was lowered: full neighbours are removed first."""
        degree = self.graph.degree
        for node in sorted(self.graph, key=lambda node: (-degree[node], node)):
            while degree[node] > self._degree_max:
                other = max(self.graph[node], key=lambda other: (degree[other], self._latency(other), other))
                self.graph.remove_edge(node, other)

    def connect(self) -> None:
        """Apply rule 2: join the components in a line, each by two members of different leaves."""
        parts = sorted(nx.connected_components(self.graph), key=lambda part: (-len(part), min(part)))
        if len(parts) < 2:
            return
        strung = set(parts[0])
        _, tail = self._ends(parts[0])
        waiting = [(part, *self._ends(part)) for part in parts[1:]]
        while waiting:
            index = next((i for i, one in enumerate(waiting) if not self._are_avoided(tail, one[1])), 0)
            part, head, next_tail = waiting.pop(index)
            if self._are_avoided(tail, head):
                # A member off the line costs another link later, and avoids one that was reported broken.
                widened = self._with_room(strung), self._with_room(part)
                tail, head = (tail, head) if self._are_avoided(*widened) else widened
            self._link(tail, head)
            strung |= part
            tail = next_tail

    def _ends(self, part: Collection[int]) -> tuple[list[int], list[int]]:
        """Return the members for the link before and for the link after, the better ones first."""
        if len(part) == 1:
            return list(part), list(part)
        inside = self.graph.subgraph(part)
        if not nx.is_biconnected(inside):
            tree = BlockTree(inside)
            first, second = tree.leaves[0], tree.leaves[len(tree.leaves) // 2]
            return self._members(first), self._members(second)
        with_room = self._with_room(part)
        if len(with_room) < 2:
            a, b = self._give_up_any(inside)
            return [a], [b]
        return with_room[0::2], with_room[1::2]

    def make_two_connected(self) -> None:
        """Apply rule 3, one link per iteration."""
        while len(self.graph) >= 3 and not nx.is_biconnected(self.graph):
            tree = BlockTree(self.graph)
            first, second = min(tree.pairs(), key=lambda pair: self._rank_pair(tree, *pair))
            detour = None
            if self._are_avoided(self._candidates(first), self._candidates(second)):
                detour = self._detour(tree)
            if detour is not None:
                self.graph.add_edge(*detour)
            else:
                self._link(self._members(first), self._members(second))

    def _rank_pair(self, tree: BlockTree, first: Leaf, second: Leaf) -> tuple[object, ...]:
        some, others = self._candidates(first), self._candidates(second)
        ends = some[0], others[0]
        is_avoided = self._are_avoided(some, others)
        return is_avoided, tree.bound_after(first, second), sum(map(self._latency, ends)), ends

    def _detour(self, tree: BlockTree) -> Link | None:
        """Return a link from a leaf to a block that is not a leaf. It costs one more link, but joins two blocks."""
        room = self._with_room(self.graph)
        for leaf in tree.leaves:
            for a in self._with_room(leaf.inner):
                for b in room:
                    if b not in leaf.inner and b != leaf.cut and link_of(a, b) not in self._avoid:
                        return a, b
        return None

    def _candidates(self, leaf: Leaf) -> list[int]:
        """Return the members of the leaf that have capacity, or, if none has, those that could give up a link."""
        return self._with_room(leaf.inner) or self._ranked(leaf.inner.intersection(self.graph[leaf.cut]))

    def _members(self, leaf: Leaf) -> list[int]:
        """Return the members of the leaf that may take a link. If none has capacity, one gives up a link."""
        ranked = self._candidates(leaf)
        if not self._has_room(ranked[0]):
            self.graph.remove_edge(ranked[0], leaf.cut)
            return ranked[:1]
        return ranked

    def _give_up_any(self, block: nx.Graph) -> Link:
        """Remove the link between the slowest members of a full two-connected component."""
        a, b = max(block.edges, key=lambda link: (self._latency(link[0]) + self._latency(link[1]), sorted(link)))
        self.graph.remove_edge(a, b)
        return link_of(a, b)

    def _link(self, some: list[int], others: list[int]) -> None:
        choice = [(a, b) for a in some[:CHOICE_MAX] for b in others[:CHOICE_MAX]]
        # min takes the first of equals: the best pair that need not be avoided.
        a, b = min(choice, key=lambda pair: link_of(*pair) in self._avoid)
        assert self._has_room(a), f"federator {a} is full"
        assert self._has_room(b), f"federator {b} is full"
        self.graph.add_edge(a, b)

    def _are_avoided(self, some: list[int], others: list[int]) -> bool:
        """Return whether every link between the two lists should be avoided."""
        if not self._avoid:
            return False
        return all(link_of(a, b) in self._avoid for a in some[:CHOICE_MAX] for b in others[:CHOICE_MAX])

    def _with_room(self, nodes: Iterable[int]) -> list[int]:
        return self._ranked(node for node in nodes if self._has_room(node))

    def _ranked(self, nodes: Iterable[int]) -> list[int]:
        return sorted(nodes, key=lambda node: (self.graph.degree[node], self._latency(node), node))

    def _has_room(self, node: int) -> bool:
        return bool(self.graph.degree[node] < self._degree_max)

    def _latency(self, node: int) -> float:
        latency = self._latency_ms.get(node)
        return math.inf if latency is None else latency
