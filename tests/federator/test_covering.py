"""Filters that a session holds: every wanted filter is served at any time, and nothing is held twice."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.federator import covering
from hanse.federator.covering import Change, Covering
from hanse.protocol.topics import covers

FILTERS = ("#", "+/#", "a/#", "a/+", "a/b", "a/b/#", "+/b", "a", "b", "b/+/c", "b/#", "$hanse/telemetry/#", "a/b/c")


def test_a_filter_that_nothing_covers_is_subscribed_to_and_ends_with_its_release() -> None:
    one = Covering()
    assert one.want("a/b") == Change(["a/b"], [])
    assert one.granted("a/b") == Change([], [])
    assert one.release("a/b") == Change([], ["a/b"])
    assert one.held == set()


def test_a_narrow_filter_stays_until_the_wide_one_is_granted() -> None:
    one = Covering()
    one.want("a/b")
    assert one.want("a/#") == Change(["a/#"], [])
    assert one.granted("a/#") == Change([], ["a/b"])
    assert one.held == {"a/#"}


def test_filters_that_a_granted_one_covers_are_not_subscribed_to() -> None:
    one = Covering()
    one.want("a/#")
    one.granted("a/#")
    assert [one.want(narrow) for narrow in ("a", "a/+", "a/b/#")] == [Change([], [])] * 3
    assert one.want("ab") == Change(["ab"], [])
    assert one.release("a/+") == Change([], [])


def test_covered_filters_are_subscribed_to_before_the_wide_one_ends() -> None:
    one = Covering()
    one.want("#")
    one.granted("#")
    one.want("a/b")
    one.want("a/+")
    assert one.release("#") == Change(["a/+", "a/b"], ["#"])


def test_another_wide_filter_goes_on_covering() -> None:
    one = Covering()
    for wide in ("+/b", "a/+"):
        one.want(wide)
        one.granted(wide)
    one.want("a/b")
    assert one.release("a/+") == Change([], ["a/+"])
    assert one.release("+/b") == Change(["a/b"], ["+/b"])


def test_a_filter_that_is_refused_covers_nothing() -> None:
    one = Covering()
    one.want("a/b")
    one.want("#")
    assert one.refused("#") == Change([], [])
    assert one.held == {"a/b", "#"}


def test_a_filter_that_is_refused_after_a_reconnect_covers_no_more() -> None:
    one = Covering()
    one.want("#")
    one.granted("#")
    one.want("a/b")
    assert one.refused("#") == Change(["a/b"], [])


def test_a_filter_granted_before_covers_at_once() -> None:
    one = Covering()
    one.want("#")
    one.granted("#")
    one.want("a/b")
    assert one.release("#") == Change(["a/b"], ["#"])
    assert one.want("#") == Change(["#"], ["a/b"])
    # No longer, because its access list has changed.
    assert one.refused("#") == Change(["a/b"], [])
    one.release("#")
    assert one.want("#") == Change(["#"], [])


def test_the_memory_of_granted_filters_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covering, "SEARCHED_MAX", 3)
    one = Covering()
    for number in range(10):
        one.want(f"{number}/#")
        one.granted(f"{number}/#")
    assert len(one._granted_once) <= 3


def test_only_one_of_two_filters_that_cover_each_other_is_held() -> None:
    one = Covering()
    one.want("#")
    one.want("+/#")
    assert one.granted("#") == Change([], ["+/#"])
    # The broker's answer to a request that was withdrawn meanwhile.
    assert one.granted("+/#") == Change([], [])
    assert one.release("#") == Change(["+/#"], ["#"])


def test_a_wildcard_at_the_first_level_covers_no_name_with_a_dollar() -> None:
    one = Covering()
    one.want("#")
    one.granted("#")
    assert one.want("$hanse/telemetry/#") == Change(["$hanse/telemetry/#"], [])


def test_a_filter_with_too_many_candidates_covers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covering, "SEARCHED_MAX", 3)
    one = Covering()
    for wanted in ("a/1", "a/2", "a/#", "b/1", "b/#"):
        one.want(wanted)
    assert one.granted("a/#") == Change([], ["a/1", "a/2"])
    one.want("a/3")  # four begin with `a` now; the cover was found before, and stays
    one.want("#")
    assert one.granted("#") == Change([], [])
    assert one.release("a/#") == Change(["a/1", "a/2", "a/3"], ["a/#"])


class Broker:
    """Broker that takes the requests of one session in order, at any time, and answers."""

    def __init__(self, refused: set[str]) -> None:
        self._refused = refused
        self._said: deque[tuple[bool, str]] = deque()
        self._answers: deque[str] = deque()
        self.holds: set[str] = set()

    def say(self, change: Change) -> None:
        self._said += [(True, filter_) for filter_ in change.subscribe]
        self._said += [(False, filter_) for filter_ in change.unsubscribe]

    @property
    def to_do(self) -> set[str]:
        return {filter_ for _, filter_ in self._said}

    def work(self) -> bool:
        if not self._said:
            return False
        is_subscribe, filter_ = self._said.popleft()
        if not is_subscribe:
            self.holds.discard(filter_)
            return True
        if filter_ not in self._refused:
            self.holds.add(filter_)
        self._answers.append(filter_)
        return True

    def tell(self, one: Covering) -> bool:
        if not self._answers:
            return False
        filter_ = self._answers.popleft()
        self.say(one.refused(filter_) if filter_ in self._refused else one.granted(filter_))
        return True


@settings(max_examples=examples(300))
@given(
    refused=st.sets(st.sampled_from(FILTERS), max_size=3),
    steps=st.lists(st.sampled_from(["work", "tell", *FILTERS]), max_size=60),
)
def test_a_served_filter_stays_served_while_it_is_wanted(refused: set[str], steps: list[str]) -> None:
    one, broker = Covering(), Broker(refused)
    wanted: set[str] = set()
    served: set[str] = set()

    def look() -> None:
        silent = {filter_ for filter_ in served if not any(covers(held, filter_) for held in broker.holds)}
        assert not silent
        # A filter that is being given up, even to be requested again, serves no new one.
        kept = (broker.holds & one.held) - broker.to_do
        served.update(filter_ for filter_ in wanted - refused if any(covers(held, filter_) for held in kept))

    for step in steps:
        if step == "work":
            broker.work()
        elif step == "tell":
            broker.tell(one)
        elif step in wanted:
            wanted.discard(step)
            served.discard(step)
            broker.say(one.release(step))
        else:
            wanted.add(step)
            broker.say(one.want(step))
        look()
    while broker.work() or broker.tell(one):
        look()
    assert wanted - refused <= served
    assert broker.holds == one.held - refused
    for held in broker.holds:
        assert not [other for other in broker.holds if other != held and covers(other, held)], "held twice"
