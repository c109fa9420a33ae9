"""Load of the processes beside a broker."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, maybe, number, text

TABLE = Table(
    "gold_broker_load",
    "One process of one broker in one window.",
    (
        WINDOW_START,
        text("broker", "the broker"),
        text("role", "role of the process"),
        text("host", "the machine"),
        count("samples", "samples in the window"),
        maybe(number("cpu_share", "CPU time as a share of one core; missing if there is a single sample")),
        count("rss_bytes_max", "largest resident memory"),
        count("publications", "publications that the federator counted (published, forwarded, delivered)"),
    ),
)
