from collections import Counter

from hanse.protocol.retained.members import Members


def members(members_max: int = 10, filters_max: int = 10) -> tuple[Members, Counter[str]]:
    counters: Counter[str] = Counter()
    return Members(members_max, filters_max, counters), counters


def test_a_deletion_is_acknowledged_when_every_member_of_a_matching_filter_has_done_so() -> None:
    known, _ = members()
    assert known.have_acknowledged("a/b", 5)
    known.note(1, "a/+", 5)
    known.note(2, "#", 4)
    known.note(3, "c", 0)
    assert not known.have_acknowledged("a/b", 5)
    assert known.note(2, "#", 6)
    assert known.have_acknowledged("a/b", 5)


def test_an_older_acknowledgement_is_no_news() -> None:
    known, _ = members()
    assert known.note(1, "a", 5)
    assert not known.note(1, "a", 5)
    assert not known.note(1, "a", 4)
    assert known.acknowledged == {"a": {1: 5}}


def test_a_member_that_gives_a_filter_up_is_waited_for_no_longer() -> None:
    known, _ = members()
    known.note(1, "a", 0)
    known.note(2, "a", 9)
    assert known.end(1, "a")
    assert known.have_acknowledged("a", 9)
    assert known.end(2, "a")
    assert known.acknowledged == {}
    assert not known.end(2, "a")


def test_a_member_wants_what_its_filters_match() -> None:
    known, _ = members()
    known.note(1, "a/#", 0)
    assert known.wants(1, "a/b")
    assert not known.wants(1, "b")
    assert not known.wants(2, "a/b")


def test_a_member_beyond_the_bound_is_counted_and_deletions_are_kept() -> None:
    known, counters = members(members_max=1)
    known.note(1, "a", 9)
    assert not known.note(2, "b", 9)
    assert counters["retained_members_full"] == 1
    assert not known.have_acknowledged("a", 1)


def test_a_filter_beyond_the_bound_of_a_member_is_counted_and_deletions_are_kept() -> None:
    known, counters = members(filters_max=1)
    known.note(1, "a", 9)
    known.note(2, "a", 9)
    assert not known.note(1, "b", 9)
    assert counters["retained_members_full"] == 1
    assert not known.have_acknowledged("a", 1)


def test_a_member_whose_filters_all_ended_leaves_its_place() -> None:
    known, counters = members(members_max=1)
    known.note(1, "a", 0)
    known.end(1, "a")
    assert known.note(2, "a", 0)
    assert not counters
