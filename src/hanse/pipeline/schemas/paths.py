"""Sampled messages with the routes that they took."""

from hanse.pipeline.schemas.table import Column, Table, count, maybe, moment, text

TABLE = Table(
    "silver_paths",
    "A sampled message at one broker that delivered it, with its route and times.",
    (
        text("origin", "the publishing broker"),
        count("epoch", "the origin's boot epoch"),
        count("seq", "number of the message within the epoch"),
        text("group", "the group"),
        text("destination", "the delivering broker"),
        Column("path", "strings", "the federators on the route, from the origin to the destination"),
        count("hops", "links crossed"),
        Column("is_complete", "boolean", "true if every hop of the route was reported, back to the origin"),
        maybe(moment("published_at", "when the federator received it from the origin's broker, by the origin's clock")),
        moment("collected_at", "when the collector received the delivery's report"),
        moment("delivered_at", "when the destination's broker acknowledged it, by the destination's clock"),
        count("copies", "deliveries of this message at this destination; more than 1 means a duplicate"),
    ),
)
