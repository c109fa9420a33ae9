"""Traffic between publishing and subscribing brokers."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, text

TABLE = Table(
    "gold_traffic_matrix",
    "Publications of one broker that another delivered, for one group in one window.",
    (
        WINDOW_START,
        text("origin", "the publishing broker"),
        text("destination", "the subscribing broker"),
        text("group", "the group"),
        count("publications", "publications delivered"),
        count("payload_bytes", "their payload bytes"),
    ),
)
