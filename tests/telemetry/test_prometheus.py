import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import LocalError
from hanse.telemetry.prometheus import LABEL_CHARACTERS_MAX, Registry

LABEL = r'[a-z_]+="(?:[^"\\\n]|\\[\\n"])*"'
SAMPLE = re.compile(rf"[a-z_][a-z0-9_]*(\{{{LABEL}(,{LABEL})*\}})? [-+]?(?:\d.*|Inf|NaN)")


def samples(registry: Registry) -> dict[str, str]:
    """Return values by name with labels, except the registry's own metrics. Every line must be well formed."""
    text = registry.render()
    assert text.endswith("\n")
    found = {}
    for line in text.split("\n")[:-1]:
        if line.startswith("# "):
            continue
        assert SAMPLE.fullmatch(line), line
        name, _, value = line.rpartition(" ")
        if "_metrics_" not in name:
            assert name not in found, "a sample is repeated"
            found[name] = value
    return found


def test_the_text_has_prometheus_format() -> None:
    registry = Registry("federator")
    messages = registry.counters("link_messages_total", "Publications on links.", labels=("link", "direction"))
    messages.labels(7, "out").inc(412)
    messages.labels("7", "in").inc()
    registry.gauge("groups", "Groups with a\nmesh \\ here.").set(2.5)
    latency = registry.histogram("hop_latency_seconds", "From host to host.", buckets=(0.001, 0.01))
    latency.observe(0.001)
    latency.observe(0.002, 3)
    latency.observe(5)
    assert registry.render() == (
        "# HELP hanse_federator_groups Groups with a\\nmesh \\\\ here.\n"
        "# TYPE hanse_federator_groups gauge\n"
        "hanse_federator_groups 2.5\n"
        "# HELP hanse_federator_hop_latency_seconds From host to host.\n"
        "# TYPE hanse_federator_hop_latency_seconds histogram\n"
        'hanse_federator_hop_latency_seconds_bucket{le="0.001"} 1\n'
        'hanse_federator_hop_latency_seconds_bucket{le="0.01"} 4\n'
        'hanse_federator_hop_latency_seconds_bucket{le="+Inf"} 5\n'
        "hanse_federator_hop_latency_seconds_sum 5.007\n"
        "hanse_federator_hop_latency_seconds_count 5\n"
        "# HELP hanse_federator_link_messages_total Publications on links.\n"
        "# TYPE hanse_federator_link_messages_total counter\n"
        'hanse_federator_link_messages_total{link="7",direction="in"} 1\n'
        'hanse_federator_link_messages_total{link="7",direction="out"} 412\n'
        "# HELP hanse_federator_metrics_failures_total Figures that could not be fetched for a scrape.\n"
        "# TYPE hanse_federator_metrics_failures_total counter\n"
        "hanse_federator_metrics_failures_total 0\n"
        "# HELP hanse_federator_metrics_overflow_total Label values that were counted as other.\n"
        "# TYPE hanse_federator_metrics_overflow_total counter\n"
    )


def test_a_gauge_goes_both_ways_and_a_counter_can_be_set() -> None:
    registry = Registry("x")
    gauge = registry.gauge("depth", "D.")
    gauge.inc(5)
    gauge.inc(-2)
    counter = registry.counter("bytes_total", "B.")
    counter.set(1 << 60)
    assert samples(registry) == {"hanse_x_depth": "3", "hanse_x_bytes_total": str(1 << 60)}


def test_many_measurements_are_recorded_at_once() -> None:
    registry = Registry("x")
    one, many = (registry.histogram(f"{name}_seconds", "T.", buckets=(1, 2)) for name in ("one", "many"))
    values = [0.5, 1.0, 1.5, 2.0, 2.5]
    for value in values:
        one.observe(value)
    many.observe_many(values)
    assert one.counts == many.counts == [2, 2, 1]
    assert one.sum == many.sum == 7.5


def test_a_histogram_with_labels_has_le_last() -> None:
    registry = Registry("x")
    registry.histograms("size_bytes", "S.", labels=("link",), buckets=(64,)).labels("a").observe(10)
    assert 'hanse_x_size_bytes_bucket{link="a",le="64.0"}' in samples(registry)


@pytest.mark.parametrize(
    ("value", "shown"), [(float("inf"), "+Inf"), (float("-inf"), "-Inf"), (float("nan"), "NaN"), (0.1, "0.1"), (3, "3")]
)
def test_numbers_are_written_as_prometheus_wants_them(value: float, shown: str) -> None:
    registry = Registry("x")
    registry.gauge("g", "G.").set(value)
    assert samples(registry)["hanse_x_g"] == shown


def test_too_many_values_of_a_label_count_as_other_and_are_counted() -> None:
    registry = Registry("x")
    drops = registry.counters("drops_total", "D.", labels=("reason", "qos"), values_max=3)
    for number in range(1_000):
        drops.labels(f"reason-{number}", "1").inc(2)
    assert samples(registry) == {
        'hanse_x_drops_total{reason="other",qos="1"}': str(2 * 997),
        **{f'hanse_x_drops_total{{reason="reason-{number}",qos="1"}}': "2" for number in range(3)},
    }
    assert 'hanse_x_metrics_overflow_total{metric="hanse_x_drops_total"} 997\n' in registry.render()


def test_too_many_combinations_count_as_other() -> None:
    registry = Registry("x")
    family = registry.counters("a_total", "A.", labels=("p", "q"), combinations_max=4)
    for p in range(10):
        for q in range(10):
            family.labels(p, q).inc()
    found = samples(registry)
    assert len(found) == 5
    assert found['hanse_x_a_total{p="other",q="other"}'] == "96"


def test_a_removed_child_frees_capacity() -> None:
    registry = Registry("x")
    family = registry.gauges("up", "U.", labels=("link",), values_max=1)
    family.labels(1).set(1)
    family.labels(2).set(1)
    family.remove(1)
    family.remove(1)
    family.labels(3).set(1)
    assert samples(registry) == {'hanse_x_up{link="3"}': "1", 'hanse_x_up{link="other"}': "1"}


def test_a_value_called_other_does_not_count_as_overflow() -> None:
    registry = Registry("x")
    family = registry.counters("a_total", "A.", labels=("p",), values_max=1)
    family.labels("other").inc()
    family.labels("one").inc()
    assert len(samples(registry)) == 2
    assert "overflow_total{" not in registry.render()


@given(st.lists(st.text(), max_size=5))
def test_attack_no_label_value_breaks_the_page(values: list[str]) -> None:
    registry = Registry("x")
    family = registry.counters("a_total", "A.", labels=("p",))
    for value in values:
        family.labels(value).inc()
    samples(registry)
    registry.render().encode()


def test_a_bool_is_shown_as_a_number() -> None:
    registry = Registry("x")
    registry.gauge("up", "U.").set(True)
    registry.gauge("away", "A.").set(False)
    assert samples(registry) == {"hanse_x_up": "1", "hanse_x_away": "0"}


def test_a_long_label_value_is_truncated() -> None:
    registry = Registry("x")
    registry.counters("a_total", "A.", labels=("p",)).labels("t" * 65_535).inc()
    assert f'"{"t" * LABEL_CHARACTERS_MAX}"' in registry.render()


def test_figures_can_be_fetched_at_the_scrape_and_one_that_fails_costs_only_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = Registry("x")
    gauge = registry.gauge("age_seconds", "A.")

    def fail() -> None:
        raise OSError("gone")

    registry.at_scrape(fail)
    registry.at_scrape(lambda: gauge.set(gauge.value + 1))
    with caplog.at_level(logging.ERROR):
        samples(registry)
        assert samples(registry) == {"hanse_x_age_seconds": "2"}
    assert "hanse_x_metrics_failures_total 3\n" in registry.render()
    assert "could not be fetched" in caplog.text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda r: r.counter("drops", "D."), "must end in _total"),
        (lambda r: r.gauge("drops_total", "D."), "like a counter"),
        (lambda r: r.histogram("latency", "L."), "must end in a unit"),
        (lambda r: r.histogram("a_seconds", "L.", buckets=()), "increasing finite numbers"),
        (lambda r: r.histogram("a_seconds", "L.", buckets=(2, 1)), "increasing finite numbers"),
        (lambda r: r.histogram("a_seconds", "L.", buckets=(1, float("inf"))), "increasing finite numbers"),
        (lambda r: r.histograms("a_seconds", "L.", labels=("le",)), "reserved for the buckets"),
        (lambda r: r.gauge("Groups", "G."), "is not a valid name"),
        (lambda r: r.gauge("a__b", "G."), "is not a valid name"),
        (lambda r: r.gauges("a", "G.", labels=("__x",)), "is not a valid name, or"),
        (lambda r: r.gauges("a", "G.", labels=("x", "x")), "is repeated"),
        (lambda r: (r.gauge("a", "G."), r.gauge("a", "G.")), "exists already"),
        (lambda r: r.gauges("a", "G.", labels=("x",)).labels(), "it has the labels x"),
        (lambda _: Registry("Fed erator"), "small letters"),
    ],
)
def test_a_name_outside_the_scheme_is_refused(make: object, words: str) -> None:
    with pytest.raises(LocalError, match=words):
        make(Registry("x"))  # type: ignore[operator]
