"""Refused data and the reasons: bad payloads, rows that break a rule, messages that no broker should accept."""

from hanse.pipeline.schemas.table import Table, count, maybe, moment, text

TABLE = Table(
    "silver_quarantine",
    "A payload or a row that was refused.",
    (
        moment("collected_at", "when the collector received it"),
        text("dataset", "the silver table that refused it"),
        maybe(text("topic", "the topic as text, with escapes for unprintable characters")),
        text("reasons", "the names of the broken rules, or the decoder's error"),
        text("sample", "the beginning of the payload or row as text, escaped the same way"),
        count("payload_bytes", "size of the payload or row"),
    ),
)
