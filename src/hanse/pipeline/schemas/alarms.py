"""Live alarms: who fell silent, and who is back."""

from hanse.pipeline.schemas.table import Table, moment, number, text

TABLE = Table(
    "gold_alarms",
    "A reporter of telemetry that fell silent, or came back; written live by `hanse pipeline alarms`.",
    (
        moment("at", "when it was, by the collector's clock"),
        text("reporter", "the federator or manager"),
        text("alarm", "silent or back"),
        number("silent_s", "for how long nothing had come from it"),
    ),
)
