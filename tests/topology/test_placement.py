from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.topology.model import Link, link_of
from hanse.topology.placement import STRATEGIES, Candidate, Placement, place_as_seeds, place_balanced
from hanse.topology.repair import graph_of, is_two_connected


def test_the_first_to_join_has_no_neighbour() -> None:
    assert place_as_seeds([], [], 5) == Placement(())


def test_the_first_two_federators_are_linked_to_each_other() -> None:
    assert place_as_seeds([Candidate(0, 1.0, 0)], [], 5) == Placement((0,))


def test_the_first_neighbour_is_the_fastest_and_the_second_has_the_fewest_neighbours() -> None:
    candidates = [Candidate(0, 5.0, 2), Candidate(1, 1.0, 3), Candidate(2, 9.0, 1), Candidate(3, 2.0, 2)]
    assert place_as_seeds(candidates, [], 5) == Placement((1, 2))


def test_the_fastest_federator_is_skipped_if_it_is_full() -> None:
    candidates = [Candidate(0, 1.0, 5), Candidate(1, 2.0, 4), Candidate(2, 3.0, 4)]
    assert place_as_seeds(candidates, [], 5) == Placement((1, 2))


def test_the_two_neighbours_are_distinct() -> None:
    # Federator 0 is both the fastest and the one with the fewest neighbours.
    assert place_as_seeds([Candidate(0, 1.0, 0), Candidate(1, 2.0, 3)], [], 5) == Placement((0, 1))


def test_ties_go_to_the_smaller_id_and_an_unknown_latency_counts_as_the_highest() -> None:
    candidates = [Candidate(3, None, 1), Candidate(2, 1.0, 1), Candidate(1, 1.0, 1), Candidate(0, None, 1)]
    assert place_as_seeds(candidates, [], 5) == Placement((1, 0))


def test_a_link_is_split_if_all_are_full() -> None:
    candidates = [Candidate(0, 3.0, 2), Candidate(1, 1.0, 2), Candidate(2, 1.0, 2)]
    links = [(0, 1), (0, 2), (1, 2)]
    assert place_as_seeds(candidates, links, 2) == Placement((1, 2), (1, 2))


def test_a_link_is_split_if_only_one_federator_has_capacity() -> None:
    candidates = [Candidate(0, 1.0, 1), Candidate(1, 2.0, 2), Candidate(2, 3.0, 2)]
    assert place_as_seeds(candidates, [(0, 1), (1, 2)], 2) == Placement((0, 1), (0, 1))


def test_the_balanced_strategy_grows_no_hub_around_the_fastest() -> None:
    candidates = [Candidate(0, 0.1, 4), Candidate(1, 5.0, 2), Candidate(2, 4.0, 2)]
    assert place_balanced(candidates, [], 5) == Placement((2, 1))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(sorted(STRATEGIES)),
    st.integers(2, 6),
    st.lists(st.none() | st.floats(0, 100), min_size=1, max_size=40),
)
def test_every_join_keeps_the_overlay_two_connected_and_the_degree(
    name: str, degree_max: int, latencies: list[float | None]
) -> None:
    links: set[Link] = set()
    for new in range(len(latencies)):
        graph = graph_of(range(new), links)
        candidates = [Candidate(i, latencies[i], graph.degree[i]) for i in range(new)]
        placed = STRATEGIES[name](candidates, links, degree_max)
        assert len(set(placed.neighbors)) == min(new, 2)
        links -= {placed.split} if placed.split else set()
        links |= {link_of(new, other) for other in placed.neighbors}
        graph = graph_of(range(new + 1), links)
        assert is_two_connected(graph)
        assert max(degree for _, degree in graph.degree) <= degree_max
