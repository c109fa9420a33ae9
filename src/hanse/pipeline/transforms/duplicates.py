"""Duplicates that were suppressed (counted), and duplicates that reached a broker (sampled)."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.duplicates import TABLE
from hanse.pipeline.transforms.windows import WINDOW_S, window_start


def duplicates(flow_increments: DataFrame, paths: DataFrame, window_s: int = WINDOW_S) -> DataFrame:
    """Compute `gold_duplicates` from `silver_flow_increments` and `silver_paths`."""
    keys = ("window_start", "broker", "group")
    suppressed = flow_increments.where("measure = 'duplicate' and publications > 0").select(
        window_start(F.col("at"), window_s).alias("window_start"),
        "broker",
        "group",
        F.col("publications").alias("suppressed"),
    )
    sampled = paths.select(
        window_start(F.col("delivered_at"), window_s).alias("window_start"),
        F.col("destination").alias("broker"),
        "group",
        F.lit(1).alias("sampled"),
        (F.col("copies") > 1).cast("long").alias("delivered_twice"),
    )
    both = suppressed.unionByName(sampled, allowMissingColumns=True)
    counts = ("suppressed", "sampled", "delivered_twice")
    return TABLE.conform(both.groupBy(*keys).agg(*[F.coalesce(F.sum(c), F.lit(0)).alias(c) for c in counts]))
