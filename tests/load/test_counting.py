import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import LocalError
from hanse.load.gathering import Gathering
from hanse.load.histogram import Histogram
from hanse.load.ledger import Ledger
from hanse.load.plan import Address, Load, parse_url

URL = ("mqtt://127.0.0.1:1883",)


def test_everything_once_and_in_order_is_clean() -> None:
    ledger = Ledger(10)
    ledger.take((0, 1, 2))
    ledger.take((3,))
    ledger.take((4, 5, 6, 7, 8, 9))
    assert (ledger.received, ledger.duplicates, ledger.reordered, ledger.missing(10)) == (10, 0, 0, 0)


def test_losses_duplicates_and_reordering_are_distinguished() -> None:
    ledger = Ledger(10)
    assert ledger.take((0, 1, 4, 3, 3)) == 4
    ledger.take((0, 1))
    ledger.take((99,))
    assert (ledger.duplicates, ledger.reordered, ledger.missing(6), ledger.out_of_range) == (3, 1, 2, 1)
    assert ledger.unique == 4


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8), max_size=12))
def test_the_fast_path_counts_like_the_slow_path(rows: list[list[int]]) -> None:
    fast, slow = Ledger(25), Ledger(25)
    for row in rows:
        fast.take(tuple(row))
        for number in row:
            slow._one(number)
    for name in ("received", "duplicates", "reordered", "out_of_range", "unique"):
        assert getattr(fast, name) == getattr(slow, name)
    assert fast.missing(25) == slow.missing(25)


@given(st.lists(st.integers(0, 10**11), min_size=1, max_size=200), st.sampled_from([1, 50, 95, 99, 100]))
def test_a_percentile_is_within_two_percent(values: list[int], percent: int) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]
    assert histogram.percentile_ns(percent) == pytest.approx(exact, rel=0.016, abs=1)
    assert histogram.max_ns == max(values)
    assert histogram.total_ns == sum(values)


def test_histograms_travel_and_merge() -> None:
    one, other = Histogram(), Histogram()
    one.add_since(1_000, [0, 0, 500])
    other.add(-5)
    other.merge(Histogram.from_json(one.to_json()))
    assert (other.count, other.max_ns, other.total_ns) == (4, 1000, 2500)
    assert Histogram().percentile_ns(99) == 0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"size_bytes": 23}, "size_bytes is 23; expected 24 to"),
        ({"qos": 3}, "qos is 3"),
        ({"count": 0}, "count is 0"),
        ({"count": 5, "warm_up": 5}, "warm_up is 5; expected 0 to 4"),
        ({"window": 0}, "window is 0"),
        ({"rate_per_s": 0}, "more than 0"),
        ({"topics": 2}, r"has no \{topic\}"),
        ({"subscribe_qos": 7}, "subscribe_qos"),
        ({"publish_urls": ()}, "no broker"),
        ({"publish_urls": ("mqtts://h",)}, "without TLS"),
        ({"publish_urls": ("mqtt://h:x",)}, "malformed"),
    ],
)
def test_a_wrong_plan_is_refused_with_a_sentence(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        Load(**{"publish_urls": URL, "subscribe_urls": URL, **wrong})  # type: ignore[arg-type]


def test_the_subscription_follows_from_the_topic() -> None:
    load = Load(URL, URL, topic="a/{publisher}/x{topic}/b", topics=2)
    assert load.topics_of(3) == ["a/3/x0/b", "a/3/x1/b"]
    assert load.subscription() == "a/+/+/b"
    assert Load(URL, URL, filter="#").subscription() == "#"


def test_the_window_suits_the_qos() -> None:
    assert [Load(URL, URL, qos=qos).window_or_default for qos in (1, 2)] == [10_000, 100]
    assert Load(URL, URL, qos=2, window=7).window_or_default == 7


def test_urls_carry_credentials() -> None:
    assert parse_url("mqtt://us%40er:p%3Aw@h") == Address("h", 1883, "us@er", "p:w")
    assert parse_url("tcp://[::1]:7").host == "::1"


def test_arrivals_gather_always_at_qos_0_and_elsewhere_only_while_it_pays() -> None:
    assert all(Gathering(0).should_pause(now_ns, 0) for now_ns in range(10))
    dense = Gathering(1)
    assert all(dense.should_pause(k * 1_000_000, k * 100 + k % 2) for k in range(1, 50))
    # A broker that sends so many and then waits for acknowledgements: three tries, then none for a tenth of a
    # second.
    for window in (20, 32, 100):
        narrow = Gathering(1)
        pauses = [narrow.should_pause(k * 1_000_000, k * window) for k in range(200)]
        assert sum(pauses[:5]) < 5
        assert not any(pauses[5:100])
        assert sum(pauses) < 10
