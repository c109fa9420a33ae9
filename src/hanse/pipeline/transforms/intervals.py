"""Events that switch something on and off, to the intervals in which it was on."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812


def intervals(switches: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row for each time that a key was on.

    Its columns are `keys`, `started_at`, `ended_at` (null while it lasts) and `end_reason`. `switches` has `keys`,
    `at`, `is_on` and `reason`. Both ends of a link tell of it, and telemetry may come twice: what does not change
    the state is left out, so on, on, off, off is one interval. Off before any on is no interval. At one and the
    same moment, off goes before on.
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
