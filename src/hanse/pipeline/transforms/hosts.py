"""Host of each federator, and therefore its clock, from health checks and resource samples."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def hosts(health: DataFrame, resources: DataFrame) -> DataFrame:
    """Return one row per federator: `federator`, and the `host` reported last; failed checks report no host."""
    answered = health.where("received_at is not null")
    said = (
        resources.where("role = 'federator'")
        .select(F.col("reporter").alias("federator"), "host", "at")
        .unionByName(health.select(F.col("reporter").alias("federator"), "host", F.col("sent_at").alias("at")))
        .unionByName(
            answered.select(
                F.col("target").alias("federator"), F.col("target_host").alias("host"), F.col("sent_at").alias("at")
            )
        )
    )
    return said.groupBy("federator").agg(F.max_by("host", "at").alias("host"))
