from typing import Any

import networkx as nx
import pytest

from hanse.pipeline.schemas import anomalies as anomalies_schema
from hanse.pipeline.schemas import broker_load as load_schema
from hanse.pipeline.schemas import control_overhead as overhead_schema
from hanse.pipeline.schemas import flow_increments as flow_schema
from hanse.pipeline.schemas import silver
from hanse.pipeline.schemas import throughput as throughput_schema
from hanse.pipeline.schemas import topology_intervals as intervals_schema
from hanse.pipeline.schemas import topology_snapshots as snapshots_schema
from hanse.pipeline.schemas.table import Table, moment, number, text
from hanse.pipeline.transforms.anomalies import anomalies, series
from hanse.pipeline.transforms.broker_load import broker_load
from hanse.pipeline.transforms.topology_intervals import topology_intervals
from hanse.pipeline.transforms.topology_snapshots import _diameter, topology_snapshots

pytestmark = pytest.mark.spark

EVENT = "reporter at event federator neighbour reason"
UP = "element federator neighbour up_at down_at down_reason"


def test_events_become_intervals_in_which_elements_were_up(make: Any, check: Any) -> None:
    events = make(
        silver.TABLES["topology"],
        EVENT,
        ("manager", 1, "join", "1", None, None),
        ("manager", 1, "federator_up", "1", None, None),  # no change
        ("manager", 2, "join", "2", None, None),
        ("1", 3.0, "link_up", "1", "2", None),
        ("2", 3.1, "link_up", "2", "1", None),  # the other end, a little later
        ("1", 9, "link_down", "1", "2", "timeout"),
        ("1", 12, "link_up", "1", "2", None),
        ("manager", 20, "federator_down", "2", None, "two checks failed"),  # killed: it does not report its link
        ("1", 20.4, "link_down", "1", "2", "reset"),  # its neighbour reports it later
        ("manager", 30, "federator_up", "2", None, None),
    )
    check(
        topology_intervals(events),
        intervals_schema.TABLE,
        UP,
        ("federator", "1", None, 1, None, None),
        ("federator", "2", None, 2, 20, "two checks failed"),
        ("federator", "2", None, 30, None, None),
        ("link", "1", "2", 3, 9, "timeout"),
        ("link", "1", "2", 12, 20, "two checks failed"),
    )


@pytest.mark.slow
def test_snapshots_describe_the_overlay_after_each_change(make: Any, check: Any) -> None:
    rows: list[tuple[Any, ...]] = [("federator", name, None, 1.2, None, None) for name in "1234"]
    rows += [("link", a, b, 2.5, None, None) for a, b in ("12", "23")]
    rows += [("link", "3", "4", 2.7, 8.5, "cut"), ("federator", "5", None, 8.2, None, None)]
    check(
        topology_snapshots(make(intervals_schema.TABLE, UP, *rows)),
        snapshots_schema.TABLE,
        "at federators links components largest_component diameter is_diameter_exact degree_min degree_mean "
        "degree_max articulation_points isolated",
        (2, 4, 0, 4, 1, 0, True, 0, 0.0, 0, [], ["1", "2", "3", "4"]),
        (3, 4, 3, 1, 4, 3, True, 1, 1.5, 2, ["2", "3"], []),
        (9, 5, 2, 3, 3, 2, True, 0, 0.8, 2, ["2"], ["4", "5"]),
    )


@pytest.mark.slow
def test_an_empty_overlay_is_also_a_snapshot(make: Any, check: Any) -> None:
    gone = make(intervals_schema.TABLE, UP, ("federator", "1", None, 1, 5, "killed"))
    header = "at federators components diameter degree_mean"
    check(topology_snapshots(gone), snapshots_schema.TABLE, header, (2, 1, 1, 0, 0.0), (6, 0, 0, 0, 0.0))


def test_the_diameter_of_a_large_overlay_is_a_lower_bound_and_exact_on_trees() -> None:
    tree = nx.balanced_tree(2, 6)
    assert _diameter(tree, is_exact=False) == _diameter(tree, is_exact=True) == 12
    ring = nx.cycle_graph(9)
    assert _diameter(ring, is_exact=False) <= _diameter(ring, is_exact=True) == 4


@pytest.mark.slow
def test_load_consists_of_cpu_memory_and_publications(make: Any, check: Any) -> None:
    samples = make(
        silver.TABLES["resource"],
        "reporter at started_at host role cpu_us rss_bytes",
        ("1", 10, 0, "h1", "federator", 1_000_000, 50),
        ("1", 20, 0, "h1", "federator", 6_000_000, 70),
        ("1", 70, 0, "h1", "federator", 7_000_000, 60),
        ("1", 80, 75, "h1", "federator", 500_000, 10),  # restarted
        ("1", 20, 0, "h1", "broker", 1_000_000, 5),
        ("2", 900, 0, "h2", "federator", 9_000_000, 5),  # the only sample, of a process older than our records
    )
    grown = make(
        flow_schema.TABLE,
        "broker at measure publications",
        ("1", 11, "published", 5),
        ("1", 12, "forwarded", 4),
        ("1", 12, "duplicate", 99),
        ("1", 71, "delivered", 3),
    )
    check(
        broker_load(samples, grown),
        load_schema.TABLE,
        "window_start broker role host samples cpu_share rss_bytes_max publications",
        (0, "1", "federator", "h1", 2, 6 / 20, 70, 9),
        (60, "1", "federator", "h1", 2, 1.5 / 55, 60, 3),
        (0, "1", "broker", "h1", 1, 1 / 20, 5, 0),
        (900, "2", "federator", "h2", 1, None, 5, 0),
    )


SERIES = Table(
    "series",
    "",
    (
        text("element", ""),
        text("name", ""),
        text("measure", ""),
        moment("window_start", ""),
        number("value", ""),
    ),
)
SERIES_HEADER = "element name measure window_start value"


@pytest.mark.slow
def test_a_silent_or_overloaded_broker_deviates_from_its_baseline(make: Any, check: Any) -> None:
    def steady(name: str, measure: str, *values: float) -> list[tuple[Any, ...]]:
        return [("broker", name, measure, 60 * i, value) for i, value in enumerate(values)]

    rows = [
        *steady("1", "reports", *[12] * 12),
        *steady("2", "reports", *[12, 12, 11, 12, 12, 12, 12]),  # killed: no more reports
        *steady("3", "cpu_share", 0.20, 0.22, 0.19, 0.21, 0.20, 0.22, 0.95, 0.21, 0.21, 0.21, 0.21, 0.21),
        *steady("4", "cpu_share", 0.20, 0.20, 0.20, 0.20, 0.20, 0.20, 0.21, 0.20),  # too small a step
        *steady("5", "cpu_share", 0.1, 0.1, 0.1, 0.9),  # too short a history
        *steady("6", "round_trip_ms", *[2.0] * 7),  # a level without a measurement is not zero
        ("link", "1>2", "data_kb_per_s", 660, 5.0),
    ]
    found = anomalies(make(SERIES, SERIES_HEADER, *rows))
    check(
        found.where("window_start <= timestamp'2026-01-01 00:07:00'"),
        anomalies_schema.TABLE,
        "window_start element name measure value baseline spread score direction",
        (360, "broker", "3", "cpu_share", 0.95, 0.205, 0.0205, 0.745 / 0.0205, "high"),
        (420, "broker", "2", "reports", 0.0, 12.0, 1.2, -10.0, "low"),
    )


@pytest.mark.slow
def test_the_last_window_is_open_and_is_not_judged(make: Any) -> None:
    rows = [("broker", "1", "reports", 60 * i, 12.0 if i < 8 else 1.0) for i in range(9)]
    assert anomalies(make(SERIES, SERIES_HEADER, *rows)).collect() == []


@pytest.mark.slow
def test_series_are_taken_from_load_rates_checks_and_links(make: Any, check: Any) -> None:
    load = make(
        load_schema.TABLE,
        "window_start broker role samples cpu_share rss_bytes_max",
        (0, "1", "federator", 12, 0.5, 5_000_000),
        (0, "1", "broker", 12, 0.1, 1),
    )
    rates = make(
        throughput_schema.TABLE,
        "window_start broker group measure publications_per_s",
        (0, "1", "a", "published", 3.0),
        (0, "1", "b", "published", 4.0),
        (0, "1", "a", "forwarded", 9.0),
    )
    checks = make(
        silver.TABLES["health"],
        "target sent_at received_at answered_at returned_at is_ok",
        ("1", 1.0, 1.001, 1.002, 1.005, True),
        ("1", 2.0, None, None, None, False),
    )
    links = make(
        overhead_schema.TABLE, "window_start broker neighbour data_bytes dropped_frames", (0, "1", "2", 60_000, 3)
    )
    check(
        series(load, rates, checks, links),
        SERIES,
        SERIES_HEADER,
        ("broker", "1", "reports", 0, 12.0),
        ("broker", "1", "cpu_share", 0, 0.5),
        ("broker", "1", "rss_mb", 0, 5.0),
        ("broker", "1", "published_per_s", 0, 7.0),
        ("broker", "1", "round_trip_ms", 0, 4.0),
        ("broker", "1", "failed_checks", 0, 1.0),
        ("link", "1>2", "data_kb_per_s", 0, 1.0),
        ("link", "1>2", "dropped_frames", 0, 3.0),
    )
