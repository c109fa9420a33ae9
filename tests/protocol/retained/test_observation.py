from hanse.protocol.retained.observation import Observation


def test_a_filter_is_observed_after_a_granted_subscription_and_a_complete_look() -> None:
    seen = Observation(10)
    seen.complete("a/+")
    assert not seen.is_observed("a/b")
    seen.grant("a/+")
    assert seen.is_granted("a/b")
    assert not seen.is_observed("a/b")
    seen.complete("a/+")
    assert seen.is_observed("a/b")
    assert seen.is_complete("a/+")
    assert seen.complete_filters() == ["a/+"]


def test_a_subscription_that_is_granted_anew_needs_a_new_look() -> None:
    seen = Observation(10)
    seen.grant("a")
    seen.complete("a")
    seen.grant("a")
    assert not seen.is_observed("a")


def test_a_restart_ends_what_was_complete_and_keeps_what_was_granted() -> None:
    seen = Observation(10)
    seen.grant("a")
    seen.complete("a")
    seen.begin_anew()
    assert not seen.is_observed("a")
    assert seen.is_granted("a")


def test_the_end_of_an_observation_is_the_latest_of_all_matching_filters() -> None:
    seen = Observation(10)
    for filter_ in ("a/b", "a/#"):
        seen.grant(filter_)
        seen.complete(filter_)
    assert seen.ended_at("a/b") == 0
    assert seen.end("a/#", 7) == ["a/#"]
    assert seen.end("a/b", 5) == ["a/b"]
    assert seen.ended_at("a/b") == 7
    seen.grant("a/#")
    seen.complete("a/#")
    seen.end("a/#", 3)
    assert seen.ended_at("a/b") == 7


def test_what_was_not_granted_does_not_end() -> None:
    assert Observation(10).end("a", 5) == []


def test_the_end_of_a_subscription_without_a_complete_look_dates_nothing() -> None:
    seen = Observation(10)
    seen.grant("a")
    assert seen.end("a", 5) == []
    assert seen.ended_at("a") == 0


def test_the_oldest_end_is_dropped_at_the_bound() -> None:
    seen = Observation(1)
    seen.restore("a", 4)
    seen.grant("b")
    seen.complete("b")
    assert seen.end("b", 5) == ["b", "a"]
    assert seen.ends == {"b": 5}
    assert seen.ended_at("a") == 0
