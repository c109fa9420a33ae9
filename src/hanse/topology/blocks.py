"""Blocks and cut vertices of a connected overlay, as a tree for repair. networkx finds them.

A *block* is a maximal part that no single loss can cut. A *cut vertex* is a federator whose loss cuts the overlay.
Blocks and cut vertices form a tree. A *leaf* is a block with one cut vertex. Every leaf needs at least one new link,
and a cut vertex with d blocks needs d - 1 of them. The larger of the two needs is the minimum number of links that make
the overlay two-connected (Eswaran and Tarjan, 1976); `bound` is that number.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

PAIRS_MAX = 96  # pairs of leaves compared for one link; more cost time, and the tests find no better link with them


@dataclass(frozen=True, slots=True)
class Leaf:
    """Block with the single cut vertex `cut`. `inner` are its other members."""

    block: int
    cut: int
    inner: frozenset[int]


class BlockTree:
    """Block-cut tree of a connected graph with a cut vertex, and the effect of a link between two leaves on it.

    In the tree, block i is the node i, and cut vertex v the node -1 - v.
    """

    __slots__ = ("_depth", "_parent", "_tree", "leaves")

    def __init__(self, graph: nx.Graph) -> None:
        blocks = [frozenset(block) for block in nx.biconnected_components(graph)]
        # Sorted by members, not in networkx's order: the same overlay must give the same repair.
        blocks.sort(key=sorted)
        count: dict[int, int] = {}
        for block in blocks:
            for node in block:
                count[node] = count.get(node, 0) + 1
        self._tree: dict[int, list[int]] = {}
        for index, block in enumerate(blocks):
            for node in sorted(block):
                if count[node] > 1:
                    self._tree.setdefault(index, []).append(-1 - node)
                    self._tree.setdefault(-1 - node, []).append(index)
        assert self._tree, "a block tree needs a cut vertex; a two-connected overlay has none"
        order = self._walk()
        self.leaves = [
            Leaf(node, -1 - self._tree[node][0], blocks[node] - {-1 - self._tree[node][0]})
            for node in order
            if node >= 0 and len(self._tree[node]) == 1
        ]

    def _walk(self) -> list[int]:
        """Walk the tree depth first from the widest cut vertex, so that distant leaves are in different branches."""
        root = min((node for node in self._tree if node < 0), key=lambda node: (-len(self._tree[node]), -node))
        self._parent = {root: root}
        self._depth = {root: 0}
        order, stack = [], [root]
        while stack:
            node = stack.pop()
            order.append(node)
            for child in reversed(self._tree[node]):
                if child != self._parent[node]:
                    self._parent[child] = node
                    self._depth[child] = self._depth[node] + 1
                    stack.append(child)
        return order

    def bound(self) -> int:
        """Return the minimum number of links that make the overlay two-connected."""
        widest = max(len(around) for node, around in self._tree.items() if node < 0)
        return max(widest - 1, -(-len(self.leaves) // 2))

    def pairs(self) -> Iterator[tuple[Leaf, Leaf]]:
        """Return pairs of leaves, those half the walk apart first, at most `PAIRS_MAX` of them."""
        count, given = len(self.leaves), 0
        for distance in range(count // 2, 0, -1):
            for i in range(count if distance * 2 != count else distance):
                yield self.leaves[i], self.leaves[(i + distance) % count]
                given += 1
                if given == PAIRS_MAX:
                    return

    def bound_after(self, first: Leaf, second: Leaf) -> int:
        """Return `bound` with a link between the two, which merges the blocks on the path between them."""
        way = set(self._way(first.block, second.block))
        degree = {n: len(around) - (n in way) for n, around in self._tree.items() if n < 0}
        widest = max(degree.values())
        still_cut = {cut for node in way if node >= 0 for cut in self._tree[node] if degree[cut] > 1}
        leaves = len(self.leaves) - 2 + (len(still_cut) == 1)
        return max(widest - 1, -(-leaves // 2))

    def _way(self, a: int, b: int) -> Iterator[int]:
        while a != b:
            if self._depth[a] >= self._depth[b]:
                yield a
                a = self._parent[a]
            else:
                yield b
                b = self._parent[b]
        yield a
