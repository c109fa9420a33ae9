"""Expected and actual deliveries."""

from hanse.pipeline.schemas.table import WINDOW_START, Table, count, maybe, number, text

TABLE = Table(
    "gold_delivery",
    "One group's traffic from one broker to another, in one window and in total up to its end.",
    (
        WINDOW_START,
        text("origin", "the publishing broker"),
        text("destination", "the subscribing broker"),
        text("group", "the group"),
        count("expected", "publications counted while the destination was a member throughout"),
        count("uncertain", "publications counted between two reports while the destination joined or left"),
        count("delivered", "publications that the destination's broker acknowledged"),
        count("dropped", "publications dropped, with a reason; see gold_drops"),
        count("expected_total", "expected up to the end of the window"),
        count("uncertain_total", "uncertain up to the end of the window"),
        count("delivered_total", "delivered up to the end of the window"),
        count("dropped_total", "dropped up to the end of the window"),
        count(
            "lost_total",
            "expected minus delivered, at least 0; in the last window it includes messages in transit",
        ),
        count("unexplained_total", "lost publications that no drop counter explains"),
        maybe(
            number(
                "delivery_ratio",
                "delivered divided by expected up to the window's end, at most 1; an upper bound if some are uncertain",
            )
        ),
    ),
)
