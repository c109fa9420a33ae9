"""Traffic matrix, from flow increments: deliveries per delivering broker, publishing broker and group."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.traffic_matrix import TABLE
from hanse.pipeline.transforms.windows import WINDOW_S, window_start


def traffic_matrix(flow_increments: DataFrame, window_s: int = WINDOW_S) -> DataFrame:
    """Compute `gold_traffic_matrix` from `silver_flow_increments`; the sums over all windows are exact."""
    delivered = flow_increments.where("measure = 'delivered' and publications > 0").select(
        window_start(F.col("at"), window_s).alias("window_start"),
        "origin",
        # Only the destination counts a delivery.
        F.col("broker").alias("destination"),
        "group",
        "publications",
        "payload_bytes",
    )
    return TABLE.conform(
        delivered.groupBy("window_start", "origin", "destination", "group").agg(
            F.sum("publications").alias("publications"), F.sum("payload_bytes").alias("payload_bytes")
        )
    )
