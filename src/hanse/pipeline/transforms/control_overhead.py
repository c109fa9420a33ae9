"""Cost of control traffic compared with data per link and direction, from link increments."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.control_overhead import TABLE
from hanse.pipeline.transforms.windows import WINDOW_S, window_start


def control_overhead(link_increments: DataFrame, window_s: int = WINDOW_S) -> DataFrame:
    """Compute `gold_control_overhead` from `silver_link_increments`, as counted at the sending end."""
    windowed = link_increments.withColumn("window_start", window_start(F.col("at"), window_s))
    summed = windowed.groupBy("window_start", "broker", "neighbour").agg(
        F.sum("data_frames_sent").alias("data_frames"),
        F.sum("data_bytes_sent").alias("data_bytes"),
        F.sum("control_frames_sent").alias("control_frames"),
        F.sum("control_bytes_sent").alias("control_bytes"),
        F.sum("retransmitted_frames").alias("retransmitted_frames"),
        F.sum("dropped_frames").alias("dropped_frames"),
    )
    sent_bytes = F.col("data_bytes") + F.col("control_bytes")
    return TABLE.conform(
        summed.withColumn("control_bytes_per_s", F.col("control_bytes") / window_s).withColumn(
            "control_share", F.when(sent_bytes > 0, F.col("control_bytes") / sent_bytes)
        )
    )
