"""Increments of the flow counts from one report to the next."""

from hanse.pipeline.schemas.table import Table, count, maybe, moment, text

TABLE = Table(
    "silver_flow_increments",
    "The increment of one count between two reports.",
    (
        text("broker", "the broker whose federator counted"),
        text("origin", "the publishing broker"),
        maybe(text("destination", "the subscribing broker, if the count refers to one")),
        text("group", "the group"),
        text("measure", "published, forwarded, delivered, duplicate or dropped"),
        maybe(text("reason", "reason, for dropped publications")),
        moment("since", "time of the previous report, or when the count was zero"),
        moment("at", "time of the report"),
        count("publications", "publications counted between the two"),
        count("payload_bytes", "their payload bytes"),
    ),
)
