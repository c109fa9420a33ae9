"""Link increments, from link counts."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.link_increments import TABLE
from hanse.pipeline.transforms.increments import increments

COUNTS = (
    "data_frames_sent",
    "data_frames_received",
    "data_bytes_sent",
    "data_bytes_received",
    "control_frames_sent",
    "control_frames_received",
    "control_bytes_sent",
    "control_bytes_received",
    "retransmitted_frames",
    "dropped_frames",
)


def link_increments(links: DataFrame) -> DataFrame:
    """Compute `silver_link_increments` from `silver_link`."""
    grown = increments(links, ("neighbour",), COUNTS)
    return TABLE.conform(grown.withColumn("broker", F.col("reporter")))
