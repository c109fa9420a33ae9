"""How busy the processes beside a broker are."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, maybe, number, text

TABLE = Table(
    "gold_broker_load",
    "One process of one broker in one window.",
    (
        WINDOW_START,
        text("broker", "the broker"),
        text("role", "what the process is"),
        text("host", "the machine"),
        count("samples", "samples in the window"),
        maybe(number("cpu_share", "CPU time used of one core's time; missing with a single sample")),
        count("rss_bytes_max", "largest resident memory"),
        count("publications", "publications that the federator counted (published, forwarded, delivered)"),
    ),
)
