"""Clock offsets between hosts, from two-way checks.

A check has four times: t1 (sent), t2 (received), t3 (answered), t4 (returned). The target's clock is ahead by ((t2 -
t1) + (t3 - t4)) / 2. The error is at most half the wire time, ((t4 - t1) - (t3 - t2)) / 2, so the check with the
shortest wire time is the best one (Mills' clock filter, as in NTP). A check serves its own window. It also serves the
windows before and after, so that one lost report leaves no gap; the possible drift of two clocks in that time is added
to the error. If two hosts never checked each other, their offset is the sum over the hosts between them, along the
route with the smallest sum of errors.

Windows follow the collector's clock, the only one that all rows share: the other clocks are being measured.
"""

from collections.abc import Iterator
from itertools import pairwise

import networkx as nx
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.clock_skew import TABLE
from hanse.pipeline.transforms.windows import WINDOW_S, window_start

# Largest drift between two clocks in parts per million: NTP's own tolerance (RFC 5905, PHI) for clocks that it
# disciplines. For free-running clocks, 100 is prudent.
DRIFT_PPM = 15.0

# Offsets for all pairs of n hosts are n² rows per window. Above this limit, only pairs that checked each other are
# given.
HOSTS_MAX = 64


def clock_skew(health: DataFrame, window_s: int = WINDOW_S, drift_ppm: float = DRIFT_PPM) -> DataFrame:
    """Compute `gold_clock_skew` from `silver_health`."""
    t1, t2, t3, t4 = (F.unix_micros(moment) for moment in ("sent_at", "received_at", "answered_at", "returned_at"))
    is_forward = F.col("host") < F.col("target_host")
    offset_us = ((t2 - t1) + (t3 - t4)) / 2
    own = window_start(F.col("collected_at"), window_s)
    checks = health.where(F.col("is_ok") & (F.col("host") != F.col("target_host"))).select(
        F.explode(F.array(*[F.lit(distance) for distance in (-1, 0, 1)])).alias("distance"),
        own.alias("own_window"),
        F.least("host", "target_host").alias("host"),
        F.greatest("host", "target_host").alias("other_host"),
        F.when(is_forward, offset_us).otherwise(-offset_us).alias("offset_us"),
        ((t4 - t1) - (t3 - t2)).alias("wire_us"),
    )
    # A message may be a whole window away from a check of its own window.
    drift_us = (F.abs("distance") + 1) * F.lit(drift_ppm * window_s)
    best = (
        # A negative wire time means that a clock was set during the check. A missing time gives null, which is dropped
        # too.
        checks.where("wire_us >= 0")
        .withColumn("error_us", F.col("wire_us") / 2 + drift_us)
        .withColumn("window_start", F.timestamp_seconds(F.unix_seconds("own_window") + F.col("distance") * window_s))
        .groupBy("window_start", "host", "other_host")
        .agg(
            (F.min_by("offset_us", "error_us") / 1_000).alias("skew_ms"),
            (F.min("error_us") / 1_000).alias("skew_error_ms"),
            F.count_if(F.col("distance") == 0).alias("checks"),
        )
    )
    return best.groupBy("window_start").applyInArrow(_all_pairs, TABLE.struct)


def _all_pairs(pairs: pa.Table) -> pa.Table:
    window = pairs.column("window_start")[0]
    graph = nx.Graph()
    for row in pairs.drop_columns(["window_start"]).to_pylist():
        graph.add_edge(row["host"], row["other_host"], **row)
    rows = list(_offsets(graph, 1 if len(graph) > HOSTS_MAX else len(graph)))
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array([window.value] * len(rows), TABLE.arrow.field(0).type)]
    arrays += [pa.array(column, field.type) for column, field in zip(columns, list(TABLE.arrow)[1:], strict=True)]
    return pa.Table.from_arrays(arrays, schema=TABLE.arrow)


def _offsets(graph: nx.Graph, links_max: int) -> Iterator[tuple[str, str, float, float, int, int]]:
    for host in sorted(graph):
        ways = nx.single_source_dijkstra_path(graph, host, weight="skew_error_ms")
        if links_max == 1:
            ways = {other: [host, other] for other in graph[host]}
        for other, way in sorted(ways.items()):
            if other != host:
                links = [(a, b, graph.edges[a, b]) for a, b in pairwise(way)]
                skew_ms = sum(link["skew_ms"] if link["host"] == a else -link["skew_ms"] for a, _, link in links)
                error_ms = sum(link["skew_error_ms"] for _, _, link in links)
                checks = links[0][2]["checks"] if len(links) == 1 else 0
                yield host, other, skew_ms, error_ms, checks, len(links)
