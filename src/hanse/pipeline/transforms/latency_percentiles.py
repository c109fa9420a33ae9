"""Latency percentiles by path and by group, from sketches."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas import latency_by_group as by_group_schema
from hanse.pipeline.schemas import latency_by_path as by_path_schema
from hanse.pipeline.schemas.table import Table
from hanse.pipeline.transforms.latency_sketches import SKETCH_K


def latency_by_path(sketches: DataFrame) -> DataFrame:
    """Compute `gold_latency_by_path` from `gold_latency_sketches`."""
    return _merge(sketches, by_path_schema.TABLE, "window_start", "origin", "destination", "path", "hops")


def latency_by_group(sketches: DataFrame) -> DataFrame:
    """Compute `gold_latency_by_group` from `gold_latency_sketches`."""
    return _merge(sketches, by_group_schema.TABLE, "window_start", "group")


def _merge(sketches: DataFrame, table: Table, *keys: str) -> DataFrame:
    merged = sketches.groupBy(*keys).agg(
        F.sum("deliveries").alias("deliveries"),
        F.sum("uncorrected").alias("uncorrected"),
        F.kll_merge_agg_double("latency_sketch", SKETCH_K).alias("latency_sketch"),
        F.max("latency_ms_max").alias("latency_ms_max"),
        F.max("skew_error_ms_max").alias("skew_error_ms_max"),
    )
    for percent in (50, 95, 99):
        rank = F.kll_sketch_get_quantile_double("latency_sketch", F.lit(percent / 100))
        merged = merged.withColumn(f"latency_ms_p{percent}", rank)
    return table.conform(merged)
