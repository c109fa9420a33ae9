"""Silver to gold: rebuild every gold table from all of silver.

A full rebuild is necessary because totals, baselines and intervals reach back in time. Each table is replaced in one
step, so a reader sees the rows of one run only. Intermediate results that several tables use (increments, paths,
latencies) are written and read again. This bounds the memory that Spark needs, and the cost of each step shows
separately.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from hanse.errors import LocalError
from hanse.pipeline.advice import AdviceSettings, advice
from hanse.pipeline.jobs.store import Store, Warehouse
from hanse.pipeline.schemas.catalog import GOLD
from hanse.pipeline.transforms import anomalies as anomaly
from hanse.pipeline.transforms.broker_load import broker_load
from hanse.pipeline.transforms.clock_skew import clock_skew
from hanse.pipeline.transforms.control_overhead import control_overhead
from hanse.pipeline.transforms.delivery import SETTLE_S, delivery
from hanse.pipeline.transforms.drops import drops
from hanse.pipeline.transforms.duplicates import duplicates
from hanse.pipeline.transforms.flow_increments import flow_increments
from hanse.pipeline.transforms.hosts import hosts
from hanse.pipeline.transforms.latencies import latencies
from hanse.pipeline.transforms.latency_percentiles import latency_by_group, latency_by_path
from hanse.pipeline.transforms.latency_sketches import latency_sketches
from hanse.pipeline.transforms.link_increments import link_increments
from hanse.pipeline.transforms.memberships import memberships
from hanse.pipeline.transforms.paths import paths
from hanse.pipeline.transforms.reordering import reordering
from hanse.pipeline.transforms.throughput import throughput
from hanse.pipeline.transforms.topology_intervals import topology_intervals
from hanse.pipeline.transforms.topology_snapshots import topology_snapshots
from hanse.pipeline.transforms.traffic_matrix import traffic_matrix
from hanse.pipeline.transforms.windows import WINDOW_S

Read = Callable[[str], DataFrame]


@dataclass(frozen=True, slots=True)
class GoldSettings:
    """Settings for building gold."""

    window_s: int = WINDOW_S
    settle_s: int = SETTLE_S  # two announcement intervals of the federation
    advice: AdviceSettings = field(default_factory=AdviceSettings)

    def __post_init__(self) -> None:
        if not 1 <= self.window_s <= 86_400:
            raise LocalError(f"A window of {self.window_s} s; it must be 1 s to a day, 60 s by default.")
        if self.settle_s < 0:
            raise LocalError(f"settle_s is {self.settle_s}; it must be 0 or more: two announcement intervals.")


def run_gold(store: Store, settings: GoldSettings | None = None, tell: Callable[[str], None] = lambda _: None) -> None:
    """Rebuild all gold tables, and the silver tables that they are built from.

    Args:
        store: The tables.
        settings: Settings for the tables; the defaults if not given.
        tell: Called with the name of each table before it is written.
    """
    for name, make in steps(settings or GoldSettings()):
        tell(name)
        store.replace(name, make(store.read))


def refresh_gold(spark: SparkSession, warehouse: Path, settings: GoldSettings | None = None) -> str:
    """Run the job on the tables in a directory, for the command line; return a sentence for the operator."""
    store = Warehouse(spark, warehouse)
    run_gold(store, settings)
    rows = sum(store.table(name).rows() for name in GOLD)
    return f"{rows} rows in {len(GOLD)} tables, {store.table('gold_anomalies').rows()} anomalies"


def steps(settings: GoldSettings) -> Iterator[tuple[str, Callable[[Read], DataFrame]]]:
    """Yield each table's name, and a function that builds it from earlier tables, in order."""
    w = settings.window_s
    yield "silver_flow_increments", lambda read: flow_increments(read("silver_flow"))
    yield "silver_link_increments", lambda read: link_increments(read("silver_link"))
    yield "silver_memberships", lambda read: memberships(read("silver_mesh"))
    yield "silver_paths", lambda read: paths(read("silver_hop"), read("silver_delivery"))
    yield "gold_clock_skew", lambda read: clock_skew(read("silver_health"), w)
    yield "silver_latencies", lambda read: latencies(read("silver_paths"), read("gold_clock_skew"), _hosts(read), w)
    yield "gold_latency_sketches", lambda read: latency_sketches(read("silver_latencies"), w)
    yield "gold_latency_by_path", lambda read: latency_by_path(read("gold_latency_sketches"))
    yield "gold_latency_by_group", lambda read: latency_by_group(read("gold_latency_sketches"))
    yield "gold_throughput", lambda read: throughput(read("silver_flow_increments"), w)
    yield "gold_traffic_matrix", lambda read: traffic_matrix(read("silver_flow_increments"), w)
    yield (
        "gold_delivery",
        lambda read: delivery(read("silver_flow_increments"), read("silver_memberships"), w, settings.settle_s),
    )
    yield "gold_drops", lambda read: drops(read("silver_flow_increments"), w)
    yield "gold_duplicates", lambda read: duplicates(read("silver_flow_increments"), read("silver_paths"), w)
    yield "gold_reordering", lambda read: reordering(read("silver_delivery"), w)
    yield "gold_control_overhead", lambda read: control_overhead(read("silver_link_increments"), w)
    yield "gold_topology_intervals", lambda read: topology_intervals(read("silver_topology"))
    yield "gold_topology_snapshots", lambda read: topology_snapshots(read("gold_topology_intervals"))
    yield "gold_broker_load", lambda read: broker_load(read("silver_resource"), read("silver_flow_increments"), w)
    yield "gold_anomalies", lambda read: anomaly.anomalies(_series(read, w), w)
    yield (
        "gold_advice",
        lambda read: advice(
            read("gold_traffic_matrix"), read("gold_topology_intervals"), read("silver_mesh"), settings.advice
        ),
    )


def _hosts(read: Read) -> DataFrame:
    return hosts(read("silver_health"), read("silver_resource"))


def _series(read: Read, window_s: int) -> DataFrame:
    return anomaly.series(
        read("gold_broker_load"),
        read("gold_throughput"),
        read("silver_health"),
        read("gold_control_overhead"),
        window_s,
    )
