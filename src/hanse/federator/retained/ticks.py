"""Times of writes that waited in the session, and restarts of the host broker: both found by its uptime.

The broker's uptime arrives every few seconds, also in a waiting session, in order with everything else. A write that
waited was made after the tick before it. Mosquitto lets ticks expire after a minute, so the first ones of a long
absence are missing. A write then counts as old as the absence.
"""

# A live tick is at most this old.
LIVE_MS = 2_000
# If a live tick shows that the broker started this much later than known, the broker has restarted.
RESTART_MS = 5_000
# A retained tick may have waited at the broker for an interval between two.
RETAINED_MS = 60_000
# A session without ticks catches up after this.
BEHIND_MS_MAX = 10_000


class Ticks:
    """The broker's clock, as its ticks show it.

    Attributes:
        started_ms: wall time of the broker's start; None if its uptime is unknown.
    """

    def __init__(self, started_ms: int | None = None) -> None:
        self.started_ms = started_ms
        self._uptime_s = -1
        # While the session delivers waiting messages: the time after which they were published.
        self._since_ms: int | None = None
        self._connected_ms = 0
        self._heard_ms = 0

    def connected(self, wall_ms: int, *, session_present: bool) -> None:
        """Note that the broker accepted the session."""
        self._connected_ms = wall_ms
        self._since_ms = self._heard_ms if session_present else None

    def heard(self, wall_ms: int) -> None:
        """Note that a message arrived from the broker."""
        self._heard_ms = wall_ms

    @property
    def heard_ms(self) -> int:
        """Time of the last message from the broker."""
        return self._heard_ms

    def waiting_since(self, wall_ms: int) -> int | None:
        """Return the time after which a write was made, if it waited in the session."""
        if self._since_ms is not None and self.started_ms is None and wall_ms > self._connected_ms + BEHIND_MS_MAX:
            self._since_ms = None
        return self._since_ms

    def tick(self, uptime_s: int, wall_ms: int, *, is_retained: bool = False) -> bool:
        """Take a tick; return whether the broker has restarted since the last one."""
        at_ms = wall_ms - uptime_s * 1_000
        started_ms = self.started_ms
        if started_ms is None:
            self.started_ms, self._uptime_s, self._since_ms = at_ms, uptime_s, None
            return False
        ahead_ms = RETAINED_MS if is_retained else RESTART_MS
        is_behind = self._since_ms is not None and not is_retained
        # Waiting messages are older than they look, unless the broker did not run for that time.
        is_restarted = uptime_s < self._uptime_s or (at_ms > started_ms + ahead_ms and not is_behind)
        self._uptime_s = uptime_s
        if is_restarted:
            self.started_ms, self._since_ms = at_ms, None
        elif is_retained:
            pass
        elif started_ms + uptime_s * 1_000 >= wall_ms - LIVE_MS:
            self.started_ms, self._since_ms = min(at_ms, started_ms), None
        elif is_behind:
            if wall_ms > self._connected_ms + RETAINED_MS:
                # It cannot have waited that long: the clocks have drifted apart.
                self.started_ms, self._since_ms = at_ms, None
            else:
                self._since_ms = max(self._since_ms or 0, started_ms + uptime_s * 1_000)
        else:
            self.started_ms = at_ms
        return is_restarted
