"""Offsets between the clocks of two hosts, from two-way checks."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, number, text

TABLE = Table(
    "gold_clock_skew",
    "The offset between the clocks of two hosts in one window.",
    (
        WINDOW_START,
        text("host", "the reference host"),
        text("other_host", "the host that is compared"),
        number("skew_ms", "the other host's clock minus the host's clock"),
        number("skew_error_ms", "the true offset lies within `skew_ms` plus or minus this"),
        count(
            "checks",
            "two-way checks between the two in this window; 0 if adjacent windows or other hosts supplied the offset",
        ),
        count("links", "pairs of hosts whose offsets were added up; 1 if measured directly"),
    ),
)
