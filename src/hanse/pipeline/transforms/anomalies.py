"""Detection of brokers and links that deviate from their own baseline.

Each measure of each broker and link is one series, from its first report to the last closed window. In a window without
a report, counted measures are zero, so that silence shows. The baseline is the median of up to `BASELINE_WINDOWS`
preceding windows. The spread is their median absolute deviation; outliers hardly affect either. The spread has a floor
relative to the baseline, so that the first small step of a constant series is not an anomaly.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.anomalies import TABLE
from hanse.pipeline.transforms.windows import WINDOW_S, elapsed_ms, window_start

# Half an hour of minutes: long enough to outlast one bad minute, short enough to follow the day.
BASELINE_WINDOWS = 30
# A baseline needs at least this many windows.
BASELINE_WINDOWS_MIN = 5
# In standard deviations of a normal distribution; 6 gives about two false anomalies in a thousand million.
SCORE_MIN = 6.0
# The spread is at least this share of the baseline: with SCORE_MIN 6, a change below 60 % is never an anomaly.
SPREAD_FLOOR_SHARE = 0.1
# The spread is also at least this, in the measure's own unit.
SPREAD_FLOORS = {
    "reports": 0.1,
    "cpu_share": 0.02,
    "rss_mb": 10.0,
    "published_per_s": 0.5,
    "delivered_per_s": 0.5,
    "round_trip_ms": 1.0,
    "failed_checks": 0.3,
    "data_kb_per_s": 0.5,
    "dropped_frames": 0.5,
}
# Measures that are zero in a silent window, because they are counts. Levels that nobody measured (CPU, memory, round
# trip) are unknown.
ZERO_WHEN_SILENT = (
    "reports",
    "published_per_s",
    "delivered_per_s",
    "failed_checks",
    "data_kb_per_s",
    "dropped_frames",
)
# Factor from a median absolute deviation to the standard deviation of a normal distribution.
MAD_SCALE = 1.4826


def series(
    load: DataFrame,
    throughput: DataFrame,
    health: DataFrame,
    overhead: DataFrame,
    window_s: int = WINDOW_S,
) -> DataFrame:
    """Return all measures as `element, name, measure, window_start, value`, for windows with a report."""
    federators = load.where("role = 'federator'")
    rates = throughput.where(F.col("measure").isin("published", "delivered"))
    checks = health.withColumn("window_start", window_start(F.col("sent_at"), window_s))
    # Only the wire's part of the round trip: the link does not cause the target's processing time.
    round_trip = elapsed_ms(F.col("sent_at"), F.col("returned_at")) - elapsed_ms(
        F.col("received_at"), F.col("answered_at")
    )
    checked = checks.groupBy("window_start", F.col("target").alias("name")).agg(
        F.median(round_trip).alias("round_trip_ms"), F.count_if(~F.col("is_ok")).alias("failed_checks")
    )
    links = overhead.withColumn("name", F.concat_ws(">", "broker", "neighbour"))
    parts = [
        _measure(federators, "broker", F.col("broker"), F.lit("reports"), F.col("samples")),
        _measure(federators, "broker", F.col("broker"), F.lit("cpu_share"), F.col("cpu_share")),
        _measure(federators, "broker", F.col("broker"), F.lit("rss_mb"), F.col("rss_bytes_max") / 1e6),
        _measure(
            rates.groupBy("window_start", "broker", "measure").agg(F.sum("publications_per_s").alias("rate")),
            "broker",
            F.col("broker"),
            F.concat(F.col("measure"), F.lit("_per_s")),
            F.col("rate"),
        ),
        _measure(checked, "broker", F.col("name"), F.lit("round_trip_ms"), F.col("round_trip_ms")),
        _measure(checked, "broker", F.col("name"), F.lit("failed_checks"), F.col("failed_checks")),
        _measure(links, "link", F.col("name"), F.lit("data_kb_per_s"), F.col("data_bytes") / 1e3 / window_s),
        _measure(links, "link", F.col("name"), F.lit("dropped_frames"), F.col("dropped_frames")),
    ]
    together = parts[0]
    for part in parts[1:]:
        together = together.unionByName(part)
    return together.where("value is not null")


def _measure(frame: DataFrame, element: str, name: Column, measure: Column, value: Column) -> DataFrame:
    return frame.select(
        F.lit(element).alias("element"),
        name.alias("name"),
        measure.alias("measure"),
        "window_start",
        value.cast("double").alias("value"),
    )


def anomalies(series: DataFrame, window_s: int = WINDOW_S) -> DataFrame:
    """Compute `gold_anomalies` from `series`; the very last window is still open and is not evaluated."""
    one = ("element", "name", "measure")
    in_order = Window.partitionBy(*one).orderBy("window_start")
    baseline = F.sort_array(F.collect_list("value").over(in_order.rowsBetween(-BASELINE_WINDOWS, -1)))
    dense = _dense(series, window_s).withColumn("_before", baseline)
    judged = dense.where(F.size("_before") >= BASELINE_WINDOWS_MIN).withColumn("baseline", _median(F.col("_before")))
    # A lambda sees only columns of its own row, so the deviations are computed in a second step.
    deviations = F.sort_array(F.transform("_before", lambda value: F.abs(value - F.col("baseline"))))
    floors = F.create_map(*[F.lit(part) for pair in SPREAD_FLOORS.items() for part in pair])
    spread = F.greatest(
        _median(deviations) * MAD_SCALE,
        F.abs(F.col("baseline")) * SPREAD_FLOOR_SHARE,
        F.coalesce(F.try_element_at(floors, F.col("measure")), F.lit(0.1)),
    )
    scored = judged.withColumn("spread", spread).withColumn(
        "score", (F.col("value") - F.col("baseline")) / F.col("spread")
    )
    return TABLE.conform(
        scored.where(F.abs("score") >= SCORE_MIN).withColumn(
            "direction", F.when(F.col("score") > 0, "high").otherwise("low")
        )
    )


def _dense(series: DataFrame, window_s: int) -> DataFrame:
    one = ("element", "name", "measure")
    last = series.agg(F.max("window_start").alias("_last"))
    step = F.make_dt_interval(secs=F.lit(window_s))
    spans = series.groupBy(*one).agg(F.min("window_start").alias("_first")).crossJoin(F.broadcast(last))
    windows = spans.where(F.col("_first") < F.col("_last")).select(
        *one, F.explode(F.sequence(F.col("_first"), F.col("_last") - step, step)).alias("window_start")
    )
    filled = windows.join(series, [*one, "window_start"], "left")
    silent = F.when(F.col("measure").isin(*ZERO_WHEN_SILENT), 0.0)
    return filled.withColumn("value", F.coalesce(F.col("value"), silent)).where("value is not null")


def _median(ordered: Column) -> Column:
    size = F.size(ordered)
    low, high = F.floor((size - 1) / 2).cast("int"), F.floor(size / 2).cast("int")
    return (F.get(ordered, low) + F.get(ordered, high)) / 2
