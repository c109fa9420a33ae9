"""Offsets between the clocks of two hosts, from two-way checks."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, number, text

TABLE = Table(
    "gold_clock_skew",
    "How far one host's clock is ahead of another's in one window.",
    (
        WINDOW_START,
        text("host", "the host that is compared with"),
        text("other_host", "the host that is compared"),
        number("skew_ms", "the other host's clock less the host's"),
        number("skew_error_ms", "the true offset lies within `skew_ms` plus or minus this"),
        count(
            "checks",
            "two-way checks between the two in this window; 0 where the windows beside it or other hosts had to do",
        ),
        count("links", "pairs of hosts that it was put together from; 1 if measured directly"),
    ),
)
