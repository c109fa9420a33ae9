"""Deviations of a broker or a link from its own baseline."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, number, text

TABLE = Table(
    "gold_anomalies",
    "One measure of one broker or link that deviated from its own baseline in one window.",
    (
        WINDOW_START,
        text("element", "broker or link"),
        text("name", "the broker, or the link as `broker>neighbour`"),
        text("measure", "the measure that deviated"),
        number("value", "the value in the window"),
        number("baseline", "the median of the preceding windows"),
        number("spread", "their median absolute deviation, scaled to a standard deviation, with a floor"),
        number("score", "(value - baseline) / spread"),
        text("direction", "high or low"),
    ),
)
