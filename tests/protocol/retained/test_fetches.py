from hanse.protocol.retained.codec import FILTERS_MAX
from hanse.protocol.retained.fetches import OPEN_MAX, Fetches
from hanse.protocol.retained.messages import Cursor, Fetch


def test_filters_that_wait_are_fetched_together_and_once() -> None:
    fetches = Fetches()
    fetches.want(["b", "a"])
    fetches.want(["a", "c"])
    assert fetches.begin(9.0) == [Fetch(1, ("a", "b", "c"))]
    assert not fetches.is_due
    assert fetches.deadline == 9.0


def test_many_filters_are_fetched_in_parts() -> None:
    fetches = Fetches()
    fetches.want([f"{k:04}" for k in range(FILTERS_MAX + 1)])
    assert [len(fetch.filters) for fetch in fetches.begin(1.0)] == [FILTERS_MAX, 1]


def test_a_cursor_holds_for_all_filters_of_a_fetch_or_for_none() -> None:
    fetches = Fetches()
    fetches.note(["a", "b"], 7, 1, 50)
    fetches.note(["a"], 7, 1, 60)
    fetches.note(["a"], 8, 1, 60)
    fetches.note(["a"], 9, 1, 5)
    fetches.note(["b"], 9, 2, 5)
    fetches.want(["a", "b"])
    assert fetches.begin(1.0)[0].cursors == (Cursor(7, 1, 50),)


def test_a_filter_that_is_given_up_is_neither_fetched_nor_remembered() -> None:
    fetches = Fetches()
    fetches.want(["a"])
    fetches.note(["a"], 7, 1, 50)
    assert fetches.forget("a") == {7: (1, 50)}
    assert fetches.forget("a") == {}
    assert not fetches.is_due


def test_fetches_close_when_their_time_is_over_or_they_are_too_many() -> None:
    fetches = Fetches()
    assert fetches.deadline == float("inf")
    fetches.want(["a"])
    fetches.begin(1.0)
    for k in range(OPEN_MAX):
        fetches.want([f"b{k}"])
        fetches.begin(9.0)
    assert len(fetches.expired(0.5)) == 1
    assert fetches.expired(0.5) == []
    assert len(fetches.open) == OPEN_MAX
    assert len(fetches.expired(9.0)) == OPEN_MAX


def test_a_value_that_is_needed_again_is_fetched_whatever_the_cursors_say() -> None:
    fetches = Fetches()
    for filter_ in ("a", "b"):
        fetches.note([filter_], 7, 1, 50)
    fetches.want(["a", "b"])
    fetches.want(["b"], afresh=True)
    fetches.want(["b"])
    assert fetches.begin(1.0) == [Fetch(1, ("a",), (Cursor(7, 1, 50),)), Fetch(2, ("b",))]
