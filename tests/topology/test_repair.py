import itertools

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.topology.blocks import BlockTree
from hanse.topology.model import Link, link_of
from hanse.topology.placement import Candidate, place_as_seeds
from hanse.topology.repair import Repair, graph_of, is_connected, is_two_connected, repair, trim


def apply(links: set[Link], plan: Repair) -> set[Link]:
    return (links - set(plan.remove)) | set(plan.add)


def check(living: list[int], links: set[Link], degree_max: int) -> nx.Graph:
    graph = graph_of(living, links)
    assert is_connected(graph)
    assert max((degree for _, degree in graph.degree), default=0) <= degree_max
    if len(living) >= 3:
        # The promise word for word: any single further loss leaves the rest connected.
        for lost in living:
            assert is_connected(graph_of([one for one in living if one != lost], links)), f"{lost} still cuts"
    return graph


def fewest_links(living: list[int], links: set[Link]) -> int:
    """Return the bound of Eswaran and Tarjan for a graph in any number of components, computed from the definition."""
    graph = graph_of(living, links)
    if is_two_connected(graph):
        return 0
    if len(graph) == 2:
        return 1
    leaves = isolated = 0
    cut = set(nx.articulation_points(graph))
    for part in nx.connected_components(graph):
        blocks = list(nx.biconnected_components(graph.subgraph(part)))
        if len(blocks) <= 1:
            isolated += 1
        else:
            leaves += sum(len(block & cut) == 1 for block in blocks)
    widest: int = max(nx.number_connected_components(graph_of([o for o in living if o != v], links)) for v in living)
    return max(widest - 1, -(-leaves // 2) + isolated)


@st.composite
def overlays(draw: st.DrawFn, nodes_max: int = 14) -> tuple[list[int], set[Link], int]:
    count = draw(st.integers(1, nodes_max))
    degree_max = draw(st.integers(2, 6))
    every = list(itertools.combinations(range(count), 2))
    wanted = draw(st.lists(st.sampled_from(every), unique=True, max_size=40)) if every else []
    degree = dict.fromkeys(range(count), 0)
    links = set()
    for a, b in wanted:
        if degree[a] < degree_max and degree[b] < degree_max:
            links.add((a, b))
            degree[a] += 1
            degree[b] += 1
    return list(range(count)), links, degree_max


@settings(max_examples=examples(250), deadline=None)
@given(overlays())
def test_any_overlay_is_connected_and_two_connected_within_the_degree(
    overlay: tuple[list[int], set[Link], int],
) -> None:
    living, links, degree_max = overlay
    check(living, apply(links, repair(living, links, degree_max)), degree_max)


@settings(max_examples=examples(300), deadline=None)
@given(overlays())
def test_with_capacity_the_fewest_links_are_added_and_none_is_removed(
    overlay: tuple[list[int], set[Link], int],
) -> None:
    living, links, _ = overlay
    plan = repair(living, links, 100)
    assert plan.remove == ()
    assert len(plan.add) == fewest_links(living, links)


@settings(max_examples=examples(200), deadline=None)
@given(overlays())
def test_without_capacity_no_more_links_are_added_than_the_minimum_with_capacity(
    overlay: tuple[list[int], set[Link], int],
) -> None:
    living, links, degree_max = overlay
    assert len(repair(living, links, degree_max).add) <= max(fewest_links(living, links), 0)


@settings(max_examples=examples(200), deadline=None)
@given(overlays())
def test_a_repaired_overlay_needs_no_repair(overlay: tuple[list[int], set[Link], int]) -> None:
    living, links, degree_max = overlay
    repaired = apply(links, repair(living, links, degree_max))
    assert repair(living, repaired, degree_max) == Repair((), ())


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(3, 40), st.integers(2, 6), st.data())
def test_the_promise_holds_after_every_loss_of_a_placed_overlay(
    count: int, degree_max: int, data: st.DataObject
) -> None:
    living: list[int] = []
    links: set[Link] = set()
    for new in range(count):
        graph = graph_of(living, links)
        placed = place_as_seeds([Candidate(i, None, graph.degree[i]) for i in living], links, degree_max)
        links -= {placed.split} if placed.split else set()
        links |= {link_of(new, other) for other in placed.neighbors}
        living.append(new)
    while len(living) > 1:
        lost = data.draw(st.lists(st.sampled_from(living), min_size=1, max_size=max(1, len(living) // 3), unique=True))
        living = [one for one in living if one not in lost]
        links = {link for link in links if not set(link) & set(lost)}
        links = apply(links, repair(living, links, degree_max))
        check(living, links, degree_max)


@settings(max_examples=examples(100), deadline=None)
@given(overlays(), st.data())
def test_links_to_avoid_are_used_only_if_nothing_else_connects(
    overlay: tuple[list[int], set[Link], int], data: st.DataObject
) -> None:
    living, links, degree_max = overlay
    every = list(itertools.combinations(living, 2))
    avoid = set(data.draw(st.lists(st.sampled_from(every), unique=True, max_size=6))) if every else set()
    after = apply(links, repair(living, links, degree_max, avoid=avoid))
    check(living, after, degree_max)
    # With so few pairs to avoid among enough federators, there is always another link.
    if len(living) >= 10 and degree_max >= 4:
        assert not after & avoid


def test_a_cut_that_the_papers_rule_never_heals_is_healed() -> None:
    # Two rings of three are joined only by federator 6. It fails, and no federator is without a neighbour.
    rings = {(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)}
    living = [0, 1, 2, 3, 4, 5]
    plan = repair(living, rings, 5)
    assert len(plan.add) == 2
    check(living, apply(rings, plan), 5)


def test_the_availability_scenario_of_the_papers_relinks_federator_8() -> None:
    links = {(0, 8), (7, 8), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (3, 6), (1, 3)}
    living = [1, 2, 3, 4, 5, 6, 8]
    after = apply(links, repair(living, links, 5))
    graph = check(living, {link for link in after if not set(link) & {0, 7}}, 5)
    assert graph.degree[8] >= 2


def test_two_full_cliques_are_joined_without_exceeding_the_degree() -> None:
    cliques = set(itertools.combinations(range(6), 2)) | set(itertools.combinations(range(6, 12), 2))
    plan = repair(range(12), cliques, 5)
    assert len(plan.add) == 2
    assert len(plan.remove) == 2
    check(list(range(12)), apply(cliques, plan), 5)


def test_a_star_becomes_two_connected_with_one_link_fewer_than_it_has_leaves() -> None:
    star = {(0, leaf) for leaf in range(1, 6)}
    assert len(repair(range(6), star, 5).add) == 4


def test_a_full_leaf_gives_up_a_link_to_its_cut_vertex() -> None:
    # A triangle 0-1-2 hangs by 0, which also carries 3. At a maximum of 3, its members have capacity.
    links = {(0, 1), (0, 2), (1, 2), (0, 3)}
    assert repair(range(4), links, 3) == Repair(((1, 3),), ())
    square = {(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 3)}  # all full at 3
    bridge = (square - {(0, 1)}) | {(0, 4), (4, 5)}
    plan = repair(range(6), bridge, 3)
    assert len(plan.add) == 1
    check(list(range(6)), apply(bridge, plan), 3)
    # 0 is the cut vertex between a full four (0, 1, 2, 3, with 1 to 3 full at 3) and the line 0-4-5.
    full = square | {(0, 4), (4, 5)}
    plan = repair(range(6), full, 3)
    assert plan.remove
    check(list(range(6)), apply(full, plan), 3)
    # 0 is the cut vertex between 1 to 4, all full at 3, and 5. The link moves away from 0, which stays connected.
    hanging = {(0, 1), (0, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4), (0, 5)}
    assert repair(range(6), hanging, 3) == Repair(((1, 5),), ((0, 1),))


def test_a_lowered_maximum_is_kept() -> None:
    links = set(itertools.combinations(range(8), 2))
    check(list(range(8)), apply(links, repair(range(8), links, 3)), 3)


def test_lower_latency_is_preferred_for_a_new_link() -> None:
    plan = repair([0, 1, 2, 3], {(0, 1), (1, 2), (0, 2)}, 5, latency_ms={0: 9.0, 1: 1.0, 2: 2.0, 3: 1.0})
    assert plan.add == ((1, 3), (2, 3))


def test_a_broken_link_is_replaced_and_one_without_alternative_is_kept() -> None:
    ring = {(0, 1), (1, 2), (2, 3), (0, 3)}
    plan = repair(range(4), ring, 5, avoid={(0, 1)})
    assert plan.remove == ((0, 1),)
    assert (0, 1) not in plan.add
    assert repair([0, 1], {(0, 1)}, 5, avoid={(0, 1)}) == Repair((), ())


def test_unnecessary_links_are_trimmed_in_the_given_order() -> None:
    ring = {(0, 1), (1, 2), (2, 3), (0, 3)}
    assert trim(range(4), ring | {(0, 2), (1, 3)}, [(1, 3), (0, 2)]) == ((1, 3), (0, 2))
    assert trim(range(4), ring, [(0, 1)]) == ()
    assert trim([0, 1], {(0, 1)}, [(0, 1)]) == ()


@settings(max_examples=examples(100), deadline=None)
@given(overlays())
def test_trimming_keeps_the_overlay_connected(overlay: tuple[list[int], set[Link], int]) -> None:
    living, links, degree_max = overlay
    links = apply(links, repair(living, links, degree_max))
    links -= set(trim(living, links, sorted(links)))
    check(living, links, degree_max)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_federators_need_no_second_link(count: int) -> None:
    assert len(repair(range(count), set(), 2).add) == max(0, count - 1)


def test_the_same_overlay_gives_the_same_repair_in_any_order() -> None:
    links = [(0, 1), (1, 2), (2, 3), (3, 4), (5, 6)]
    assert repair(range(7), links, 5) == repair(list(reversed(range(7))), links[::-1], 5)


def test_a_block_tree_predicts_the_effect_of_a_link() -> None:
    tree = BlockTree(nx.path_graph(5))
    assert tree.bound() == 1
    first, second = tree.leaves
    assert tree.bound_after(first, second) == 0
    assert {first.inner, second.inner} == {frozenset({0}), frozenset({4})}
