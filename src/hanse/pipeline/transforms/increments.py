"""Increments between two reports, from cumulative counts.

Rules of this module:

- A series is one count of one reporter since one `started_at`. Between two reports of a series the increment is the
  difference. A restart has a later `started_at` and therefore starts a new series, which counts from zero.
- The first report of a series counts from zero, unless the series is older than our records of its reporter. Then
  earlier counts belong to no window, and the first report only marks where counting begins.
- Reports are sorted by the reporter's own clock. A repeated report adds nothing, and neither does one that falls behind
  a later report because a clock was set back: an increment is only the amount above all earlier counts.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

# A collector that starts with the federation receives the first report shortly after the counts began. A larger value
# takes older history for traffic of the first window; a smaller one loses the first counts after a slow start.
STARTUP_GRACE_S = 30


def increments(counts: DataFrame, series: Sequence[str], values: Sequence[str]) -> DataFrame:
    """Replace `values` in `counts` by their increments, and add `since`, the start of each increment.

    `counts` has the columns `reporter`, `at` and `started_at`. `series` names the columns that, with `reporter`,
    identify a count. Rows that only mark where counting begins are left out.
    """
    keys = ["reporter", *series, "started_at"]
    # Of several reports with the same time, keep the largest, because counts only grow.
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
        # Null for the first report only: within a series the running maximum never falls.
        *[F.coalesce(F.counter_diff(name).over(in_order), F.col(name)).alias(name) for name in values],
    )
    is_first = F.col("_previous_at").isNull()
    return (
        grown.where(~is_first | (F.col("started_at") >= F.col("_known_from")))
        .withColumn("since", F.coalesce("_previous_at", F.least("started_at", "at")))
        .drop("_previous_at", "_known_from")
    )
