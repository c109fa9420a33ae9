"""Latency by path."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, maybe, number, text

TABLE = Table(
    "gold_latency_by_path",
    "The latency over one path in one window.",
    (
        WINDOW_START,
        text("origin", "the publishing broker"),
        text("destination", "the delivering broker"),
        text("path", "the route, as `origin>…>destination`"),
        count("hops", "links crossed"),
        count("deliveries", "sampled deliveries"),
        count("uncorrected", "deliveries without a known clock offset"),
        number("latency_ms_p50", "median"),
        number("latency_ms_p95", "95th percentile"),
        number("latency_ms_p99", "99th percentile"),
        number("latency_ms_max", "the longest"),
        maybe(number("skew_error_ms_max", "the largest clock error among them; missing if no offset is known")),
    ),
)
