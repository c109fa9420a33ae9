"""When which broker had subscribers for which group."""

from hanse.pipeline.schemas.table import Table, maybe, moment, text

TABLE = Table(
    "silver_memberships",
    "One stay of a broker in a group.",
    (
        text("group", "the group"),
        text("federator", "the broker with subscribers"),
        moment("joined_at", "since when"),
        maybe(moment("left_at", "until when; missing while it lasts")),
    ),
)
