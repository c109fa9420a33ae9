"""Rates per broker, group and measure, from flow increments."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.throughput import TABLE
from hanse.pipeline.transforms.windows import WINDOW_S, window_start


def throughput(flow_increments: DataFrame, window_s: int = WINDOW_S) -> DataFrame:
    """Compute `gold_throughput` from `silver_flow_increments`."""
    windowed = flow_increments.withColumn("window_start", window_start(F.col("at"), window_s))
    summed = windowed.groupBy("window_start", "broker", "group", "measure").agg(
        F.sum("publications").alias("publications"), F.sum("payload_bytes").alias("payload_bytes")
    )
    return TABLE.conform(
        summed.withColumn("publications_per_s", F.col("publications") / window_s).withColumn(
            "payload_bytes_per_s", F.col("payload_bytes") / window_s
        )
    )
