from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.pipeline.spool.rows import ROOMY, fill, numbers

from hanse.errors import LocalError
from hanse.pipeline.spool import (
    Position,
    SpoolCorruptError,
    SpoolGoneError,
    SpoolLimits,
    SpoolReader,
    SpoolWriter,
    list_producers,
    read_slice,
)
from hanse.pipeline.spool.format import START

SIZES = [3, 1, 5, 2, 8, 1, 1, 4, 7, 2, 6, 3]


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Position]]:
    root = tmp_path_factory.mktemp("spool")
    with SpoolWriter(root, "p", limits=SpoolLimits(segment_bytes_max=1500, free_bytes_min=0)) as writer:
        return root, fill(writer, SIZES)


def test_a_spool_that_does_not_exist_yet_is_empty(tmp_path: Path) -> None:
    assert list_producers(tmp_path / "nowhere") == []
    reader = SpoolReader(tmp_path / "nowhere", "p")
    assert reader.head() == reader.tail() == START
    assert reader.advance(START, end=START, rows_max=10) == START
    assert reader.slices(START, START) == []


def test_producers_are_listed_without_the_consumers_marks(tmp_path: Path) -> None:
    for name in ("b", "a", ".consumers"):
        (tmp_path / name).mkdir()
    (tmp_path / "a-file").touch()
    assert list_producers(tmp_path) == ["a", "b"]


def test_a_reader_sees_what_is_appended_after_it_was_opened(tmp_path: Path) -> None:
    reader = SpoolReader(tmp_path, "p")
    assert reader.tail() == START
    with SpoolWriter(tmp_path, "p", limits=SpoolLimits(segment_bytes_max=1000, free_bytes_min=0)) as writer:
        for _ in range(9):
            end = fill(writer, [4])[0]
            assert reader.tail() == end
    assert [part.rows for part in reader.slices(reader.head(), reader.tail())]
    assert sum(part.rows for part in reader.slices(reader.head(), reader.tail())) == 36


def test_an_index_record_that_is_not_whole_is_not_visible(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        first = fill(writer, [3, 4])[0]
    path = next((tmp_path / "p").glob("*.idx"))
    records = path.read_bytes()
    reader = SpoolReader(tmp_path, "p")
    for seen in (records[:60], records[:-1] + b"\x00"):
        path.write_bytes(seen)
        assert SpoolReader(tmp_path, "p").tail() == first
    assert reader.tail() == first
    path.write_bytes(records)
    assert reader.tail().rows == 7


@given(
    start=st.integers(-1, len(SIZES) - 1),
    rows_max=st.none() | st.integers(0, 50),
    bytes_max=st.none() | st.integers(0, 6000),
    end=st.integers(0, len(SIZES) - 1),
)
@settings(max_examples=examples(300), deadline=None)
def test_a_batch_extends_as_far_as_both_limits_allow_but_at_least_one_block(
    spool: tuple[Path, list[Position]], start: int, rows_max: int | None, bytes_max: int | None, end: int
) -> None:
    root, ends = spool
    begin = ends[start] if start >= 0 else START
    end = max(start, end)
    stop = ends[end] if end >= 0 else START
    reached = SpoolReader(root, "p").advance(begin, end=stop, rows_max=rows_max, bytes_max=bytes_max)

    at, rows, size, before = start, 0, 0, begin
    for n in range(start + 1, end + 1):
        rows += ends[n].rows - before.rows
        size += ends[n].pos - (before.pos if before.seg == ends[n].seg else 0)
        fits = (rows_max is None or rows <= rows_max) and (bytes_max is None or size <= bytes_max)
        if not fits and n > start + 1:
            break
        at, before = n, ends[n]
        if not fits:
            break
    assert reached == (ends[at] if at >= 0 else START)


@given(start=st.integers(-1, len(SIZES) - 1), end=st.integers(-1, len(SIZES) - 1), slice_bytes=st.integers(1, 4000))
@settings(max_examples=examples(200), deadline=None)
def test_slices_hold_every_row_between_two_positions_once_and_in_order(
    spool: tuple[Path, list[Position]], start: int, end: int, slice_bytes: int
) -> None:
    root, ends = spool
    begin = ends[start] if start >= 0 else START
    stop = max(begin, ends[end] if end >= 0 else START)
    parts = SpoolReader(root, "p").slices(begin, stop, slice_bytes=slice_bytes)
    found = [n for part in parts for batch in read_slice(part) for n in batch.column("seq").to_pylist()]
    assert found == list(range(begin.rows, stop.rows))
    assert sum(part.rows for part in parts) == len(found)


def test_blocks_outside_the_requested_times_are_left_out(spool: tuple[Path, list[Position]]) -> None:
    root, ends = spool
    reader = SpoolReader(root, "p")
    parts = reader.slices(reader.head(), reader.tail(), received_us_min=3, received_us_max=5)
    found = [n for part in parts for batch in read_slice(part) for n in batch.column("seq").to_pylist()]
    assert found == list(range(ends[2].rows, ends[5].rows))


def test_the_position_at_a_time_is_the_first_block_received_then_or_later(spool: tuple[Path, list[Position]]) -> None:
    root, ends = spool
    reader = SpoolReader(root, "p")
    assert reader.position_at(-1).rows == 0
    assert reader.position_at(4).rows == ends[3].rows
    assert reader.position_at(99) == reader.tail()


def test_a_flipped_bit_anywhere_in_a_block_is_an_error_not_a_row(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        first, end = fill(writer, [2, 3])
    path = next((tmp_path / "p").glob("*.seg"))
    data = path.read_bytes()
    for at in range(first.pos, end.pos, 3):
        broken = bytearray(data)
        broken[at] ^= 1 << (at % 8)
        path.write_bytes(broken)
        with pytest.raises(SpoolCorruptError, match="failOnDataLoss"):
            numbers(tmp_path, "p")


def test_damaged_blocks_are_skipped_on_request_and_each_is_reported(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        first, second, _ = fill(writer, [2, 3, 4])
    path = next((tmp_path / "p").glob("*.seg"))
    data = path.read_bytes()
    reader = SpoolReader(tmp_path, "p")
    (part,) = reader.slices(reader.head(), reader.tail())

    broken = bytearray(data)
    broken[second.pos - 1] ^= 1
    path.write_bytes(broken)
    told: list[SpoolCorruptError] = []
    found = [n for batch in read_slice(part, on_damage=told.append) for n in batch.column("seq").to_pylist()]
    assert found == [0, 1, 5, 6, 7, 8]
    assert "3 rows from 2 on" in str(told[0])

    broken = bytearray(data)
    broken[first.pos] ^= 1
    path.write_bytes(broken)
    told.clear()
    found = [n for batch in read_slice(part, on_damage=told.append) for n in batch.column("seq").to_pylist()]
    assert found == [0, 1]
    assert "7 rows from 2 on" in str(told[0])


def test_a_damaged_index_below_its_end_is_an_error(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        fill(writer, [2, 3])
    path = next((tmp_path / "p").glob("*.idx"))
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    with pytest.raises(SpoolCorruptError, match="Record 0"):
        SpoolReader(tmp_path, "p").tail()


def test_rows_deleted_before_they_were_read_raise_an_error(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=SpoolLimits(segment_bytes_max=1, free_bytes_min=0)) as writer:
        ends = fill(writer, [2, 3, 4])
    oldest = min((tmp_path / "p").glob("*.seg"))
    reader = SpoolReader(tmp_path, "p")
    (part, *_) = reader.slices(reader.head(), reader.tail())
    oldest.unlink()
    with pytest.raises(SpoolGoneError, match="begins at row 2"):
        reader.advance(START, end=ends[-1])
    with pytest.raises(SpoolGoneError, match="the segment was deleted"):
        list(read_slice(part))
    # The end of a deleted segment equals the start of the next one.
    assert reader.advance(ends[0], end=ends[-1]) == ends[-1]


def test_an_executor_that_cannot_see_the_spool_explains_why(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path / "here", "p", limits=ROOMY) as writer:
        fill(writer, [2])
    reader = SpoolReader(tmp_path / "here", "p")
    (part,) = reader.slices(reader.head(), reader.tail())
    (tmp_path / "here").rename(tmp_path / "elsewhere")
    with pytest.raises(SpoolGoneError, match="every executor must see the spool"):
        list(read_slice(part))


def test_an_offset_of_another_spool_is_refused(spool: tuple[Path, list[Position]]) -> None:
    root, ends = spool
    with pytest.raises(LocalError, match="not a block boundary"):
        SpoolReader(root, "p").advance(Position(1, 17, 1), end=ends[-1])


@pytest.mark.parametrize(
    "value", [None, 3, {}, {"seg": 1}, {"seg": 1, "pos": -1, "rows": 0}, {"seg": True, "pos": 0, "rows": 0}]
)
def test_invalid_offsets_are_refused(value: object) -> None:
    with pytest.raises(LocalError, match="not a spool offset"):
        Position.from_json(value)
