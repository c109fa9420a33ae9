"""Copies: those that were held back, and those that reached a broker twice."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, text

TABLE = Table(
    "gold_duplicates",
    "One group's copies at one broker in one window.",
    (
        WINDOW_START,
        text("broker", "the broker"),
        text("group", "the group"),
        count("suppressed", "second copies that the federator dropped, the price of redundancy (counted)"),
        count("sampled", "sampled deliveries"),
        count("delivered_twice", "of the sampled, those that the broker acknowledged more than once"),
    ),
)
