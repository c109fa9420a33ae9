from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.protocol.graphs import Link, both_ways, connected, distances
from tests.protocol.net import Network

from hanse.protocol.messages import UNREACHABLE
from hanse.protocol.routes import STEPS_BACK, Route
from hanse.protocol.settings import MANAGEMENT_GROUP


def everyone(_: int) -> bool:
    return True


def heard(**entries: tuple[int, int]) -> Route:
    """Return a route with the announcements of neighbours `n1`, `n2`…: sequence number and distance."""
    route = Route(9, 1_000)
    for name, (sequence, distance) in entries.items():
        route.entries[int(name[1:])] = [sequence, distance, 0.0, 0]
    return route


def test_an_empty_route_leads_nowhere() -> None:
    route = Route(9, 1_000)
    assert not route.choose(everyone, 2)
    assert (route.distance, route.parents) == (UNREACHABLE, ())


def test_the_nearest_are_the_parents_smaller_ids_first() -> None:
    route = heard(n7=(1, 1), n3=(1, 1), n5=(1, 1), n1=(1, 2))
    assert route.choose(everyone, 2)
    assert (route.distance, route.parents) == (2, (3, 5))
    assert not route.choose(everyone, 2)


def test_an_unusable_neighbour_is_no_parent() -> None:
    route = heard(n1=(1, 1), n2=(1, 2))
    route.choose(lambda neighbour: neighbour != 1, 2)
    assert (route.distance, route.parents) == (3, (2,))


def test_the_sequence_number_is_the_newest_of_the_nearest_even_beyond_the_redundancy() -> None:
    route = heard(n1=(4, 1), n2=(6, 1), n3=(9, 2))
    route.choose(everyone, 1)
    assert (route.parents, route.sequence) == ((1,), 6)


def test_a_neighbour_at_our_distance_or_beyond_is_not_feasible_at_a_number_that_we_announced() -> None:
    route = heard(n1=(5, 1))
    route.choose(everyone, 2)
    route.note_announced()
    assert [route.is_feasible(5, distance) for distance in (1, 2, 3)] == [True, False, False]
    assert [route.is_feasible(6, distance) for distance in (1, 2, 3)] == [True, True, True]
    assert not route.is_feasible(4, 2)


def test_the_feasible_distance_at_an_older_number_is_that_of_its_time() -> None:
    route = Route(9, 1_000)
    for sequence, distance in ((1, 2), (5, 4), (9, 3)):
        route.sequence, route.distance = sequence, distance
        route.note_announced()
    assert [route.is_feasible(sequence, 3) for sequence in (1, 4, 5, 8, 9, 10)] == [
        False,
        False,
        True,
        True,
        False,
        True,
    ]


def test_a_smaller_distance_at_an_announced_number_bounds_all_earlier_ones() -> None:
    route = Route(9, 1_000)
    for sequence, distance in ((1, 2), (5, 4), (5, 1)):
        route.sequence, route.distance = sequence, distance
        route.note_announced()
    assert [route.is_feasible(sequence, 1) for sequence in (1, 5, 6)] == [False, False, True]
    route.sequence, route.distance = 4, 7  # an older number and a longer route change nothing
    route.note_announced()
    assert route.announced == 5
    assert not route.is_feasible(5, 1)


def test_a_limited_number_of_sequence_numbers_is_remembered() -> None:
    route = Route(9, 1_000)
    for sequence in range(10 * STEPS_BACK):
        route.sequence, route.distance = sequence, 2 + sequence % 2
        route.note_announced()
    assert len(route.steps) <= STEPS_BACK + 1


# --- many routes ----------------------------------------------------------------------------------------------------


def latencies(links: list[Link], drawn: list[int]) -> dict[Link, float]:
    ways = both_ways(links)
    return {way: drawn[index % len(drawn)] / 1_000 for index, way in enumerate(ways)}


def assert_no_parent_loop(net: Network, core: int) -> None:
    for identity in net.machines:
        behind: set[int] = set()
        stack = [identity]
        while stack:
            parents = set(net.machines[stack.pop()].parents_of(core)) - behind
            behind |= parents
            stack += parents
        assert identity not in behind, f"{identity} is behind itself on the way to {core}"


DRAWN = st.lists(st.integers(5, 100), min_size=1, max_size=16)


@settings(max_examples=examples(40), deadline=None)
@given(connected(), DRAWN)
def test_distances_are_those_of_the_graph_and_parents_are_nearer(
    overlay: tuple[int, list[Link]], drawn: list[int]
) -> None:
    size, links = overlay
    net = Network(size, links, latency_s=latencies(links, drawn))
    net.run(6)
    assert net.cores(MANAGEMENT_GROUP) == {0}
    true = distances(links, 0)
    for identity, machine in net.machines.items():
        assert machine.distance_to(0) == true[identity]
        assert all(true[parent] == true[identity] - 1 for parent in machine.parents_of(0))
        nearer = sum(1 for one, other in both_ways(links) if one == identity and true[other] < true[identity])
        assert len(machine.parents_of(0)) == min(nearer, 2)


@settings(max_examples=examples(40), deadline=None)
@given(connected(), DRAWN, st.data())
def test_no_parent_loop_remains_after_links_were_cut(
    overlay: tuple[int, list[Link]], drawn: list[int], data: st.DataObject
) -> None:
    size, links = overlay
    net = Network(size, links, latency_s=latencies(links, drawn))
    net.run(5)
    cut = data.draw(st.lists(st.sampled_from(links), max_size=3, unique=True))
    for link in cut:
        net.cut(*link)
        net.run(data.draw(st.integers(0, 300)) / 1_000)
        assert_no_parent_loop(net, 0)
    net.run(5)
    assert_no_parent_loop(net, 0)
    left = [link for link in links if link not in cut]
    true = distances(left, 0)
    for identity, machine in net.machines.items():
        assert machine.distance_to(0) == true.get(identity)
