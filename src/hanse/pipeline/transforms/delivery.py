"""Delivery ratio and loss, from counts alone.

Each publication that an origin counted for a group is expected once at every *other* broker that was a member
throughout the time between the two reports. The membership must have begun `settle_s` earlier, because a new member is
known everywhere only after two announcement intervals. If a member joined or left between two reports, nobody knows how
many publications it had to receive: these are counted as uncertain and never guessed.

Two brokers report at different times, so a single window can include a message that is published and not yet delivered.
The totals up to the end of a window are exact once the traffic has come to rest.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.delivery import TABLE
from hanse.pipeline.transforms.windows import WINDOW_S, window_start

# Two announcement intervals at their default of 1 s: from then on a subscriber must receive every publication.
SETTLE_S = 2

KEYS = ("window_start", "origin", "destination", "group")
COUNTS = ("expected", "uncertain", "delivered", "dropped")


def delivery(
    flow_increments: DataFrame, memberships: DataFrame, window_s: int = WINDOW_S, settle_s: int = SETTLE_S
) -> DataFrame:
    """Compute `gold_delivery` from `silver_flow_increments` and `silver_memberships`."""
    windowed = flow_increments.withColumn("window_start", window_start(F.col("at"), window_s))
    owed = _owed(windowed.where("measure = 'published' and publications > 0"), memberships, settle_s)
    delivered = windowed.where("measure = 'delivered' and publications > 0").select(
        "window_start",
        "origin",
        F.col("broker").alias("destination"),
        "group",
        F.col("publications").alias("delivered"),
    )
    dropped = windowed.where("measure = 'dropped' and destination is not null and publications > 0").select(
        *KEYS, F.col("publications").alias("dropped")
    )
    all_counts = owed.unionByName(delivered, allowMissingColumns=True).unionByName(dropped, allowMissingColumns=True)
    by_window = all_counts.groupBy(*KEYS).agg(*[F.coalesce(F.sum(c), F.lit(0)).alias(c) for c in COUNTS])
    so_far = (
        Window.partitionBy("origin", "destination", "group")
        .orderBy("window_start")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    totals = by_window.withColumns({f"{name}_total": F.sum(name).over(so_far) for name in COUNTS})
    lost = totals.withColumn(
        "lost_total", F.greatest(F.lit(0), F.col("expected_total") - F.col("delivered_total"))
    ).withColumn("unexplained_total", F.greatest(F.lit(0), F.col("lost_total") - F.col("dropped_total")))
    # Delivered counts include uncertain publications; if there are any, the ratio is an upper bound.
    ratio = F.least(F.lit(1.0), F.col("delivered_total") / F.col("expected_total"))
    return TABLE.conform(lost.withColumn("delivery_ratio", F.when(F.col("expected_total") > 0, ratio)))


def _owed(published: DataFrame, memberships: DataFrame, settle_s: int) -> DataFrame:
    members = memberships.select(
        "group",
        F.col("federator").alias("destination"),
        "joined_at",
        (F.col("joined_at") + F.make_dt_interval(secs=F.lit(settle_s))).alias("settled_at"),
        "left_at",
    )
    met = published.drop("destination").join(members, "group").where(F.col("origin") != F.col("destination"))
    is_left = F.col("left_at").isNotNull()
    overlaps = (F.col("joined_at") < F.col("at")) & ~(is_left & (F.col("left_at") <= F.col("since")))
    is_certain = (F.col("settled_at") <= F.col("since")) & ~(is_left & (F.col("left_at") < F.col("at")))
    return met.where(overlaps).select(
        *KEYS,
        F.when(is_certain, F.col("publications")).otherwise(0).alias("expected"),
        F.when(is_certain, 0).otherwise(F.col("publications")).alias("uncertain"),
    )
