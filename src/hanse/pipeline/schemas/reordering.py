"""Deliveries out of the order in which they were published."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, text

TABLE = Table(
    "gold_reordering",
    "Sampled deliveries from one broker to another in one group and window.",
    (
        WINDOW_START,
        text("origin", "the publishing broker"),
        text("destination", "the delivering broker"),
        text("group", "the group"),
        count("sampled", "sampled deliveries"),
        count("reordered", "deliveries after a later message of the same origin, epoch and topic"),
        count("depth_max", "the largest distance in sequence numbers to the later message"),
    ),
)
