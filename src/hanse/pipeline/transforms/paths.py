"""Paths of sampled messages, from hops and deliveries.

Every federator on the route reports its own hop: the neighbour that the message came from, and the number of links
crossed so far. The path to a destination is built backwards, over the hops in descending order of distance. At each
step, the federator at the head of the path has reported its predecessor. If a hop was not reported, the path is
incomplete; the delivery itself is kept.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.paths import TABLE

MESSAGE = ("origin", "epoch", "seq")


def paths(hops: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Compute `silver_paths` from `silver_hop` and `silver_delivery`."""
    # The distance comes first, so sort_array sorts by it.
    hop = F.struct("hop", "reporter", "previous", "received_at").alias("hop")
    # The time comes first, so the first delivery at a destination sorts first.
    delivery = F.struct("delivered_at", "reporter", "group", "hops", "published_at").alias("delivery")
    first_copies = hops.where(~F.col("is_duplicate")).select(*MESSAGE, hop)
    # One shuffle for both, instead of one each and a join. Sets remove rows of a telemetry batch that was read twice:
    # two rows that are equal in every column, to the microsecond, are the same row.
    both = first_copies.unionByName(deliveries.select(*MESSAGE, delivery, "collected_at"), allowMissingColumns=True)
    messages = both.groupBy(*MESSAGE).agg(
        F.sort_array(F.collect_set("hop"), asc=False).alias("hops_back"),
        F.sort_array(F.collect_set("delivery")).alias("deliveries"),
        F.max("collected_at").alias("collected_at"),
    )
    first = messages.select(
        *MESSAGE,
        "hops_back",
        "deliveries",
        "collected_at",
        F.posexplode("deliveries").alias("position", "delivery"),
    ).where(~F.exists(F.slice("deliveries", 1, F.col("position")), _is_at(F.col("delivery.reporter"))))
    found = first.select(
        *MESSAGE,
        "collected_at",
        F.col("delivery.group").alias("group"),
        F.col("delivery.reporter").alias("destination"),
        _path(F.col("hops_back"), F.col("delivery.reporter")).alias("path"),
        F.col("delivery.hops").alias("hops"),
        F.coalesce("delivery.published_at", _published_at(F.col("hops_back"))).alias("published_at"),
        F.col("delivery.delivered_at").alias("delivered_at"),
        F.size(F.filter("deliveries", _is_at(F.col("delivery.reporter")))).alias("copies"),
    )
    return TABLE.conform(found.withColumn("is_complete", F.get("path", F.lit(0)) == F.col("origin")))


def _is_at(destination: Column) -> Callable[[Column], Column]:
    return lambda delivery: delivery["reporter"] == destination


def _path(hops_back: Column, destination: Column) -> Column:
    def step(path: Column, hop: Column) -> Column:
        comes_before = (hop["reporter"] == F.get(path, F.lit(0))) & hop["previous"].isNotNull()
        return F.when(comes_before, F.concat(F.array(hop["previous"]), path)).otherwise(path)

    return F.aggregate(hops_back, F.array(destination), step)


def _published_at(hops_back: Column) -> Column:
    at_origin = F.filter(hops_back, lambda hop: hop["previous"].isNull())
    return F.get(at_origin, F.lit(0))["received_at"]
