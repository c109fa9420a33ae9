"""Which federator should anchor which group."""

from hanse.pipeline.schemas.table import Column, Table, count, maybe, number, text

TABLE = Table(
    "gold_advice",
    "One group's best core on the overlay as it is, by the traffic so far.",
    (
        text("group", "the group"),
        maybe(text("core", "its core now; missing if none was reported")),
        text("advised_core", "the core with the fewest link crossings"),
        count("publications", "publications of the group, over all origins"),
        maybe(count("crossings", "link crossings with the core now; missing if it is not on the overlay")),
        count("advised_crossings", "link crossings with the advised core"),
        maybe(number("saving_share", "crossings saved by the move; missing if today's are not known")),
        Column("is_worth_moving", "boolean", "whether the saving and the traffic are above the thresholds"),
    ),
)
