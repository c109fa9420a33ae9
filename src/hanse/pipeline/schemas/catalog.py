"""All tables by name, in the order in which the data passes through them."""

from hanse.pipeline.schemas import (
    advice,
    anomalies,
    broker_load,
    clock_skew,
    control_overhead,
    delivery,
    drops,
    duplicates,
    flow_increments,
    latencies,
    latency_by_group,
    latency_by_path,
    latency_sketches,
    link_increments,
    memberships,
    messages,
    paths,
    quarantine,
    reordering,
    silver,
    throughput,
    topology_intervals,
    topology_snapshots,
    traffic_matrix,
)
from hanse.pipeline.schemas.table import Table

SILVER: dict[str, Table] = {
    table.name: table
    for table in (
        *silver.TABLES.values(),
        messages.TABLE,
        quarantine.TABLE,
        paths.TABLE,
        latencies.TABLE,
        flow_increments.TABLE,
        link_increments.TABLE,
        memberships.TABLE,
    )
}

GOLD: dict[str, Table] = {
    module.TABLE.name: module.TABLE
    for module in (
        latency_sketches,
        latency_by_path,
        latency_by_group,
        throughput,
        traffic_matrix,
        delivery,
        drops,
        duplicates,
        reordering,
        control_overhead,
        topology_intervals,
        topology_snapshots,
        broker_load,
        anomalies,
        clock_skew,
        advice,
    )
}

TABLES = SILVER | GOLD
