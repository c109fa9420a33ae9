"""Load of the processes beside each broker, from resource samples and flow increments."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.broker_load import TABLE
from hanse.pipeline.transforms.increments import increments
from hanse.pipeline.transforms.windows import WINDOW_S, window_start


def broker_load(resources: DataFrame, flow_increments: DataFrame, window_s: int = WINDOW_S) -> DataFrame:
    """Compute `gold_broker_load` from `silver_resource` and `silver_flow_increments`."""
    keys = ("window_start", "broker", "role", "host")
    series = ("role", "host")
    levels = resources.select(
        window_start(F.col("at"), window_s).alias("window_start"),
        F.col("reporter").alias("broker"),
        *series,
        "rss_bytes",
    )
    memory = levels.groupBy(*keys).agg(F.count("*").alias("samples"), F.max("rss_bytes").alias("rss_bytes_max"))
    used = increments(resources.drop("collected_at", "rss_bytes"), series, ("cpu_us",)).select(
        window_start(F.col("at"), window_s).alias("window_start"),
        F.col("reporter").alias("broker"),
        *series,
        "cpu_us",
        (F.unix_micros("at") - F.unix_micros("since")).alias("elapsed_us"),
    )
    cpu = used.groupBy(*keys).agg(F.try_divide(F.sum("cpu_us"), F.sum("elapsed_us")).alias("cpu_share"))
    handled = (
        flow_increments.where(F.col("measure").isin("published", "forwarded", "delivered"))
        .groupBy(window_start(F.col("at"), window_s).alias("window_start"), "broker")
        .agg(F.sum("publications").alias("handled"))
    )
    joined = memory.join(cpu, list(keys), "left").join(handled, ["window_start", "broker"], "left")
    # Only the federator handles publications; counting them for its broker or manager too would double them.
    publications = F.when(F.col("role") == "federator", F.coalesce("handled", F.lit(0))).otherwise(0)
    return TABLE.conform(joined.withColumn("publications", publications))
