import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.spooling import rows

from hanse.pipeline.schemas.mqtt import ROW, SPOOLED_ROW, conform, struct_type
from hanse.pipeline.sources.rows import count_tasks, pack, topic_regex
from hanse.pipeline.spool import Slice
from hanse.pipeline.spool.format import SegmentName


def matches(filters: list[str], topic: str) -> bool:
    found: bool = pc.match_substring_regex(pa.array([topic]), topic_regex(filters))[0].as_py()
    return found


@pytest.mark.parametrize(
    ("one", "topic", "is_match"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player12", False),
        ("sport/#", "sport", True),
        ("#", "a/b/c", True),
        ("#", "/", True),
        ("#", "$SYS/x", False),
        ("+/monitor", "$SYS/monitor", False),
        ("$SYS/#", "$SYS/x", True),
        ("+", "a", True),
        ("+", "/a", False),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a/b/d/c", False),
        ("a.c", "abc", False),
        ("a b/(c)", "a b/(c)", True),
        ("a/#", "a/line\nbreak", True),
        ("a/b", "a/b\n", False),
        ("ä/+", "ä/ö", True),
    ],
)
def test_rows_are_selected_by_the_standards_topic_matching(one: str, topic: str, is_match: bool) -> None:
    assert matches([one], topic) is is_match
    assert matches(["no/such", one], topic) is is_match


TOPIC = st.text(st.sampled_from("ab/$.*"), min_size=1, max_size=6)


@given(TOPIC, st.lists(st.sampled_from(["a", "b", "+", "", "$", "."]), min_size=1, max_size=4), st.booleans())
def test_the_expression_agrees_with_matching_level_by_level(topic: str, levels: list[str], ends_open: bool) -> None:
    wanted = [*levels, "#"] if ends_open else levels
    one = "/".join(wanted)
    if not one:
        return
    assert matches([one], topic) is by_levels(wanted, topic.split("/"))


def by_levels(wanted: list[str], levels: list[str]) -> bool:
    if levels[0].startswith("$") and wanted[0] in {"+", "#"}:
        return False
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        levels = levels[: len(wanted)] if len(levels) >= len(wanted) else levels
    return len(wanted) == len(levels) and all(w in {"+", found} for w, found in zip(wanted, levels, strict=True))


def test_a_spooled_row_conforms_to_sparks_schema_including_nullability() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    batch = conform(rows("p", 0, 5))
    assert batch.schema.equals(to_arrow_schema(struct_type(), timezone="UTC"))
    assert batch.schema.equals(ROW)
    assert "packet_id" not in batch.schema.names


def test_a_block_of_an_older_schema_gets_nulls_for_missing_columns() -> None:
    old = rows("p", 0, 5).drop_columns(["hops", "packet_id"])
    batch = conform(old)
    assert batch.schema.equals(ROW)
    assert batch.column("hops").null_count == 5
    assert batch.column("seq").to_pylist() == [0, 1, 2, 3, 4]


def test_the_spool_adds_one_column_to_the_schema() -> None:
    assert SPOOLED_ROW.names == [*ROW.names, "packet_id"]


def part(size: int) -> Slice:
    return Slice("/s", "p", SegmentName(1, 0), 0, size, 0, 1)


def test_slices_are_distributed_in_order_over_tasks_of_about_equal_size() -> None:
    def sizes(*slices: int, tasks: int) -> list[list[int]]:
        return [[one.end_pos for one in task] for task in pack([part(size) for size in slices], tasks)]

    assert sizes(10, 10, 10, 10, tasks=2) == [[10, 10], [10, 10]]
    assert sizes(10, 20, 90, 100, 20, tasks=2) == [[10, 20, 90], [100, 20]]
    assert sizes(5, tasks=3) == [[5]]
    assert sizes(tasks=0) == []


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 8))
def test_every_slice_is_in_one_task_and_none_is_far_above_its_share(slices: list[int], tasks: int) -> None:
    packed = [[one.end_pos for one in task] for task in pack([part(size) for size in slices], tasks)]
    assert [size for task in packed for size in task] == slices
    assert len(packed) <= tasks
    assert all(sum(task) <= sum(slices) / tasks + max(slices) for task in packed)


def test_tasks_are_cut_for_the_cores_but_never_tiny_nor_huge() -> None:
    mib = 1024 * 1024
    assert [count_tasks(size, 4) for size in (0, 10, 3 * mib, 20 * mib, 512 * mib, 513 * mib)] == [0, 1, 3, 4, 4, 8]


def test_expression_characters_in_a_filter_are_literal() -> None:
    assert re.escape("a+b") in topic_regex(["x/a+b"]) or matches([r"x/[a]"], "x/[a]")
    assert not matches([r"x/[a]"], "x/a")
