"""Latency of sampled messages, corrected for the two hosts' clocks."""

from hanse.pipeline.schemas.table import Column, Table, count, maybe, moment, number, text

TABLE = Table(
    "silver_latencies",
    "The latency of one sampled message to one destination.",
    (
        moment("published_at", "when the federator received it from the origin's broker, by the origin's clock"),
        text("origin", "the publishing broker"),
        text("destination", "the delivering broker"),
        text("group", "the group"),
        text("path", "the route, as `origin>…>destination`"),
        count("hops", "links crossed"),
        number("latency_ms", "from published to delivered, after the correction"),
        maybe(number("skew_ms", "the destination's clock minus the origin's, already subtracted; missing if unknown")),
        maybe(number("skew_error_ms", "maximum error of `skew_ms`; missing if unknown")),
        Column("is_corrected", "boolean", "true if the clocks' offset is known (always on one host)"),
    ),
)
