"""Cumulative counts to what was added between two reports.

Rules of this module:

- A series is one reporter's one count. Between two reports of a series the increment is the difference; when the
  count was set to zero in between (a restart: `started_at` is later, or the count fell) it is the count itself.
- The first report of a series counts from zero too, unless the series is older than our records of its reporter:
  then what it held before we listened belongs to no window, and the report is only where counting begins.
- Reports are sorted by the reporter's own clock. A report that came twice adds nothing the second time.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

# A collector that starts with the federation hears the first report a little after the counts began. Larger takes
# history from before the records for traffic of the first window; smaller loses the first counts of a slow start.
STARTUP_GRACE_S = 30


def increments(counts: DataFrame, series: Sequence[str], values: Sequence[str]) -> DataFrame:
    """`counts` with each of `values` turned into its increment, and `since`, the moment from which it grew.

    `counts` has `reporter`, `at` and `started_at`; `series` names the columns that, with `reporter`, tell one count
    from another. Rows from which counting only begins are left out.
    """
    keys = ["reporter", *series]
    # Of equal moments only one report is kept: the larger, for counts only grow.
    distinct = counts.groupBy(*keys, "at").agg(
        *[F.max_by(name, values[0]).alias(name) for name in counts.columns if name not in {*keys, "at"}]
    )
    in_order = Window.partitionBy(*keys).orderBy("at")
    of_reporter = Window.partitionBy("reporter")
    known_from = F.min("at").over(of_reporter) - F.make_dt_interval(secs=F.lit(STARTUP_GRACE_S))
    before = distinct.select(
        "*",
        F.lag("at").over(in_order).alias("_previous_at"),
        F.lag("started_at").over(in_order).alias("_previous_started_at"),
        (F.col("started_at") >= known_from).alias("_is_whole"),
        *[F.counter_diff(name, "started_at").over(in_order).alias(f"_{name}_diff") for name in values],
    )
    is_first = F.col("_previous_at").isNull()
    is_reset = F.col("started_at") > F.col("_previous_started_at")
    since = F.when(is_first | is_reset, F.least("started_at", "at")).otherwise(F.col("_previous_at"))
    return (
        before.where(~is_first | F.col("_is_whole"))
        .withColumns({name: _increment(name) for name in values})
        .withColumn("since", since)
        .drop("_previous_at", "_previous_started_at", "_is_whole", *[f"_{name}_diff" for name in values])
    )


def _increment(name: str) -> Column:
    return F.coalesce(F.col(f"_{name}_diff"), F.col(name))
