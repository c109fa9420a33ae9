"""Latencies, from paths; the difference of the two hosts' clocks is subtracted first."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.latencies import TABLE
from hanse.pipeline.transforms.windows import WINDOW_S, elapsed_ms, window_start


def latencies(paths: DataFrame, skew: DataFrame, hosts: DataFrame, window_s: int = WINDOW_S) -> DataFrame:
    """Compute `silver_latencies` from `silver_paths`, `gold_clock_skew` and `hosts`.

    A message whose publication was not reported has no latency and no row. `window_s` must equal that of `skew`.
    """
    origins = F.broadcast(hosts.select(F.col("federator").alias("origin"), F.col("host").alias("origin_host")))
    destinations = F.broadcast(
        hosts.select(F.col("federator").alias("destination"), F.col("host").alias("destination_host"))
    )
    # No broadcast hint: this frame has hosts² rows per window, and Spark sees its size.
    offsets = skew.select(
        F.col("window_start").alias("skew_window"),
        F.col("host").alias("origin_host"),
        F.col("other_host").alias("destination_host"),
        "skew_ms",
        "skew_error_ms",
    )
    timed = (
        paths.where("published_at is not null")
        .withColumn("skew_window", window_start(F.col("collected_at"), window_s))
        .join(origins, "origin", "left")
        .join(destinations, "destination", "left")
        .join(offsets, ["skew_window", "origin_host", "destination_host"], "left")
    )
    is_one_host = (F.col("origin_host") == F.col("destination_host")) | (F.col("origin") == F.col("destination"))
    corrected = timed.select(
        "published_at",
        "origin",
        "destination",
        "group",
        # An incomplete path begins with a question mark.
        F.concat(F.when(F.col("is_complete"), "").otherwise("?>"), F.array_join("path", ">")).alias("path"),
        "hops",
        elapsed_ms(F.col("published_at"), F.col("delivered_at")).alias("raw_ms"),
        F.when(is_one_host, 0.0).otherwise(F.col("skew_ms")).alias("skew_ms"),
        F.when(is_one_host, 0.0).otherwise(F.col("skew_error_ms")).alias("skew_error_ms"),
    )
    return TABLE.conform(
        corrected.withColumn("latency_ms", F.col("raw_ms") - F.coalesce("skew_ms", F.lit(0.0))).withColumn(
            "is_corrected", F.col("skew_ms").isNotNull()
        )
    )
