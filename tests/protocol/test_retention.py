"""The retention buffer, and which of its publications somebody lacks (R68 to R70)."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.protocol.net import packet

from hanse.protocol import retention
from hanse.protocol.messages import Run, Summary
from hanse.protocol.packets import split
from hanse.protocol.retention import Retention


def run_of(first: int, count: int, *groups: str, origin: int = 8, epoch: int = 1) -> Run:
    body = b"".join(packet("t", b"%d" % number, 1) for number in range(first, first + count))
    return Run(origin, epoch, first, count, 1, 1, groups or ("g",), body)


def kept(*runs: Run, keep_s: float = 6.0, bytes_max: int = 1 << 20) -> Retention:
    """Return a buffer with one run per second."""
    found = Retention(keep_s, 5 * keep_s, bytes_max, Counter())
    for at, run in enumerate(runs):
        found.add(float(at), run)
    return found


def numbers(runs: list[Run]) -> list[int]:
    """Return the ids of all publications, checked against their packets."""
    for run in runs:
        expected = [packet("t", b"%d" % number, 1) for number in range(run.first, run.first + run.length)]
        assert [run.body[start:end] for start, end in split(run.body)] == expected
    return [number for run in runs for number in range(run.first, run.first + run.length)]


def never(group: str) -> bool:
    del group
    return False


def test_runs_older_than_the_retention_time_are_dropped() -> None:
    found = kept(run_of(0, 1), run_of(1, 1), run_of(2, 1))
    found.age(7.0, never)
    assert numbers(found.missing(7.0, [Summary("g", 60_000)])) == [1, 2]
    found.age(100.0, never)
    assert (found.bytes, found.missing(100.0, [Summary("g", 600_000)])) == (0, [])


def test_ranges_before_and_after_a_run_do_not_count_for_it() -> None:
    found = kept(run_of(10, 3))
    have = ((8, 1, ((0, 4), (11, 1), (20, 5))),)
    assert numbers(found.missing(1.0, [Summary("g", 60_000, have)])) == [10, 12]


def test_contested_groups_are_kept_longer_until_the_cores_have_met() -> None:
    found = kept(run_of(0, 1, "g", "h"), run_of(1, 1, "i"), run_of(2, 1, "h"))
    found.age(20.0, lambda group: group == "h")
    assert numbers(found.missing(20.0, [Summary("h", 60_000), Summary("i", 60_000)])) == [0, 2]
    found.add(21.0, run_of(3, 1, "h"))
    assert numbers(found.missing(21.0, [Summary("h", 60_000)])) == [0, 2, 3]
    found.age(31.0, lambda group: group == "h")
    assert numbers(found.missing(31.0, [Summary("h", 60_000)])) == [2, 3]  # not for ever
    # The cores have met. Federators that lack publications are told in the time that is left.
    found.age(33.0, never)
    assert numbers(found.missing(33.0, [Summary("h", 60_000)])) == [3]
    found.age(60.0, never)
    assert (found.bytes, found.missing(60.0, [Summary("h", 60_000)])) == (0, [])


def test_groups_that_a_neighbour_was_told_of_are_kept_as_long_again() -> None:
    found = kept(run_of(0, 1, "g"), run_of(1, 1, "h"))
    found.summaries(5.0, {"g": 0, "other": 0})
    found.age(10.9, never)
    assert numbers(found.missing(10.9, [Summary("g", 60_000), Summary("h", 60_000)])) == [0]
    found.age(11.1, never)
    assert found.bytes == 0


def test_the_newest_contested_runs_are_left_to_others() -> None:
    found = kept(run_of(0, 1, "g", "h"), run_of(1, 1, "i"), run_of(2, 1, "h"), run_of(3, 1, "h"))
    found.age(7.0, lambda group: group == "h")
    size = len(run_of(0, 1).body)
    left = found.contested(lambda group: group == "h", 3 * size)
    assert [(run.first, run.groups) for run in left] == [(0, ("h",)), (2, ("h",)), (3, ("h",))]
    assert [run.first for run in found.contested(lambda group: group == "h", 2 * size)] == [2, 3]
    assert found.contested(never, size) == []


def test_beyond_the_limit_contested_runs_go_first() -> None:
    found = kept(run_of(0, 1), run_of(1, 1), bytes_max=2 * len(run_of(0, 1).body))
    found.age(8.0, lambda _: True)
    found.add(8.0, run_of(2, 1))
    assert numbers(found.missing(8.0, [Summary("g", 60_000)])) == [1, 2]


def test_beyond_the_limit_the_oldest_runs_are_dropped_and_counted() -> None:
    counters: Counter[str] = Counter()
    one = run_of(0, 2)
    found = Retention(6.0, 30.0, 2 * len(one.body), counters)
    for number in range(5):
        found.add(0.0, run_of(number * 2, 2))
    assert found.bytes == 2 * len(one.body)
    assert counters == {"retention_cut": 6}
    assert numbers(found.missing(0.0, [Summary("g", 1)])) == [6, 7, 8, 9]


def test_a_run_that_alone_exceeds_the_limit_is_not_kept() -> None:
    found = kept(run_of(0, 2), bytes_max=0)
    assert found.bytes == 0


def test_a_summary_has_as_few_ranges_as_possible() -> None:
    found = kept(
        run_of(4, 2),
        run_of(0, 2),
        run_of(2, 2),
        run_of(10, 5),
        run_of(11, 2),  # a part of it again
        run_of(0, 1, "h"),
        run_of(7, 1, "g", "h", "not asked for", origin=3),
    )
    assert found.summaries(9.0, {"h": 5, "g": 4_000, "other": 1}) == (
        Summary("g", 4_000, ((3, 1, ((7, 1),)), (8, 1, ((0, 6), (10, 5))))),
        Summary("h", 5, ((3, 1, ((7, 1),)), (8, 1, ((0, 1),)))),
        Summary("other", 1, ()),
    )


def test_a_neighbour_that_has_everything_lacks_nothing() -> None:
    found = kept(run_of(0, 3), run_of(3, 3), run_of(9, 1, origin=2))
    assert found.missing(3.0, found.summaries(3.0, {"g": 60_000})) == []


def test_missing_publications_are_cut_out_of_their_run() -> None:
    found = kept(run_of(0, 10))
    have = Summary("g", 60_000, ((8, 1, ((0, 1), (3, 2), (7, 1), (20, 5))),))
    assert numbers(found.missing(1.0, [have])) == [1, 2, 5, 6, 8, 9]


def test_nothing_is_known_of_another_origin_or_epoch() -> None:
    found = kept(run_of(0, 2), run_of(0, 2, epoch=2), run_of(0, 2, origin=9))
    have = Summary("g", 60_000, ((8, 1, ((0, 2),)),))
    assert [(run.origin, run.epoch) for run in found.missing(3.0, [have])] == [(8, 2), (9, 1)]


def test_publications_older_than_the_summarys_age_are_not_sent() -> None:
    found = kept(run_of(0, 1), run_of(1, 1), run_of(2, 1))
    assert numbers(found.missing(3.0, [Summary("g", 1_500)])) == [2]
    assert numbers(found.missing(3.0, [Summary("g", 2_000)])) == [1, 2]


def test_groups_that_were_not_requested_are_not_sent() -> None:
    found = kept(run_of(0, 1, "h"), run_of(1, 1, "g", "h"))
    missing = found.missing(2.0, [Summary("g", 60_000)])
    assert [(run.first, run.groups) for run in missing] == [(1, ("g",))]


def test_groups_that_lack_the_same_part_of_a_run_share_it() -> None:
    found = kept(run_of(0, 4, "g", "h", "i"))
    have = [Summary("g", 60_000, ((8, 1, ((0, 2),)),)), Summary("h", 60_000), Summary("i", 60_000)]
    assert [(run.first, run.length, run.groups) for run in found.missing(1.0, have)] == [
        (2, 2, ("g",)),
        (0, 4, ("h", "i")),
    ]


def test_a_run_with_too_many_gaps_goes_whole() -> None:
    count = 2 * retention.GAPS_MAX + 3
    found = kept(run_of(0, count))
    have = Summary("g", 60_000, ((8, 1, tuple((number, 1) for number in range(1, count, 2))),))
    assert numbers(found.missing(1.0, [have])) == list(range(count))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=6),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=6),
)
def test_one_side_gets_exactly_what_it_lacks_and_the_other_has(
    ours: list[tuple[int, int]], theirs: list[tuple[int, int]]
) -> None:
    here = kept(*[run_of(first, count) for first, count in ours])
    there = kept(*[run_of(first, count) for first, count in theirs])
    have = {number for first, count in theirs for number in range(first, first + count)}
    all_of_ours = {number for first, count in ours for number in range(first, first + count)}
    missing = numbers(here.missing(10.0, there.summaries(9.0, {"g": 60_000})))
    assert set(missing) == all_of_ours - have


def test_what_is_kept_since_a_time_comes_oldest_first_with_its_times() -> None:
    found = kept(run_of(1, 2), run_of(3, 1), run_of(4, 1), keep_s=1.0)
    found.age(2.0, lambda _: True)
    assert [(at, run.first) for at, run in found.since(0.0)] == [(0.0, 1), (1.0, 3), (2.0, 4)]
    assert [at for at, _ in found.since(1.0)] == [1.0, 2.0]
