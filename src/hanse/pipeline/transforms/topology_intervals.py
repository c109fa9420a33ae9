"""Intervals in which federators and links were up, from topology events.

A link goes down with its own event, or when either of its federators goes down or leaves: a federator that was killed
does not report on its links.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.topology_intervals import TABLE
from hanse.pipeline.transforms.intervals import intervals

UP = ("join", "federator_up", "link_up")


def topology_intervals(events: DataFrame) -> DataFrame:
    """Compute `gold_topology_intervals` from `silver_topology`."""
    is_link = F.col("event").isin("link_up", "link_down")
    links = events.where(is_link & F.col("neighbour").isNotNull()).select(
        F.least("federator", "neighbour").alias("federator"),
        F.greatest("federator", "neighbour").alias("neighbour"),
        "at",
        _is_up().alias("is_on"),
        "reason",
    )
    federators = events.where(~is_link).select("federator", "at", _is_up().alias("is_on"), "reason")
    falls = federators.where(~F.col("is_on")).withColumnRenamed("federator", "fallen")
    known = links.select("federator", "neighbour").distinct()
    is_end = (F.col("fallen") == F.col("federator")) | (F.col("fallen") == F.col("neighbour"))
    cut = known.join(falls, is_end).select("federator", "neighbour", "at", "is_on", "reason")
    up_links = intervals(links.unionByName(cut), ("federator", "neighbour")).withColumn("element", F.lit("link"))
    up_federators = intervals(federators, ("federator",)).withColumn("element", F.lit("federator"))
    both = up_links.unionByName(up_federators, allowMissingColumns=True)
    names = {"started_at": "up_at", "ended_at": "down_at", "end_reason": "down_reason"}
    return TABLE.conform(both.withColumnsRenamed(names))


def _is_up() -> Column:
    return F.col("event").isin(*UP)
