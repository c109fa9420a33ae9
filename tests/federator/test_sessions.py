"""The record of a federator's sessions."""

from pathlib import Path

from hanse.federator.sessions import ENDING_MAX, Sessions
from hanse.federator.settings import CLIENT_ID_PATTERN


def sessions(path: Path, pattern: str = CLIENT_ID_PATTERN, *, is_upgraded: bool = False) -> Sessions:
    return Sessions(path, pattern, 7, is_upgraded=is_upgraded)


def test_a_restarted_federator_finds_its_session_again(tmp_path: Path) -> None:
    first = sessions(tmp_path)
    assert first.host_id.startswith("hanse-federator-7-")
    again = sessions(tmp_path, is_upgraded=True)
    assert (again.host_id, again.of("lane")) == (first.host_id, first.of("lane"))
    assert not again.must_move


def test_two_federators_with_one_id_have_other_sessions(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert sessions(tmp_path / "a").host_id != sessions(tmp_path / "b").host_id


def test_the_session_of_an_older_version_is_continued(tmp_path: Path) -> None:
    old = sessions(tmp_path, is_upgraded=True)
    assert old.host_id == "hanse-federator-7"
    assert old.must_move
    assert sessions(tmp_path).host_id == "hanse-federator-7"
    assert old.of("lane") != "hanse-federator-7-lane"


def test_a_changed_pattern_continues_the_session(tmp_path: Path) -> None:
    first = sessions(tmp_path)
    other = sessions(tmp_path, "plant-{id}")
    assert other.host_id == first.host_id
    assert other.must_move
    assert other.begin_anew() == "plant-7"
    assert sessions(tmp_path, "plant-{id}").host_id == "plant-7"


def test_a_new_session_forgets_the_secret_and_remembers_sessions_to_end(tmp_path: Path) -> None:
    one = sessions(tmp_path)
    former, lane = one.host_id, one.of("lane")
    assert one.begin_anew() != former
    assert one.of("lane") != lane
    again = sessions(tmp_path)
    assert again.host_id == one.host_id
    assert again.record.ending == [former]
    again.note_ended(former)
    again.note_ended("another")
    assert sessions(tmp_path).record.ending == []


def test_the_sessions_to_end_are_bounded(tmp_path: Path) -> None:
    one = sessions(tmp_path)
    for _ in range(ENDING_MAX + 3):
        one.begin_anew()
    assert len(one.record.ending) == ENDING_MAX


def test_a_damaged_record_is_put_aside_and_no_known_id_takes_its_place(tmp_path: Path) -> None:
    sessions(tmp_path)
    (tmp_path / "session").write_bytes(b"{")
    again = sessions(tmp_path, is_upgraded=True)
    assert (tmp_path / "session.damaged").read_bytes() == b"{"
    assert again.host_id != "hanse-federator-7"
    assert sessions(tmp_path).host_id == again.host_id
