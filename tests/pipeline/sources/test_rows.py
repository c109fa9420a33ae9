import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.spooling import rows

from hanse.pipeline.schemas.mqtt import ROW, SPOOLED_ROW, conform, struct_type
from hanse.pipeline.sources.rows import pack, partition_bytes, topic_regex
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
def test_rows_are_kept_as_the_standard_matches_topics(one: str, topic: str, is_match: bool) -> None:
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


def test_a_spooled_row_conforms_to_what_spark_expects_to_the_nullability() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    batch = conform(rows("p", 0, 5))
    assert batch.schema.equals(to_arrow_schema(struct_type(), timezone="UTC"))
    assert batch.schema.equals(ROW)
    assert "packet_id" not in batch.schema.names


def test_a_block_of_an_older_contract_gets_nulls_for_what_it_lacks() -> None:
    old = rows("p", 0, 5).drop_columns(["hops", "packet_id"])
    batch = conform(old)
    assert batch.schema.equals(ROW)
    assert batch.column("hops").null_count == 5
    assert batch.column("seq").to_pylist() == [0, 1, 2, 3, 4]


def test_the_spool_adds_one_column_to_the_contract() -> None:
    assert SPOOLED_ROW.names == [*ROW.names, "packet_id"]


def part(size: int) -> Slice:
    return Slice("/s", "p", SegmentName(1, 0), 0, size, 0, 1)


def test_small_slices_share_a_task_and_large_ones_do_not() -> None:
    assert [
        [one.end_pos for one in task] for task in pack([part(10), part(20), part(90), part(200), part(5)], 100)
    ] == [
        [10, 20, 90],
        [200],
        [5],
    ]
    assert pack([], 100) == []


def test_tasks_are_cut_for_the_cores_but_never_tiny_nor_huge() -> None:
    mib = 1024 * 1024
    assert partition_bytes(10, 4) == mib
    assert partition_bytes(20 * mib, 4) == 5 * mib
    assert partition_bytes(10_000 * mib, 4) == 32 * mib


def test_a_filter_that_looks_like_an_expression_is_taken_literally() -> None:
    assert re.escape("a+b") in topic_regex(["x/a+b"]) or matches([r"x/[a]"], "x/[a]")
    assert not matches([r"x/[a]"], "x/a")
