"""Deliveries that came after a later message of the same origin, epoch and topic.

Only the destination's clock is used, so no correction is needed. A sample sees a part of the messages, so it sees a
part of the reorderings: `reordered / sampled` is the measure, not the count.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.reordering import TABLE
from hanse.pipeline.transforms.windows import WINDOW_S, window_start


def reordering(deliveries: DataFrame, window_s: int = WINDOW_S) -> DataFrame:
    """`gold_reordering` from `silver_delivery`."""
    stream = ("reporter", "origin", "epoch", "topic")
    # A message delivered twice is a duplicate, not a reordering: the first delivery counts. Overlapping groups
    # carry one message once, so the group is whichever that delivery named.
    first = deliveries.groupBy(*stream, "seq").agg(
        F.min("delivered_at").alias("delivered_at"), F.min_by("group", "delivered_at").alias("group")
    )
    # Of one moment (one acknowledged batch) the order is not known: taken as published.
    before = Window.partitionBy(*stream).orderBy("delivered_at", "seq").rowsBetween(Window.unboundedPreceding, -1)
    behind = first.withColumn("depth", F.greatest(F.lit(0), F.max("seq").over(before) - F.col("seq")))
    windowed = behind.withColumn("window_start", window_start(F.col("delivered_at"), window_s)).withColumn(
        "destination", F.col("reporter")
    )
    return TABLE.conform(
        windowed.groupBy("window_start", "origin", "destination", "group").agg(
            F.count("*").alias("sampled"),
            F.count_if(F.col("depth") > 0).alias("reordered"),
            F.max("depth").alias("depth_max"),
        )
    )
