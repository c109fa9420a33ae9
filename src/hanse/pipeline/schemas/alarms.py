"""Live alarms: reporters that fell silent or came back."""

from hanse.pipeline.schemas.table import Table, moment, number, text

TABLE = Table(
    "gold_alarms",
    "A reporter of telemetry that fell silent, or came back; written live by `hanse pipeline alarms`.",
    (
        moment("at", "time of the alarm, by the collector's clock"),
        text("reporter", "the federator or manager"),
        text("alarm", "silent or back"),
        number("silent_s", "time without a report from it"),
    ),
)
