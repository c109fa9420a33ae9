"""Intervals in which something was on, from events that switch it on and off."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812


def intervals(switches: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return one row per interval in which a key was on.

    Its columns are `keys`, `started_at`, `ended_at` (null while it lasts) and `end_reason`. `switches` has `keys`,
    `at`, `is_on` and `reason`. Both ends of a link report a change, and telemetry may be repeated. Events that do not
    change the state are therefore ignored: on, on, off, off is one interval. Off before any on gives no interval. If
    both have the same time, off comes before on.
    """
    in_order = Window.partitionBy(*keys).orderBy("at", "is_on")
    changes = switches.withColumn("_was_on", F.lag("is_on").over(in_order)).where(
        F.coalesce(F.col("is_on") != F.col("_was_on"), F.col("is_on"))
    )
    return (
        changes.withColumn("ended_at", F.lead("at").over(in_order))
        .withColumn("end_reason", F.lead("reason").over(in_order))
        .where("is_on")
        .select(*keys, F.col("at").alias("started_at"), "ended_at", "end_reason")
    )
