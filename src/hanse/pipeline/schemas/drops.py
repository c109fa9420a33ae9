"""What was given up, by reason."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, text

TABLE = Table(
    "gold_drops",
    "Publications that one federator gave up for one reason in one window.",
    (
        WINDOW_START,
        text("broker", "the broker whose federator gave them up"),
        text("origin", "the publishing broker"),
        text("group", "the group"),
        text("reason", "why"),
        count("publications", "publications dropped"),
    ),
)
