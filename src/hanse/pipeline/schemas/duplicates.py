"""Duplicates: those that were suppressed, and those that reached a broker."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, text

TABLE = Table(
    "gold_duplicates",
    "One group's duplicates at one broker in one window.",
    (
        WINDOW_START,
        text("broker", "the broker"),
        text("group", "the group"),
        count("suppressed", "duplicates that the federator dropped, the cost of redundancy (counted)"),
        count("sampled", "sampled deliveries"),
        count("delivered_twice", "sampled deliveries that the broker acknowledged more than once"),
    ),
)
