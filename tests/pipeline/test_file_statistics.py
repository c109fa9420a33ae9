import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.pipeline.file_statistics import FileStatistics, file_statistics


def statistics_of(path: Path, *groups: dict[str, list[Any]], schema: pa.Schema | None = None) -> FileStatistics:
    tables = [pa.table(group, schema=schema) for group in groups]
    with pq.ParquetWriter(path, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    return file_statistics(pq.read_metadata(path))


def test_ranges_and_nulls_cover_all_row_groups(tmp_path: Path) -> None:
    found = statistics_of(
        tmp_path / "f", {"n": [5, None, 9], "s": ["b", "c", "b"]}, {"n": [2, 3, None], "s": ["a", "b", "b"]}
    )
    assert json.loads(found.to_json()) == {
        "numRecords": 6,
        "minValues": {"n": 2, "s": "a"},
        "maxValues": {"n": 9, "s": "c"},
        "nullCount": {"n": 2, "s": 0},
    }


def test_a_row_group_of_nulls_narrows_nothing(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64())])
    found = statistics_of(tmp_path / "f", {"n": [None, None]}, {"n": [4, 5]}, schema=schema)
    assert (found.smallest, found.largest, found.nulls) == ({"n": 4}, {"n": 5}, {"n": 2})
    nothing = statistics_of(tmp_path / "g", {"n": [None, None]}, schema=schema)
    assert (nothing.smallest, nothing.largest, nothing.nulls) == ({}, {}, {"n": 2})


def test_times_are_rounded_outwards_to_milliseconds(tmp_path: Path) -> None:
    times = [datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC), datetime(2026, 1, 2, 3, 4, 6, 999_001, UTC)]
    schema = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("d", pa.date32())])
    found = statistics_of(tmp_path / "f", {"t": times, "d": [date(2026, 1, 2), date(2026, 1, 3)]}, schema=schema)
    assert found.smallest == {"t": "2026-01-02T03:04:05.678Z", "d": "2026-01-02"}
    assert found.largest == {"t": "2026-01-02T03:04:07.000Z", "d": "2026-01-03"}


def test_binary_boolean_nested_and_unordered_columns_have_no_range(tmp_path: Path) -> None:
    group: dict[str, list[Any]] = {"b": [b"x"], "flag": [True], "tags": [["a"]], "f": [float("inf")]}
    found = statistics_of(tmp_path / "f", group)
    assert found.smallest == found.largest == {}
    assert found.nulls == {"b": 0, "flag": 0, "f": 0}


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=40), min_size=1, max_size=5))
@settings(max_examples=examples(200), deadline=None)
def test_no_string_lies_outside_the_range(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    found = statistics_of(tmp_path_factory.mktemp("s") / "f", {"s": texts})
    assert found.smallest["s"] <= min(texts)
    if "s" in found.largest:
        assert found.largest["s"] >= max(texts)


@pytest.mark.parametrize(
    ("text", "largest"),
    [("a" * 32, "a" * 32), ("a" * 33, "a" * 31 + "b"), ("\U0010ffff" * 33, None), ("a" + "\U0010ffff" * 33, "b")],
)
def test_a_cut_maximum_is_raised(tmp_path: Path, text: str, largest: str | None) -> None:
    found = statistics_of(tmp_path / "f", {"s": [text]})
    assert found.largest.get("s") == largest
    assert ("s" in found.smallest) == (largest is not None)
