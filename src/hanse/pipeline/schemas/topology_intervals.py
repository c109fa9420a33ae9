"""When which federator and which link was up."""

from hanse.pipeline.schemas.table import Table, maybe, moment, text

TABLE = Table(
    "gold_topology_intervals",
    "One time that a federator or a link was up.",
    (
        text("element", "federator or link"),
        text("federator", "the federator, or the smaller end of the link"),
        maybe(text("neighbour", "the other end of the link")),
        moment("up_at", "since when"),
        maybe(moment("down_at", "until when; missing while it lasts")),
        maybe(text("down_reason", "why it went down")),
    ),
)
