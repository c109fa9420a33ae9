"""Cost of the federation: control traffic compared with data."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, maybe, number, text

TABLE = Table(
    "gold_control_overhead",
    "One link in one direction in one window.",
    (
        WINDOW_START,
        text("broker", "the sending end"),
        text("neighbour", "the receiving end"),
        count("data_frames", "data frames sent"),
        count("data_bytes", "their bytes"),
        count("control_frames", "control frames sent"),
        count("control_bytes", "their bytes"),
        count("retransmitted_frames", "frames sent again"),
        count("dropped_frames", "frames dropped"),
        number("control_bytes_per_s", "control bytes per second"),
        maybe(number("control_share", "share of control bytes in all bytes; missing on a silent link")),
    ),
)
