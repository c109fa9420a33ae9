"""Sampled messages with the way they took."""

from hanse.pipeline.schemas.table import Column, Table, count, maybe, moment, text

TABLE = Table(
    "silver_paths",
    "A sampled message at one broker that delivered it: the way it took and when.",
    (
        text("origin", "the publishing broker"),
        count("epoch", "the origin's boot epoch"),
        count("seq", "number of the message within the epoch"),
        text("group", "the group"),
        text("destination", "the delivering broker"),
        Column("path", "strings", "the federators on the way, from the origin to the destination"),
        count("hops", "links crossed"),
        Column("is_complete", "boolean", "whether every hop of the way was reported, back to the origin"),
        maybe(moment("published_at", "when the origin's broker handed it over, by the origin's clock")),
        moment("collected_at", "when the collector received the delivery's report"),
        moment("delivered_at", "when the destination's broker acknowledged it, by the destination's clock"),
        count("copies", "deliveries of this message at this destination; more than 1 is a duplicate"),
    ),
)
