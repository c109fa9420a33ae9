"""Intervals in which federators and links were up."""

from hanse.pipeline.schemas.table import Table, maybe, moment, text

TABLE = Table(
    "gold_topology_intervals",
    "One interval in which a federator or a link was up.",
    (
        text("element", "federator or link"),
        text("federator", "the federator, or the smaller end of the link"),
        maybe(text("neighbour", "the other end of the link")),
        moment("up_at", "start of the interval"),
        maybe(moment("down_at", "end of the interval; missing while it lasts")),
        maybe(text("down_reason", "reason for going down")),
    ),
)
