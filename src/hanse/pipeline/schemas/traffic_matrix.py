"""Who publishes for whom."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, text

TABLE = Table(
    "gold_traffic_matrix",
    "What one broker delivered from another for one group in one window.",
    (
        WINDOW_START,
        text("origin", "the publishing broker"),
        text("destination", "the subscribing broker"),
        text("group", "the group"),
        count("publications", "publications delivered"),
        count("payload_bytes", "their payload bytes"),
    ),
)
