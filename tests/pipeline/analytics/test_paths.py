import statistics
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas import clock_skew as skew_schema
from hanse.pipeline.schemas import latencies as latencies_schema
from hanse.pipeline.schemas import latency_by_group as by_group_schema
from hanse.pipeline.schemas import latency_by_path as by_path_schema
from hanse.pipeline.schemas import latency_sketches as sketches_schema
from hanse.pipeline.schemas import paths as paths_schema
from hanse.pipeline.schemas import reordering as reordering_schema
from hanse.pipeline.schemas import silver
from hanse.pipeline.schemas.table import Column, Table
from hanse.pipeline.transforms.clock_skew import clock_skew
from hanse.pipeline.transforms.hosts import hosts
from hanse.pipeline.transforms.latencies import latencies
from hanse.pipeline.transforms.latency_percentiles import latency_by_group, latency_by_path
from hanse.pipeline.transforms.latency_sketches import latency_sketches
from hanse.pipeline.transforms.paths import paths
from hanse.pipeline.transforms.reordering import reordering

pytestmark = pytest.mark.spark

HOP = "reporter origin epoch seq group hop previous received_at is_duplicate"
DELIVERY = "reporter origin epoch seq group hops published_at delivered_at"
HOSTS = Table("hosts", "", (Column("federator", "string", ""), Column("host", "string", "")))


def test_paths_are_found_backwards_from_the_delivery(make: Any, check: Any) -> None:
    hops = make(
        silver.TABLES["hop"],
        HOP,
        ("1", "1", 9, 5, "a", 0, None, 1.0, False),
        ("2", "1", 9, 5, "a", 1, "1", 1.1, False),
        ("3", "1", 9, 5, "a", 2, "2", 1.2, False),
        ("3", "1", 9, 5, "a", 2, "4", 1.3, True),  # the redundant copy is not the route
        ("4", "1", 9, 5, "a", 1, "1", 1.1, False),
        ("5", "1", 9, 5, "a", 2, "4", 1.2, False),
        ("2", "1", 9, 6, "a", 1, "1", 2.0, False),  # the origin's own report is missing
        ("3", "1", 9, 6, "a", 2, "2", 2.1, False),
        ("3", "1", 9, 7, "a", 2, "2", 3.1, False),  # 2's report is missing
        ("1", "1", 9, 7, "a", 0, None, 3.0, False),
    )
    deliveries = make(
        silver.TABLES["delivery"],
        DELIVERY,
        ("3", "1", 9, 5, "a", 2, None, 1.25),
        ("3", "1", 9, 5, "a", 2, None, 1.26),  # delivered twice
        ("5", "1", 9, 5, "a", 2, None, 1.3),
        ("3", "1", 9, 6, "a", 2, 1.9, 2.2),
        ("3", "1", 9, 7, "a", 2, None, 3.2),
        ("4", "1", 9, 8, "a", 1, None, 4.0),  # only the delivery was reported
    )
    check(
        paths(hops, deliveries),
        paths_schema.TABLE,
        "origin epoch seq group destination path hops is_complete published_at delivered_at copies",
        ("1", 9, 5, "a", "3", ["1", "2", "3"], 2, True, 1.0, 1.25, 2),
        ("1", 9, 5, "a", "5", ["1", "4", "5"], 2, True, 1.0, 1.3, 1),
        ("1", 9, 6, "a", "3", ["1", "2", "3"], 2, True, 1.9, 2.2, 1),
        ("1", 9, 7, "a", "3", ["2", "3"], 2, False, 3.0, 3.2, 1),
        ("1", 9, 8, "a", "4", ["4"], 1, False, None, 4.0, 1),
    )


CHECK = "collected_at reporter target host target_host sent_at received_at answered_at returned_at is_ok"


@pytest.mark.slow
def test_skew_is_taken_from_the_shortest_check_of_a_window(make: Any, check: Any) -> None:
    # h2 is 5 s ahead of h1; h3 is 1 s behind h2.
    checks = make(
        silver.TABLES["health"],
        CHECK,
        (10, "1", "2", "h1", "h2", 10.000, 15.001, 15.002, 10.003, True),  # 2 ms on the wire, evenly
        (20, "1", "2", "h1", "h2", 20.000, 25.040, 25.040, 20.041, True),  # slow one way: 19.5 ms off, and ignored
        (30, "2", "1", "h2", "h1", 35.000, 30.010, 30.010, 35.020, True),  # the other direction, 20 ms on the wire
        (40, "2", "3", "h2", "h3", 40.000, 39.002, 39.002, 40.004, True),
        (50, "1", "2", "h1", "h2", 50.000, None, None, None, False),  # failed
        (50, "1", "4", "h1", "h1", 50.000, 50.000, 50.000, 50.001, True),  # one host, one clock
        (50, "1", "2", "h1", "h2", 50.000, 54.001, 54.003, 50.001, True),  # processing took longer than the round trip
        (10, "9", "8", "h9", "h8", 3_600.0, 10.001, 10.001, 3_600.002, True),  # another island, an hour off
    )
    expected = [
        ("h1", "h2", 5_000.0, 1.0, 3, 1),
        ("h2", "h1", -5_000.0, 1.0, 3, 1),
        ("h2", "h3", -1_000.0, 2.0, 1, 1),
        ("h3", "h2", 1_000.0, 2.0, 1, 1),
        ("h1", "h3", 4_000.0, 3.0, 0, 2),
        ("h3", "h1", -4_000.0, 3.0, 0, 2),
        ("h8", "h9", 3_590_000.0, 1.0, 1, 1),
        ("h9", "h8", -3_590_000.0, 1.0, 1, 1),
    ]
    beside = [(*row[:4], 0, row[5]) for row in expected]
    check(
        clock_skew(checks, drift_ppm=0.0),
        skew_schema.TABLE,
        "window_start host other_host skew_ms skew_error_ms checks links",
        *[(-60, *row) for row in beside],
        *[(0, *row) for row in expected],
        *[(60, *row) for row in beside],
    )


@pytest.mark.slow
def test_the_error_of_a_skew_allows_for_drift_and_the_nearer_check_wins(make: Any) -> None:
    checks = make(
        silver.TABLES["health"],
        CHECK,
        (10, "1", "2", "h1", "h2", 10.0, 10.001, 10.001, 10.002, True),
        (
            70,
            "1",
            "2",
            "h1",
            "h2",
            70.0,
            71.001,
            71.001,
            70.004,
            True,
        ),  # h2's clock was set by a second, and the wire took longer
    )
    rows = clock_skew(checks, drift_ppm=50.0).where("host = 'h1'").orderBy("window_start").collect()
    # Half the wire time, and 3 ms of drift for each window of distance plus one.
    assert [row["skew_error_ms"] for row in rows] == pytest.approx([7.0, 4.0, 5.0, 8.0])
    assert [row["skew_ms"] for row in rows] == pytest.approx([0.0, 0.0, 999.0, 999.0])


@pytest.mark.slow
def test_a_federator_is_on_the_host_that_it_reported_last(make: Any, check: Any) -> None:
    health = make(
        silver.TABLES["health"],
        "reporter target host target_host sent_at received_at is_ok",
        ("1", "2", "h1", "h2", 10, 10, True),
        ("manager", "3", "h0", "h3", 10, 10, True),
        ("manager", "3", "h0", "h4", 20, 20, True),
        ("manager", "3", "h0", "10.0.0.3", 30, None, False),  # its address, because it has never reported its host
        ("manager", "4", "h0", "10.0.0.4", 30, None, False),
    )
    resources = make(
        silver.TABLES["resource"],
        "reporter role host at",
        ("1", "federator", "h9", 30),
        ("2", "broker", "hx", 30),
    )
    check(
        hosts(health, resources).select("federator", "host"),
        HOSTS,
        "federator host",
        ("1", "h9"),
        ("2", "h2"),
        ("3", "h4"),
        ("manager", "h0"),
    )


def test_latency_is_corrected_for_clock_skew(make: Any, check: Any) -> None:
    found = make(
        paths_schema.TABLE,
        "collected_at origin destination group path hops is_complete published_at delivered_at",
        (10, "1", "2", "a", ["1", "2"], 1, True, 10.0, 15.010),  # h2 is 5 s ahead
        (10, "2", "1", "a", ["2", "1"], 1, True, 15.0, 10.012),
        (61, "1", "2", "a", ["1", "2"], 1, True, 61.0, 66.010),  # no check in this window
        (10, "1", "4", "a", ["1", "3", "4"], 2, True, 10.0, 10.007),  # the same host
        (10, "1", "9", "a", ["9"], 1, False, 10.0, 10.5),  # an unknown host
        (10, "1", "2", "a", ["2"], 1, False, None, 15.0),  # a publication that was not reported
    )
    skew = make(
        skew_schema.TABLE,
        "window_start host other_host skew_ms skew_error_ms checks links",
        (0, "h1", "h2", 5_000.0, 1.5, 3, 1),
        (0, "h2", "h1", -5_000.0, 1.5, 3, 1),
    )
    where = make(HOSTS, "federator host", ("1", "h1"), ("2", "h2"), ("4", "h1"))
    check(
        latencies(found, skew, where),
        latencies_schema.TABLE,
        "published_at origin destination path latency_ms skew_ms skew_error_ms is_corrected",
        (10.0, "1", "2", "1>2", 10.0, 5_000.0, 1.5, True),
        (15.0, "2", "1", "2>1", 12.0, -5_000.0, 1.5, True),
        (61.0, "1", "2", "1>2", 5_010.0, None, None, False),
        (10.0, "1", "4", "1>3>4", 7.0, 0.0, 0.0, True),
        (10.0, "1", "9", "?>9", 500.0, None, None, False),
    )


@pytest.mark.slow
def test_percentiles_of_ten_rows_are_exact_by_path_and_by_group(make: Any, check: Any) -> None:
    header = "published_at origin destination group path hops latency_ms skew_error_ms is_corrected"
    rows: list[tuple[Any, ...]] = [(1, "1", "2", "a", "1>2", 1, ms, 0.5, True) for ms in (1, 2, 3, 4, 5)]
    rows += [(2, "1", "3", "a", "1>2>3", 2, ms, None, False) for ms in (10, 20, 30, 40)]
    rows += [(2, "1", "3", "b", "1>2>3", 2, 100, 2.0, True)]
    sketches = latency_sketches(make(latencies_schema.TABLE, header, *rows))
    check(
        sketches,
        sketches_schema.TABLE,
        "window_start group path hops deliveries uncorrected latency_ms_max skew_error_ms_max",
        (0, "a", "1>2", 1, 5, 0, 5.0, 0.5),
        (0, "a", "1>2>3", 2, 4, 4, 40.0, None),
        (0, "b", "1>2>3", 2, 1, 0, 100.0, 2.0),
    )
    measures = "deliveries uncorrected latency_ms_p50 latency_ms_p95 latency_ms_p99 latency_ms_max skew_error_ms_max"
    check(
        latency_by_path(sketches),
        by_path_schema.TABLE,
        f"window_start origin destination path hops {measures}",
        (0, "1", "2", "1>2", 1, 5, 0, 3.0, 5.0, 5.0, 5.0, 0.5),
        (0, "1", "3", "1>2>3", 2, 5, 4, 30.0, 100.0, 100.0, 100.0, 2.0),
    )
    check(
        latency_by_group(sketches),
        by_group_schema.TABLE,
        f"window_start group {measures}",
        (0, "a", 9, 4, 5.0, 40.0, 40.0, 40.0, 0.5),
        (0, "b", 1, 0, 100.0, 100.0, 100.0, 100.0, 2.0),
    )


@pytest.mark.slow
def test_merged_sketches_stay_within_their_rank_error_of_the_exact_percentile(spark: Any) -> None:
    measured = (
        spark.range(50_000)
        .withColumn("latency_ms", F.exp(F.randn(seed=7)))
        .select(
            F.timestamp_seconds(F.col("id") % 3).alias("published_at"),
            F.lit("1").alias("origin"),
            F.lit("2").alias("destination"),
            F.lit("a").alias("group"),
            F.concat(F.lit("p"), F.col("id") % 5).alias("path"),
            F.lit(1).alias("hops"),
            "latency_ms",
            F.lit(0.0).alias("skew_error_ms"),
            F.lit(True).alias("is_corrected"),
        )
    )
    row = latency_by_group(latency_sketches(measured)).collect()[0]
    assert row["deliveries"] == 50_000
    for percent in (50, 95, 99):
        # Reference: the exact percentiles at the two ranks between which the sketch's value must lie.
        low, high = (min(1.0, percent / 100 + error) for error in (-0.014, 0.014))
        bounds = measured.select(F.percentile("latency_ms", F.array(F.lit(low), F.lit(high)))).collect()[0][0]
        assert bounds[0] <= row[f"latency_ms_p{percent}"] <= bounds[1]
    assert row["latency_ms_max"] == measured.agg(F.max("latency_ms")).collect()[0][0]


@pytest.mark.slow
def test_the_exact_percentile_is_the_oracle_of_small_sketches(make: Any) -> None:
    header = "published_at group latency_ms"
    values = [float(value) for value in range(1, 100)]
    sketches = latency_sketches(make(latencies_schema.TABLE, header, *[(1, "a", value) for value in values]))
    assert latency_by_group(sketches).collect()[0]["latency_ms_p50"] == statistics.median(values)


@pytest.mark.slow
def test_reordering_is_seen_within_one_stream_only(make: Any, check: Any) -> None:
    deliveries = make(
        silver.TABLES["delivery"],
        "reporter origin epoch seq topic group delivered_at",
        ("2", "1", 9, 1, "t", "a", 1.0),
        ("2", "1", 9, 5, "t", "a", 1.1),
        ("2", "1", 9, 3, "t", "a", 1.2),  # two behind
        ("2", "1", 9, 2, "t", "a", 1.3),  # three behind
        ("2", "1", 9, 5, "t", "a", 1.4),  # a duplicate, not a reordering
        ("2", "1", 9, 6, "t", "a", 1.5),
        ("2", "1", 9, 4, "u", "a", 1.6),  # another topic
        ("2", "1", 10, 1, "t", "a", 1.7),  # another epoch
        ("3", "1", 9, 8, "t", "a", 1.8),
        ("3", "1", 9, 7, "t", "a", 1.8),  # acknowledged together
    )
    check(
        reordering(deliveries),
        reordering_schema.TABLE,
        "window_start origin destination group sampled reordered depth_max",
        (0, "1", "2", "a", 7, 2, 3),
        (0, "1", "3", "a", 2, 0, 0),
    )
