"""Parameters of retained state, each with its unit and the cost of larger and smaller values."""

from dataclasses import dataclass

from hanse.errors import LocalError


@dataclass(frozen=True, slots=True)
class RetainedSettings:
    """Settings of one federator's retained state; docs/protocol.md has the table.

    Attributes:
        topics_max: topics in the book. Beyond it, retained messages travel without protection, and are counted.
        value_bytes_max: values kept in memory, so that a repair need not ask others for them.
        clock_ahead_s_max: largest lead of a version over our clock; one further ahead is refused.
        recent_s: time for which an injection is remembered, to recognise it at a look.
        recent_max: injections remembered per topic.
        verify_s: a write heard this soon after an injection is verified by a look.
        look_gap_s: pause between two looks, so that a busy topic does not keep the broker busy.
        look_retry_s: pause after a look that failed.
        fetch_interval_s: interval at which everything of interest is fetched again.
        fetch_s: time for which answers to one fetch are awaited; a copy waits this long for its origin's answer.
        linger_s: time by which interest outlives the last unsubscription; for as long after a start no copies are
            removed.
        tombstone_s: time for which a deletion is remembered. A broker that was away longer may bring the value back.
        tombstones_max: deletions remembered; the oldest are forgotten first, and counted.
        sweep_s: interval at which old deletions are forgotten, and unwanted copies found.
        filters_max: filters of interest, and filters whose end of observation is remembered.
        touch_s: pause between two looks at topics of a host broker that does not mark retained publications.
        is_exact: whether the host broker replays retained messages only for exact topics.
    """

    topics_max: int = 1_000_000
    value_bytes_max: int = 8 << 20
    clock_ahead_s_max: float = 300.0
    recent_s: float = 60.0
    recent_max: int = 8
    verify_s: float = 3.0
    look_gap_s: float = 0.2
    look_retry_s: float = 5.0
    fetch_interval_s: float = 600.0
    fetch_s: float = 5.0
    linger_s: float = 600.0
    tombstone_s: float = 30 * 86_400.0
    tombstones_max: int = 100_000
    sweep_s: float = 60.0
    filters_max: int = 100_000
    touch_s: float = 2.0
    is_exact: bool = False

    def __post_init__(self) -> None:
        for name in ("topics_max", "recent_max", "tombstones_max", "filters_max"):
            if getattr(self, name) < 1:
                raise LocalError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("fetch_interval_s", "fetch_s", "look_retry_s", "sweep_s"):
            if getattr(self, name) <= 0:
                raise LocalError(f"{name} is {getattr(self, name)}; it must be above 0.")
        for name in ("recent_s", "verify_s", "look_gap_s", "linger_s", "tombstone_s", "touch_s", "clock_ahead_s_max"):
            if getattr(self, name) < 0:
                raise LocalError(f"{name} is {getattr(self, name)}; it must not be negative.")
