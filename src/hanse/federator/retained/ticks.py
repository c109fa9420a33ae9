"""Times of writes that waited in the session, and restarts of the host broker: both found by its uptime.

The broker's uptime arrives every few seconds, also in a waiting session, in order with everything else. A write that
waited was made after the tick before it. Mosquitto lets ticks expire after a minute, so the first ones of a long
absence are missing. A write then counts as old as the absence.
"""

# A live tick is at most this old.
LIVE_MS = 2_000
# A retained tick may have waited at the broker for an interval between two. If one shows that the broker started this
# much later than known, the broker has restarted. After this long, a session has nothing that waited.
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
        # The last ticks of the session, and of looks. Each kind comes in order.
        self._session_s = self._looked_s = -1
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

    @property
    def last_s(self) -> int:
        """The largest uptime that is known; -1 for none."""
        return max(self._session_s, self._looked_s)

    def waiting_since(self, wall_ms: int) -> int | None:
        """Return the time after which a write was made, if it waited in the session."""
        if self._since_ms is not None and self.started_ms is None and wall_ms > self._connected_ms + BEHIND_MS_MAX:
            self._since_ms = None
        return self._since_ms

    def tick(
        self, uptime_s: int, wall_ms: int, *, is_retained: bool = False, looked_after_s: int | None = None
    ) -> bool:
        """Take a tick; return whether the broker has restarted since the last one.

        Args:
            uptime_s: the uptime of the broker.
            wall_ms: when the tick arrived.
            is_retained: it may be as old as an interval between two.
            looked_after_s: it came by a look, which overtakes what waits in the session: `last_s` when the look began.
        """
        at_ms = wall_ms - uptime_s * 1_000
        started_ms = self.started_ms
        if started_ms is None:
            self.started_ms, self._since_ms = at_ms, None
            started_ms = at_ms
        if looked_after_s is not None:
            # Two looks at once may both show a restart; it counts once.
            is_fallen = uptime_s < looked_after_s and at_ms > started_ms + LIVE_MS
            is_restarted = is_fallen or at_ms > started_ms + RETAINED_MS
            self._looked_s = uptime_s
        else:
            is_restarted = uptime_s < self._session_s
            self._session_s = uptime_s
        if is_restarted:
            self.started_ms, self._since_ms = at_ms, None
            if looked_after_s is not None:
                self._session_s = -1
            return True
        if looked_after_s is not None or is_retained:
            return False
        # Ticks may be late: the earliest start is the true one.
        self.started_ms = min(at_ms, started_ms)
        if self._since_ms is None:
            return False
        if started_ms + uptime_s * 1_000 >= wall_ms - LIVE_MS:
            self._since_ms = None
        elif wall_ms > self._connected_ms + RETAINED_MS:
            # It cannot have waited that long: the clocks have drifted apart.
            self.started_ms, self._since_ms = at_ms, None
        else:
            self._since_ms = max(self._since_ms, started_ms + uptime_s * 1_000)
        return False
