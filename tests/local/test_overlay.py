import pytest

from hanse.errors import LocalError
from hanse.local.overlay import edges, neighbours


@pytest.mark.parametrize(
    ("shape", "brokers", "expected"),
    [
        ("line", 4, [(0, 1), (1, 2), (2, 3)]),
        ("ring", 4, [(0, 1), (0, 3), (1, 2), (2, 3)]),
        ("ring", 2, [(0, 1)]),
        ("ring", 1, []),
        ("full", 4, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
        ("star", 4, [(0, 1), (0, 2), (0, 3)]),
        ("grid:2x3", 6, [(0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)]),
        ("grid:1x3", 3, [(0, 1), (1, 2)]),
    ],
)
def test_each_shape_has_its_links(shape: str, brokers: int, expected: list[tuple[int, int]]) -> None:
    assert edges(shape, brokers) == expected


def test_the_papers_grid_of_nine_has_twelve_links() -> None:
    links = edges("grid:3x3", 9)
    assert len(links) == 12
    assert neighbours(links, 9)[4] == [1, 3, 5, 7]


def test_neighbours_are_mutual_and_a_lone_broker_has_none() -> None:
    assert neighbours(edges("star", 3), 3) == [[1, 2], [0], [0]]
    assert neighbours([], 1) == [[]]


@pytest.mark.parametrize(
    ("shape", "brokers", "sentence"),
    [
        ("torus", 4, "expected ring, line, full, star or grid:RxC"),
        ("grid:3", 3, "expected ring"),
        ("grid:3x3", 5, "9 places for 5 brokers; give --brokers 9"),
        ("ring", 0, "expected 1 to 1000"),
        ("ring", 1001, "expected 1 to 1000"),
    ],
)
def test_a_wrong_shape_gives_an_error_sentence(shape: str, brokers: int, sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        edges(shape, brokers)
