"""The ring around the dead: the guarantees of `relinking`, over random overlays and deaths."""

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from hanse.federator.relinking import partners


@st.composite
def overlays_with_dead(draw: st.DrawFn) -> tuple[nx.Graph, set[int]]:
    count = draw(st.integers(2, 14))
    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    if draw(st.booleans()):
        nx.add_cycle(graph, range(count))
        graph.remove_edges_from(nx.selfloop_edges(graph))
    else:
        graph.add_edges_from((node, draw(st.integers(0, node - 1))) for node in range(1, count))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    graph.add_edges_from((a, b) for a, b in draw(st.lists(pairs, max_size=count)) if a != b)
    return graph, draw(st.sets(st.integers(0, count - 1), max_size=count))


def relinked(graph: nx.Graph, dead: set[int]) -> nx.Graph:
    """Return the overlay of the living after each of them followed the module, all with the same map."""
    after = graph.subgraph(set(graph) - dead).copy()
    for node in sorted(after):
        after.add_edges_from((node, other) for other in partners(node, graph.edges, dead) if other not in dead)
    return after


@given(overlays_with_dead())
def test_the_living_stay_connected_after_any_deaths(overlay: tuple[nx.Graph, set[int]]) -> None:
    graph, dead = overlay
    after = relinked(graph, dead)
    assert len(after) <= 1 or nx.is_connected(after)


@given(overlays_with_dead())
def test_a_two_connected_overlay_is_two_connected_again(overlay: tuple[nx.Graph, set[int]]) -> None:
    graph, dead = overlay
    if not nx.is_biconnected(graph):
        return
    after = relinked(graph, dead)
    assert len(after) < 3 or nx.is_biconnected(after)


@given(overlays_with_dead())
def test_both_ends_find_a_link_by_themselves_and_degrees_grow_by_one_per_dead_part(
    overlay: tuple[nx.Graph, set[int]],
) -> None:
    graph, dead = overlay
    for node in sorted(set(graph) - dead):
        new = partners(node, graph.edges, dead)
        assert not dead.intersection(new)
        assert all(node in partners(other, graph.edges, dead) for other in new)
        parts = {
            min(part)
            for part in nx.connected_components(graph.subgraph(dead))
            if any(graph.has_edge(node, one) for one in part)
        }
        lost = sum(1 for other in graph[node] if other in dead)
        assert len(new) - lost <= len(parts)


def test_a_federator_whose_neighbours_live_does_nothing() -> None:
    assert partners(0, [(0, 1), (1, 2), (2, 3)], {3}) == []
    assert partners(0, [], {1}) == []


def test_the_dead_between_two_cost_one_link() -> None:
    line = [(0, 1), (1, 2), (2, 3)]
    assert partners(0, line, {1}) == [2]
    assert partners(2, line, {1}) == [0]
    assert partners(0, line, {1, 2}) == [3]
    assert partners(3, line, {1, 2}) == [0]
