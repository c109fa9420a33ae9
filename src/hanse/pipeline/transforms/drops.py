"""Drops by reason, from flow increments."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.drops import TABLE
from hanse.pipeline.transforms.windows import WINDOW_S, window_start


def drops(flow_increments: DataFrame, window_s: int = WINDOW_S) -> DataFrame:
    """Compute `gold_drops` from `silver_flow_increments`."""
    dropped = (
        flow_increments.where("measure = 'dropped' and publications > 0")
        .withColumn("window_start", window_start(F.col("at"), window_s))
        .withColumn("reason", F.coalesce("reason", F.lit("not said")))
    )
    return TABLE.conform(
        dropped.groupBy("window_start", "broker", "origin", "group", "reason").agg(
            F.sum("publications").alias("publications")
        )
    )
