"""Memberships: when a broker had subscribers for a group."""

from hanse.pipeline.schemas.table import Table, maybe, moment, text

TABLE = Table(
    "silver_memberships",
    "One uninterrupted membership of a broker in a group.",
    (
        text("group", "the group"),
        text("federator", "the broker with subscribers"),
        moment("joined_at", "start of the membership"),
        maybe(moment("left_at", "end of the membership; missing while it lasts")),
    ),
)
