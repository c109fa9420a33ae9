"""The overlay graph after every change."""

from hanse.pipeline.schemas.table import Column, Table, count, moment, number

TABLE = Table(
    "gold_topology_snapshots",
    "The overlay after one change.",
    (
        moment("at", "time of the change"),
        count("federators", "federators that are up"),
        count("links", "links that are up"),
        count("components", "parts that cannot reach each other"),
        count("largest_component", "federators in the largest part"),
        count("diameter", "longest shortest path within the largest part, in links"),
        Column("is_diameter_exact", "boolean", "false on large overlays, where it is a lower bound"),
        count("degree_min", "fewest links of a federator"),
        number("degree_mean", "mean links of a federator"),
        count("degree_max", "most links of a federator"),
        Column("articulation_points", "strings", "federators whose loss would split the overlay"),
        Column("isolated", "strings", "federators without a link"),
    ),
)
