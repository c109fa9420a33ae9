"""Flow increments, from flow counts."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.flow_increments import TABLE
from hanse.pipeline.transforms.increments import increments


def flow_increments(flows: DataFrame) -> DataFrame:
    """Compute `silver_flow_increments` from `silver_flow`."""
    series = ("origin", "destination", "group", "measure", "reason")
    grown = increments(flows, series, ("publications", "payload_bytes"))
    return TABLE.conform(grown.withColumn("broker", F.col("reporter")))
