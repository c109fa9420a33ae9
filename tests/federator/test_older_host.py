"""Of all that a 3.1.1 host sends, only its clients' publications are forwarded."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hanse.federator.older_host import RETURNED_S, RETURNS_MAX, OlderHost
from hanse.mqtt.publication import Publication, encode
from hanse.mqtt.survey import Traits

ONE = Traits(4, 1, False, False, "")
EACH = Traits(4, 1, False, True, "")


def host(*asked: str, traits: Traits = ONE, own: tuple[str, ...] = ()) -> tuple[OlderHost, Counter[str]]:
    counters: Counter[str] = Counter()
    made = OlderHost(asked, own, counters)
    made.connected(traits, session_present=False, away_s=0.0)
    for wanted in asked:
        made.granted(wanted)
    return made, counters


def arrival(topic: str = "a/b", payload: bytes = b"x", *, retain: bool = False, dup: bool = False) -> Publication:
    return Publication(encode(topic, payload, qos=1, retain=retain), topic, 1, retain, dup, 7, ())


def fresh(made: OlderHost, now: float, *arrivals: Publication) -> list[Publication]:
    return made.sift(now, list(arrivals))[1]


def test_a_written_publication_comes_back_once_and_is_cancelled_once() -> None:
    made, counters = host("a/#")
    made.written(0.0, [(b"a/b", b"x")])
    assert fresh(made, 0.1, arrival()) == []
    assert fresh(made, 0.2, arrival()) == [arrival()]
    assert counters == {"echoes_cancelled": 1}


def test_a_publication_that_no_own_subscription_matches_cancels_nothing() -> None:
    made, _ = host("a/#")
    made.written(0.0, [(b"c", b"x")])
    made.asked("c")
    made.granted("c")
    assert fresh(made, 0.1, arrival("c")) == [arrival("c")]


def test_a_requested_subscription_may_bring_a_publication_back_before_it_is_granted() -> None:
    made, _ = host()
    made.asked("a/#")
    made.written(0.0, [(b"a/b", b"x")])
    assert fresh(made, 0.1, arrival()) == []


def test_a_subscription_being_given_up_may_bring_a_publication_back_until_the_host_confirms() -> None:
    made, _ = host("a/#")
    made.released("a/#")
    made.written(0.0, [(b"a/b", b"x")])
    assert fresh(made, 0.1, arrival()) == []
    made.ended("a/#")
    made.written(0.2, [(b"a/b", b"y")])
    made.asked("a/#")
    assert fresh(made, 0.3, arrival(payload=b"y")) == [arrival(payload=b"y")]


def test_a_filter_that_is_wanted_again_before_its_end_was_confirmed_stays() -> None:
    made, _ = host("a/#")
    made.released("a/#")
    made.asked("a/#")
    made.ended("a/#")
    made.granted("a/#")
    assert fresh(made, 0.1, arrival()) == [arrival()]


def test_an_entry_without_an_arrival_is_forgotten() -> None:
    made, _ = host("a/#")
    made.written(0.0, [(b"a/b", b"x")])
    assert fresh(made, RETURNED_S + 0.1, arrival()) == [arrival()]


def test_the_time_that_the_host_was_away_does_not_count() -> None:
    made, _ = host("a/#")
    made.written(0.0, [(b"a/b", b"x")])
    made.connected(ONE, session_present=True, away_s=60.0)
    assert fresh(made, 61.0, arrival()) == []


def test_a_host_with_a_long_queue_before_us_does_not_outlast_the_memory() -> None:
    """A thousand per second go in, nine hundred per second come back: the last comes after much more than usual."""
    made, counters = host("a/#")
    back = 0
    for tick in range(4_000):
        now = tick / 10
        if tick < 3_000:
            made.written(now, [(b"a/b", b"%d" % (tick * 10 + k)) for k in range(10)])
        for _ in range(9):
            if back < min(30_000, (tick + 1) * 10):
                assert fresh(made, now, arrival(payload=b"%d" % back)) == []
                back += 1
    assert back == 30_000
    assert counters == {"echoes_cancelled": 30_000}
    # And a publication that never comes back is not waited for much longer.
    made.written(400.0, [(b"a/b", b"lost")])
    assert fresh(made, 500.0, arrival(payload=b"lost")) == [arrival(payload=b"lost")]


def test_a_host_that_forgot_our_session_sends_nothing_back() -> None:
    made, _ = host("a/#")
    made.written(0.0, [(b"a/b", b"x")])
    made.connected(ONE, session_present=False, away_s=1.0)
    assert fresh(made, 1.1, arrival()) == [arrival()]


def test_an_unacknowledged_return_that_is_repeated_is_cancelled_again() -> None:
    made, _ = host("a/#")
    made.written(0.0, [(b"a/b", b"x")])
    assert fresh(made, 0.1, arrival()) == []
    assert fresh(made, 0.2, arrival(dup=True)) == []
    assert fresh(made, RETURNED_S + 1, arrival(dup=True)) == [arrival(dup=True)]


def test_a_replay_is_not_a_publication_and_cancels_no_echo() -> None:
    made, counters = host("a/#")
    made.written(0.0, [(b"a/b", b"x")])
    assert fresh(made, 0.1, arrival(retain=True)) == []
    assert fresh(made, 0.2, arrival()) == []
    assert counters == {"host_replays": 1, "echoes_cancelled": 1}


def test_the_first_of_n_copies_is_the_publication_in_any_order() -> None:
    made, counters = host("a/#", "a/+", "+/b", traits=EACH)
    other = arrival("a/c", b"y")
    # a/c is matched by two of the three.
    got = fresh(made, 0.0, arrival(), other, arrival(), other, arrival(), arrival(), arrival(), arrival())
    assert got == [arrival(), other, arrival()]
    assert counters == {"host_copies": 5}


def test_a_publication_from_a_host_that_sends_one_copy_is_forwarded() -> None:
    made, counters = host("a/#", "a/+", traits=ONE)
    assert fresh(made, 0.0, arrival(), arrival()) == [arrival(), arrival()]
    assert counters == {}


def test_copies_of_a_return_are_cancelled_with_it() -> None:
    made, counters = host("a/#", "a/+", traits=EACH)
    made.written(0.0, [(b"a/b", b"x")])
    assert fresh(made, 0.1, arrival(), arrival(), arrival(), arrival()) == [arrival()]
    assert counters == {"host_copies": 2, "echoes_cancelled": 1}


def test_a_subscription_counts_for_copies_only_once_it_is_granted() -> None:
    made, _ = host("a/#", traits=EACH)
    made.asked("a/+")
    assert fresh(made, 0.0, arrival(), arrival()) == [arrival(), arrival()]
    made.granted("a/+")
    assert fresh(made, 0.1, arrival(), arrival()) == [arrival()]


def test_messages_for_the_agent_are_recognised_by_their_topic() -> None:
    made, _ = host("#", own=("federator/#",))
    made.listen(["hanse/probe/1"])
    own = [arrival("federator/x"), arrival("hanse/probe/1", retain=True)]
    assert made.sift(0.0, [*own, arrival()]) == (own, [arrival()], [])


def test_unrequested_publications_are_left_out() -> None:
    """In NATS, `#` also matches its own internal traffic."""
    made, counters = host("#")
    assert made.sift(0.0, [arrival("$JS/API")]) == ([], [], [arrival("$JS/API")])
    assert counters == {"host_unasked": 1}


def test_topics_that_the_host_would_alter_are_not_delivered() -> None:
    made, counters = host("a/#", traits=Traits(4, 1, False, False, ".* "))
    good = encode("a/b", b"a payload may hold . and * and spaces", qos=1)
    bad = [encode(topic, b"", qos=1) for topic in ("a.b", "a/*", "a b")]
    assert made.carried(good, 1) == (good, 1)
    assert made.carried(bad[0] + good + bad[1] + bad[2] + good, 5) == (good + good, 2)
    assert made.carried(bad[0], 1) == (b"", 0)
    assert counters == {"topics_not_carried": 4}


def test_attack_deliveries_that_never_come_back_cost_a_bounded_memory() -> None:
    made, _ = host("a/#")
    for number in range(RETURNS_MAX // 1_000 + 5):
        made.written(0.0, [(b"a/b", b"%d-%d" % (number, k)) for k in range(1_000)])
    assert len(made._returns) <= RETURNS_MAX


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=60), st.integers(1, 3))
def test_the_number_of_publications_stays_right_in_any_order(steps: list[tuple[bool, int]], copies: int) -> None:
    """Ours and the clients', with equal contents among them, each with one duplicate per subscription."""
    filters = ("a/#", "a/+", "+/b")[:copies]
    made, _ = host(*filters, traits=EACH)
    counts: Counter[bytes] = Counter()
    passed: Counter[bytes] = Counter()
    for is_ours, content in steps:
        payload = b"%d" % content
        if is_ours:
            made.written(0.0, [(b"a/b", payload)])
        else:
            counts[payload] += 1
        for got in fresh(made, 0.0, *[arrival(payload=payload)] * copies):
            passed[got.payload] += 1
    assert passed == counts
