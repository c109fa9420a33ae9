"""Publications and bytes per broker, group and measure."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, number, text

TABLE = Table(
    "gold_throughput",
    "The counts of one broker's federator for one group in one window.",
    (
        WINDOW_START,
        text("broker", "the broker"),
        text("group", "the group"),
        text("measure", "published, forwarded, delivered, duplicate or dropped"),
        count("publications", "publications"),
        count("payload_bytes", "their payload bytes"),
        number("publications_per_s", "publications per second over the window"),
        number("payload_bytes_per_s", "payload bytes per second over the window"),
    ),
)
