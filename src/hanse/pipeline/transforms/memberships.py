"""Memberships, from mesh events: when a broker had subscribers for a group."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.memberships import TABLE
from hanse.pipeline.transforms.intervals import intervals


def memberships(mesh: DataFrame) -> DataFrame:
    """Compute `silver_memberships` from `silver_mesh`."""
    switches = mesh.where(F.col("event").isin("member_joined", "member_left")).select(
        "group",
        "federator",
        "at",
        (F.col("event") == "member_joined").alias("is_on"),
        F.lit(None).cast("string").alias("reason"),
    )
    stays = intervals(switches, ("group", "federator"))
    return TABLE.conform(stays.withColumnsRenamed({"started_at": "joined_at", "ended_at": "left_at"}))
