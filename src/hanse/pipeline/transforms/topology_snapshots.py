"""Shape of the overlay after every change (degree, diameter, components, weak points), from topology intervals."""

import networkx as nx
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas.topology_snapshots import TABLE

# Changes within this time form one snapshot: when a federator fails, all its links fail, each at its own time.
MERGE_S = 1

# The exact diameter costs nodes x links; at 400 nodes and degree 5 that is under a second. Larger overlays get a bound
# from two sweeps.
EXACT_NODES_MAX = 400


def topology_snapshots(intervals: DataFrame, merge_s: int = MERGE_S) -> DataFrame:
    """Compute `gold_topology_snapshots` from `gold_topology_intervals`, at the end of each second with a change."""
    moments = (
        intervals.select(F.explode(F.array("up_at", "down_at")).alias("at"))
        .where("at is not null")
        .select(F.timestamp_seconds((F.floor(F.unix_seconds("at") / merge_s) + 1) * merge_s).alias("at"))
        .distinct()
    )
    is_up = (F.col("up_at") < F.col("at")) & (F.col("down_at").isNull() | (F.col("down_at") >= F.col("at")))
    present = moments.join(F.broadcast(intervals), is_up, "left").select("at", "element", "federator", "neighbour")
    return TABLE.conform(present.groupBy("at").applyInArrow(_measure, TABLE.struct))


def _measure(present: pa.Table) -> pa.Table:
    graph = nx.Graph()
    for row in present.to_pylist():
        if row["neighbour"] is not None:
            graph.add_edge(row["federator"], row["neighbour"])
        elif row["federator"] is not None:
            graph.add_node(row["federator"])
    components = sorted(nx.connected_components(graph), key=lambda part: (-len(part), min(part)))
    largest = graph.subgraph(components[0]) if components else graph
    is_exact = len(largest) <= EXACT_NODES_MAX
    degrees = [degree for _, degree in graph.degree()]
    row = {
        "at": present.column("at")[0].value,
        "federators": len(graph),
        "links": graph.number_of_edges(),
        "components": len(components),
        "largest_component": len(largest),
        "diameter": _diameter(largest, is_exact=is_exact),
        "is_diameter_exact": is_exact,
        "degree_min": min(degrees, default=0),
        "degree_mean": sum(degrees) / len(degrees) if degrees else 0.0,
        "degree_max": max(degrees, default=0),
        "articulation_points": sorted(nx.articulation_points(graph)),
        "isolated": sorted(nx.isolates(graph)),
    }
    arrays = [pa.array([row[field.name]], field.type) for field in TABLE.arrow]
    return pa.Table.from_arrays(arrays, schema=TABLE.arrow)


def _diameter(component: nx.Graph, *, is_exact: bool) -> int:
    if len(component) < 2:
        return 0
    if is_exact:
        return int(nx.diameter(component))
    # From any node to the farthest, and from there to the farthest: a lower bound, and exact on a tree.
    far, _ = max(nx.single_source_shortest_path_length(component, min(component)).items(), key=lambda item: item[1])
    return int(max(nx.single_source_shortest_path_length(component, far).values()))
