"""Overlays: each shape is connected, simple, and the same for the same seed."""

from random import Random

import pytest

from hanse.errors import LocalError
from hanse.sim import overlay
from hanse.sim.overlay import Overlay


def degrees(shape: Overlay) -> list[int]:
    return [len(shape.neighbours(identity)) for identity in shape.identities]


def test_line_has_the_longest_paths() -> None:
    shape = overlay.line(6)
    assert shape.links == ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))
    assert shape.diameter() == 5


def test_ring_has_two_paths_everywhere() -> None:
    shape = overlay.ring(8)
    assert degrees(shape) == [2] * 8
    assert shape.diameter() == 4


def test_grid_has_rows_and_columns() -> None:
    shape = overlay.grid(3, 4)
    assert len(shape.links) == 3 * 3 + 2 * 4
    assert shape.neighbours(5) == (1, 4, 6, 9)


def test_full_has_every_link() -> None:
    assert len(overlay.full(8).links) == 28


def test_given_sorts_and_joins_double_links() -> None:
    assert overlay.given([2, 0, 1], [(1, 0), (0, 1), (2, 1)]).links == ((0, 1), (1, 2))


@pytest.mark.parametrize(("count", "degree"), [(4, 3), (10, 3), (20, 4), (101, 5), (1_000, 5)])
def test_random_regular_is_simple_connected_and_regular(count: int, degree: int) -> None:
    for seed in range(5):
        shape = overlay.random_regular(count, degree, Random(seed))
        assert shape.is_connected()
        assert sum(degrees(shape)) == count * degree - (count * degree) % 2
        assert set(degrees(shape)) <= {degree, degree - 1}
        assert shape == overlay.random_regular(count, degree, Random(seed))


def test_random_regular_of_degree_two_is_one_ring() -> None:
    assert overlay.random_regular(30, 2, Random(3)).is_connected()


def test_placement_keeps_degrees_within_the_limit_and_everyone_connected() -> None:
    for seed in range(10):
        shape = overlay.placement(40, 5, Random(seed))
        assert shape.is_connected()
        assert max(degrees(shape)) <= 5


def test_placement_takes_the_nearest_neighbour_and_then_the_one_with_the_fewest_neighbours() -> None:
    # The third federator has both others as candidates. From the fourth on, each has exactly two links of its own.
    shape = overlay.placement(12, 5, Random(1))
    assert len(shape.links) == 1 + 2 * 10


def test_placement_splits_a_link_if_all_are_full() -> None:
    # With at most two neighbours the first three make a ring, and each further federator is put into a link.
    shape = overlay.placement(9, 2, Random(1))
    assert degrees(shape) == [2] * 9
    assert shape.is_connected()


def test_scale_free_has_hubs() -> None:
    shape = overlay.scale_free(200, 2, Random(5))
    assert shape.is_connected()
    assert max(degrees(shape)) > 15
    assert sorted(degrees(shape))[100] <= 3


@pytest.mark.parametrize("kind", overlay.KINDS)
def test_every_kind_can_be_named_and_is_connected(kind: str) -> None:
    shape = overlay.build(kind, 12, 4, Random(1))
    assert len(shape.identities) == 12
    assert shape.is_connected()
    assert overlay.build(kind, 1, 4, Random(1)).links == ()
    assert overlay.build(kind, 2, 4, Random(1)).links == ((0, 1),)


def test_links_and_grids_can_be_given_as_text() -> None:
    assert overlay.build("0-1,1-2", 3, 4, Random(1)).links == ((0, 1), (1, 2))
    assert overlay.build("grid:2x3", 6, 4, Random(1)) == overlay.grid(2, 3)


@pytest.mark.parametrize(
    ("kind", "count", "message"),
    [
        ("star", 5, "expected one of random, ring"),
        ("0-1,1", 3, "expected one of"),
        ("grid:2x3", 7, "has 6 brokers, but --brokers says 7"),
        ("0-9", 3, "must join two different brokers"),
        ("1-1", 3, "must join two different brokers"),
        ("random", 0, "at least 1"),
    ],
)
def test_an_impossible_overlay_is_refused(kind: str, count: int, message: str) -> None:
    with pytest.raises(LocalError, match=message):
        overlay.build(kind, count, 4, Random(1))


def test_an_impossible_degree_is_refused() -> None:
    with pytest.raises(LocalError, match="Degree 5 with 5 brokers"):
        overlay.random_regular(5, 5, Random(1))


def test_an_overlay_checks_its_links() -> None:
    with pytest.raises(LocalError, match="distinct pairs"):
        Overlay((0, 1), ((1, 0),))


def test_components_are_found_in_order() -> None:
    shape = overlay.given(range(6), [(0, 3), (1, 2), (4, 5)])
    assert overlay.components(shape.identities, shape.neighbours) == [[0, 3], [1, 2], [4, 5]]
    assert not shape.is_connected()
