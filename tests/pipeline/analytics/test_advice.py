from typing import Any

import pytest

from hanse.errors import LocalError
from hanse.pipeline.advice import AdviceSettings, GroupTraffic, advice, advise
from hanse.pipeline.schemas import advice as advice_schema
from hanse.pipeline.schemas import silver, topology_intervals, traffic_matrix

# A line of five, as in a row of plants.
LINE = [("1", "2"), ("2", "3"), ("3", "4"), ("4", "5")]


def only(group: GroupTraffic, links: list[tuple[str, str]], **settings: Any) -> Any:
    found = advise([group], links, AdviceSettings(**settings))
    assert len(found) == 1
    return found[0]


def test_a_core_between_origin_and_members_crosses_the_fewest_links() -> None:
    said = only(GroupTraffic("a", {"5": 1_000}, frozenset({"4", "3"}), core="1"), LINE)
    # From 1 the mesh reaches to 4, and the origin's route adds a link; from 3 only the two links to 5 count.
    assert (said.crossings, said.advised_core, said.advised_crossings) == (4_000, "3", 2_000)
    assert said.saving_share == 0.5
    assert said.is_worth_moving


def test_a_small_saving_or_little_traffic_is_not_worth_a_move() -> None:
    busy = GroupTraffic("a", {"5": 1_000}, frozenset({"4", "3"}), core="1")
    assert not only(busy, LINE, saving_share_min=0.6).is_worth_moving
    assert not only(busy, LINE, publications_min=1_001).is_worth_moving


def test_the_best_core_stays() -> None:
    said = only(GroupTraffic("a", {"5": 1_000}, frozenset({"4", "3"}), core="3"), LINE)
    assert (said.advised_core, said.saving_share, said.is_worth_moving) == ("3", 0.0, False)


def test_a_core_off_the_overlay_is_replaced() -> None:
    said = only(GroupTraffic("a", {"2": 1_000}, frozenset({"3"}), core="9"), LINE)
    assert (said.crossings, said.advised_core, said.is_worth_moving) == (None, "2", True)


def test_advice_on_a_partitioned_overlay_prefers_the_side_with_the_most_members() -> None:
    parted = [("1", "2"), ("4", "5"), ("5", "6")]
    said = only(GroupTraffic("a", {"1": 10, "4": 10}, frozenset({"5", "6"}), core="1"), parted)
    assert said.advised_core == "4"


def test_a_group_off_the_overlay_gets_no_advice_and_the_order_is_by_name() -> None:
    groups = [
        GroupTraffic("z", {"1": 1}, frozenset({"2"})),
        GroupTraffic("b", {"8": 1}, frozenset({"9"})),
        GroupTraffic("a", {"1": 1}, frozenset({"2"})),
    ]
    assert [said.group for said in advise(groups, LINE)] == ["a", "z"]
    assert advise(groups, []) == []


def test_on_a_large_overlay_only_members_and_origins_are_tried() -> None:
    ring = [(f"{i:03d}", f"{(i + 1) % 120:03d}") for i in range(120)]
    said = only(GroupTraffic("a", {"010": 5}, frozenset({"000", "020"}), core="060"), ring)
    assert said.advised_core in {"000", "010", "020"}
    assert said.advised_crossings == 100


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(LocalError, match="saving_share_min is 1"):
        AdviceSettings(saving_share_min=1)
    with pytest.raises(LocalError, match="publications_min is -1"):
        AdviceSettings(publications_min=-1)


@pytest.mark.spark
def test_advice_comes_from_the_matrix_the_links_and_the_last_election(make: Any, check: Any) -> None:
    matrix = make(
        traffic_matrix.TABLE,
        "window_start origin destination group publications",
        (0, "5", "4", "a", 600),
        (60, "5", "4", "a", 400),
        (60, "5", "3", "a", 990),
        (60, "1", "2", "b", 10),
    )
    intervals = make(
        topology_intervals.TABLE,
        "element federator neighbour down_at",
        *[("link", one, other, None) for one, other in LINE],
        ("link", "3", "5", 9),  # a former shortcut
        ("federator", "7", None, None),
    )
    mesh = make(
        silver.TABLES["mesh"],
        "at event group federator epoch",
        (1, "core_elected", "a", "2", 7),
        (9, "core_elected", "a", "1", 7),
        (9, "member_joined", "a", "4", 9),
    )
    check(
        advice(matrix, intervals, mesh),
        advice_schema.TABLE,
        "group core advised_core publications crossings advised_crossings saving_share is_worth_moving",
        ("a", "1", "3", 1_000, 4_000, 2_000, 0.5, True),
        ("b", None, "1", 10, None, 10, None, False),
    )
