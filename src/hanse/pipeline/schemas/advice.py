"""Advice on the best core of each group."""

from hanse.pipeline.schemas.table import Column, Table, count, maybe, number, text

TABLE = Table(
    "gold_advice",
    "The best core of one group, for the current overlay and the traffic so far.",
    (
        text("group", "the group"),
        maybe(text("core", "its current core; missing if none was reported")),
        text("advised_core", "the core with the fewest link crossings"),
        count("publications", "publications of the group, over all origins"),
        maybe(count("crossings", "link crossings with the current core; missing if it is not on the overlay")),
        count("advised_crossings", "link crossings with the advised core"),
        maybe(
            number("saving_share", "share of crossings that the move saves; missing if the current ones are unknown")
        ),
        Column("is_worth_moving", "boolean", "true if the saving and the traffic are above the thresholds"),
    ),
)
