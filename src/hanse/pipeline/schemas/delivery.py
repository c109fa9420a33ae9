"""What should have arrived and what did."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, maybe, number, text

TABLE = Table(
    "gold_delivery",
    "One group's traffic from one broker to another: one window, and all up to its end.",
    (
        WINDOW_START,
        text("origin", "the publishing broker"),
        text("destination", "the subscribing broker"),
        text("group", "the group"),
        count("expected", "publications counted while the destination was a member throughout"),
        count("uncertain", "publications counted between two reports while the destination joined or left"),
        count("delivered", "publications that the destination's broker acknowledged"),
        count("dropped", "publications given up, with a reason, see gold_drops"),
        count("expected_total", "expected up to the end of the window"),
        count("uncertain_total", "uncertain up to the end of the window"),
        count("delivered_total", "delivered up to the end of the window"),
        count("dropped_total", "dropped up to the end of the window"),
        count(
            "lost_total",
            "expected less delivered, never below 0; in the last window what is still on the way is in it",
        ),
        count("unexplained_total", "lost and not explained by a drop counter"),
        maybe(
            number(
                "delivery_ratio",
                "delivered of expected up to the window's end, at most 1; an upper bound where some are uncertain",
            )
        ),
    ),
)
