"""Dropped publications by reason."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, text

TABLE = Table(
    "gold_drops",
    "Publications that one federator dropped for one reason in one window.",
    (
        WINDOW_START,
        text("broker", "the broker whose federator dropped them"),
        text("origin", "the publishing broker"),
        text("group", "the group"),
        text("reason", "reason for the drop"),
        count("publications", "publications dropped"),
    ),
)
