from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.errors import LocalError
from hanse.protocol.grouping import PREFIX_LEVELS_MAX, Grouping
from hanse.protocol.topics import (
    LEVELS_MAX,
    TOPIC_BYTES_MAX,
    check_filter,
    covers,
    filter_may_cross,
    split_share,
)

BOUNDED = settings(max_examples=examples(300), deadline=None)

POLICIES = ["filter", "single", *(f"prefix:{levels}" for levels in range(1, PREFIX_LEVELS_MAX + 1))]
LEVEL = st.sampled_from(["", "a", "b", "+", "$SYS"])


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(LEVEL, max_size=6))
    if draw(st.booleans()):
        levels = ["$hanse", "telemetry", *levels]
    if draw(st.booleans()) or not "/".join(levels):
        levels.append("#")
    share = draw(st.sampled_from(["", "$share/workers/"]))
    return share + "/".join(levels)


@pytest.mark.parametrize("text", POLICIES)
def test_a_policy_round_trips_through_its_text(text: str) -> None:
    assert str(Grouping.parse(text)) == text
    assert Grouping.parse(text) == Grouping.parse(text)


def test_each_filter_is_a_group_by_default() -> None:
    assert Grouping() == Grouping.parse("filter")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "prefix",
        "prefix:",
        "prefix:0",
        "prefix:33",
        "prefix:-1",
        "prefix:02",
        "prefix: 2",
        "prefix:2 ",
        "prefix:٣",
        "prefix:1_0",
        "Filter",
        " single",
        "none",
        "x" * 100_000,
    ],
    ids=lambda text: text[:12],
)
def test_an_unknown_policy_is_refused_with_the_expected_values(text: str) -> None:
    with pytest.raises(LocalError, match="expected filter, single, or prefix:N with N from 1 to 32") as caught:
        Grouping.parse(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("arguments", [("bogus", 0), ("prefix", 0), ("prefix", 33), ("filter", 2), ("single", 1)])
def test_a_policy_without_a_name_cannot_be_built(arguments: tuple[Any, int]) -> None:
    with pytest.raises(LocalError):
        Grouping(*arguments)


@pytest.mark.parametrize(
    ("policy", "filter_", "group"),
    [
        ("filter", "a/b/c", "a/b/c"),
        ("filter", "a/+/#", "a/+/#"),
        ("filter", "$share/g/a/b", "a/b"),
        ("prefix:2", "a/b/c", "a/b/#"),
        ("prefix:2", "a/b/#", "a/b/#"),
        ("prefix:2", "a/b/c/#", "a/b/#"),
        ("prefix:2", "a/b", "a/b"),
        ("prefix:2", "a/#", "a/#"),
        ("prefix:2", "a", "a"),
        ("prefix:2", "a/+/c/d", "a/+/#"),
        ("prefix:2", "#", "#"),
        ("prefix:2", "+/#", "+/#"),
        ("prefix:2", "//a", "//#"),
        ("prefix:1", "/", "/#"),
        ("prefix:1", "+/b/c", "+/#"),
        ("prefix:2", "$share/g/a/b/c", "a/b/#"),
        ("prefix:1", "$hanse/telemetry/#", "$hanse/#"),
        ("prefix:2", "$hanse/telemetry/v1/+/3", "$hanse/telemetry/#"),
        ("prefix:32", "/".join("a" * LEVELS_MAX), "/".join("a" * 32) + "/#"),
        ("single", "a/b", "#"),
        ("single", "#", "#"),
        ("single", "+/a", "#"),
        ("single", "a/$b", "#"),
        ("single", "$share/g/a", "#"),
        ("single", "$hanse/telemetry/#", "$hanse/telemetry/#"),
        ("single", "$share/g/$hanse/telemetry/#", "$hanse/telemetry/#"),
    ],
)
def test_a_filter_maps_to_its_group(policy: str, filter_: str, group: str) -> None:
    assert Grouping.parse(policy).group_of(filter_) == group


def test_a_filter_whose_group_would_be_a_byte_too_long_is_its_own_group() -> None:
    policy = Grouping.parse("prefix:1")
    longest = "a" * (TOPIC_BYTES_MAX - 1) + "/"
    assert policy.group_of(longest) == longest
    assert policy.group_of(longest[1:]) == longest[1:] + "#"


@BOUNDED
@given(st.sampled_from(POLICIES), filters())
def test_a_group_covers_its_filter_and_is_a_plain_valid_filter(policy: str, filter_: str) -> None:
    check_filter(filter_)
    group = Grouping.parse(policy).group_of(filter_)
    check_filter(group)
    assert covers(group, filter_)
    assert split_share(group) == (None, group)
    assert filter_may_cross(group) or not filter_may_cross(filter_)


@BOUNDED
@given(st.sampled_from(POLICIES), filters())
def test_the_group_of_a_group_is_the_group_itself(policy: str, filter_: str) -> None:
    grouping = Grouping.parse(policy)
    group = grouping.group_of(filter_)
    again = grouping.group_of(group)
    assert again == group
