"""Latency as KLL sketches, which can be merged and give every percentile."""

from hanse.pipeline.schemas.table import WINDOW_START, Column, Table, count, maybe, number, text

TABLE = Table(
    "gold_latency_sketches",
    "The latencies of one group over one path in one window.",
    (
        WINDOW_START,
        text("group", "the group"),
        text("origin", "the publishing broker"),
        text("destination", "the delivering broker"),
        text("path", "the route, as `origin>…>destination`"),
        count("hops", "links crossed"),
        count("deliveries", "sampled deliveries"),
        count("uncorrected", "deliveries without a known clock offset"),
        Column("latency_sketch", "binary", "KLL sketch (double) of the latencies in ms"),
        number("latency_ms_max", "the longest"),
        maybe(number("skew_error_ms_max", "the largest clock error among them")),
    ),
)
