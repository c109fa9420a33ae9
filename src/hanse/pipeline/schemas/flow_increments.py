"""What was added to the flow counts from one report to the next."""

from hanse.pipeline.schemas.table import Table, count, maybe, moment, text

TABLE = Table(
    "silver_flow_increments",
    "What one count grew by between two reports.",
    (
        text("broker", "the broker whose federator counted"),
        text("origin", "the publishing broker"),
        maybe(text("destination", "the subscribing broker, where one is meant")),
        text("group", "the group"),
        text("measure", "published, forwarded, delivered, duplicate or dropped"),
        maybe(text("reason", "why, for what was dropped")),
        moment("since", "the report before, or when the count was zero"),
        moment("at", "the report"),
        count("publications", "publications counted between the two"),
        count("payload_bytes", "their payload bytes"),
    ),
)
