"""Increments of the link counts from one report to the next."""

from hanse.pipeline.schemas.table import Table, count, moment, text

TABLE = Table(
    "silver_link_increments",
    "The increments of one link's counts between two reports, as counted at one end.",
    (
        text("broker", "the end that counted"),
        text("neighbour", "the other end"),
        moment("since", "time of the previous report, or when the count was zero"),
        moment("at", "time of the report"),
        count("data_frames_sent", "data frames sent"),
        count("data_frames_received", "data frames received"),
        count("data_bytes_sent", "their bytes"),
        count("data_bytes_received", "their bytes"),
        count("control_frames_sent", "control frames sent"),
        count("control_frames_received", "control frames received"),
        count("control_bytes_sent", "their bytes"),
        count("control_bytes_received", "their bytes"),
        count("retransmitted_frames", "frames sent again"),
        count("dropped_frames", "frames dropped"),
        count("queue_bytes", "bytes in the queue at the time of the report"),
    ),
)
