"""Cumulative counts to what was added between two reports.

Rules of this module:

- A series is one reporter's one count since one `started_at`. Between two reports of a series the increment is the
  difference. A restart has a later `started_at`, and so is a series of its own, which counts from zero.
- The first report of a series counts from zero, unless the series is older than our records of its reporter: then
  what it held before we listened belongs to no window, and the report is only where counting begins.
- Reports are sorted by the reporter's own clock. A report that came twice, or that a clock set back has put behind
  a later one, adds nothing: an increment is what exceeds all that was counted before.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

# A collector that starts with the federation hears the first report a little after the counts began. Larger takes
# history from before the records for traffic of the first window; smaller loses the first counts of a slow start.
STARTUP_GRACE_S = 30


def increments(counts: DataFrame, series: Sequence[str], values: Sequence[str]) -> DataFrame:
    """`counts` with each of `values` turned into its increment, and `since`, the moment from which it grew.

    `counts` has `reporter`, `at` and `started_at`; `series` names the columns that, with `reporter`, tell one count
    from another. Rows from which counting only begins are left out.
    """
    keys = ["reporter", *series, "started_at"]
    # Of equal moments only one report is kept: the larger, for counts only grow.
    distinct = counts.groupBy(*keys, "at").agg(
        *[F.max_by(name, values[0]).alias(name) for name in counts.columns if name not in {*keys, "at"}]
    )
    in_order = Window.partitionBy(*keys).orderBy("at")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    known_from = F.min("at").over(Window.partitionBy("reporter")) - F.make_dt_interval(secs=F.lit(STARTUP_GRACE_S))
    counted = distinct.withColumn("_known_from", known_from).withColumns(
        {name: F.max(name).over(so_far) for name in values}
    )
    grown = counted.select(
        *[name for name in counted.columns if name not in values],
        F.lag("at").over(in_order).alias("_previous_at"),
        # Null for the first report only: within a series the largest so far never falls.
        *[F.coalesce(F.counter_diff(name).over(in_order), F.col(name)).alias(name) for name in values],
    )
    is_first = F.col("_previous_at").isNull()
    return (
        grown.where(~is_first | (F.col("started_at") >= F.col("_known_from")))
        .withColumn("since", F.coalesce("_previous_at", F.least("started_at", "at")))
        .drop("_previous_at", "_known_from")
    )
