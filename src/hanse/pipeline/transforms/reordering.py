"""Deliveries that came after a later message of the same origin, epoch and topic.

Only the destination's clock is used, so no correction is needed. A sample contains only some of the messages and
therefore only some of the reorderings: the measure is `reordered / sampled`, not the count.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.reordering import TABLE
from hanse.pipeline.transforms.windows import WINDOW_S, window_start


def reordering(deliveries: DataFrame, window_s: int = WINDOW_S) -> DataFrame:
    """Compute `gold_reordering` from `silver_delivery`."""
    stream = ("reporter", "origin", "epoch", "topic")
    # A message delivered twice is a duplicate, not a reordering, so only its first delivery counts. Overlapping groups
    # carry a message once, so the group is the one that this delivery named.
    first = deliveries.groupBy(*stream, "seq").agg(
        F.min("delivered_at").alias("delivered_at"), F.min_by("group", "delivered_at").alias("group")
    )
    # The order within one acknowledged batch, which has one time, is not known; assume the published order.
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
