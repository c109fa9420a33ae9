from pathlib import Path

import pytest
from tests.pipeline.spool.rows import fill, numbers

from hanse.errors import LocalError
from hanse.pipeline.spool import Position, SpoolLimits, SpoolWriter, forget_mark, load_marks, save_mark, sweep

HOUR_US = 3_600_000_000


@pytest.fixture
def ends(tmp_path: Path) -> list[Position]:
    """Write four segments with one block each, received at 0, 1, 2 and 3 microseconds."""
    with SpoolWriter(tmp_path, "p", limits=SpoolLimits(segment_bytes_max=1, free_bytes_min=0)) as writer:
        return fill(writer, [2, 3, 4, 5])


def test_old_segments_that_all_consumers_have_read_are_deleted_except_the_last(
    tmp_path: Path, ends: list[Position]
) -> None:
    save_mark(tmp_path, "a", {"p": ends[3]})
    save_mark(tmp_path, "b", {"p": ends[3]})
    report = sweep(tmp_path, now_us=HOUR_US, age_s_min=60)
    assert (report.segments_deleted, report.rows_deleted, report.held_back_by) == (3, 9, ())
    assert report.bytes_deleted > 0
    assert numbers(tmp_path, "p") == list(range(9, 14))
    assert len(list((tmp_path / "p").glob("*.idx"))) == 1


def test_the_slowest_consumer_keeps_segments_and_is_named(tmp_path: Path, ends: list[Position]) -> None:
    save_mark(tmp_path, "fast", {"p": ends[3]})
    save_mark(tmp_path, "slow", {"p": ends[0]})
    report = sweep(tmp_path, now_us=HOUR_US, age_s_min=60)
    assert (report.segments_deleted, report.held_back_by) == (1, ("slow",))
    assert numbers(tmp_path, "p") == list(range(2, 14))


def test_a_consumer_without_a_mark_for_a_producer_keeps_all_its_segments(tmp_path: Path, ends: list[Position]) -> None:
    assert ends
    save_mark(tmp_path, "new", {})
    assert sweep(tmp_path, now_us=HOUR_US, age_s_min=60).held_back_by == ("new",)
    assert numbers(tmp_path, "p") == list(range(14))


def test_a_forgotten_consumer_keeps_no_segments(tmp_path: Path, ends: list[Position]) -> None:
    assert ends
    save_mark(tmp_path, "gone", {})
    assert forget_mark(tmp_path, "gone") is True
    assert forget_mark(tmp_path, "gone") is False
    assert sweep(tmp_path, now_us=HOUR_US, age_s_min=60).segments_deleted == 3


def test_recent_segments_stay_even_if_all_consumers_have_read_them(tmp_path: Path, ends: list[Position]) -> None:
    save_mark(tmp_path, "a", {"p": ends[3]})
    assert sweep(tmp_path, now_us=60_000_001, age_s_min=60).segments_deleted == 1
    assert sweep(tmp_path, now_us=60_000_001, age_s_min=60).segments_deleted == 0


def test_a_segment_whose_index_is_damaged_stays(tmp_path: Path, ends: list[Position]) -> None:
    assert ends
    oldest = min((tmp_path / "p").glob("*.idx"))
    oldest.write_bytes(b"\xff" * 48)
    assert sweep(tmp_path, now_us=HOUR_US, age_s_min=60).segments_deleted == 0


def test_an_index_left_by_a_crash_in_the_sweep_is_removed(tmp_path: Path, ends: list[Position]) -> None:
    assert ends
    min((tmp_path / "p").glob("*.seg")).unlink()
    sweep(tmp_path, now_us=0, age_s_min=60)
    assert len(list((tmp_path / "p").glob("*.idx"))) == len(list((tmp_path / "p").glob("*.seg"))) == 3


def test_a_mark_that_cannot_be_read_stops_the_sweep(tmp_path: Path, ends: list[Position]) -> None:
    save_mark(tmp_path, "a", {"p": ends[3]})
    assert load_marks(tmp_path) == {"a": {"p": ends[3]}}
    for text in ("", "[]", '{"p": 3}', "{"):
        (tmp_path / ".consumers" / "a.json").write_text(text)
        with pytest.raises(LocalError, match="cannot be read"):
            sweep(tmp_path, now_us=HOUR_US, age_s_min=60)
    assert numbers(tmp_path, "p") == list(range(14))


def test_a_writer_continues_after_a_sweep(tmp_path: Path, ends: list[Position]) -> None:
    assert ends
    sweep(tmp_path, now_us=HOUR_US, age_s_min=60)
    with SpoolWriter(tmp_path, "p", limits=SpoolLimits(free_bytes_min=0)) as writer:
        assert writer.position.rows == 14
        fill(writer, [1])
    assert numbers(tmp_path, "p") == list(range(9, 15))
