"""Times to ping a peer and to give it up. Pure: the time comes in as an argument.

Rules:

- The client pings if it sent no byte, or received none, for half the interval. A dead peer is thus also found while
  this side sends.
- On the client side, a peer is dead if no byte arrives for half an interval after a ping. On the server side, it is
  dead if no byte arrives for one and a half intervals (MQTT 5, 3.1.2.10).
- An observer that was itself stopped blames itself first: after a pause of its own, it checks once more before it
  decides.
"""

from typing import Final, Literal

Verdict = Literal["fine", "ping", "dead"]

# Checks per interval: a decision is late by at most a quarter of it.
CHECKS: Final = 4


class KeepAlive:
    """Keep-alive of one connection. `interval_s` 0 switches it off."""

    def __init__(self, interval_s: float, now: float, *, pings: bool) -> None:
        self.interval_s = interval_s
        self._pings = pings
        self._pinged_at: float | None = None
        self._checked_at = now

    @property
    def check_every_s(self) -> float:
        """Interval at which `check` must be called."""
        return self.interval_s / CHECKS

    def check(self, now: float, received_at: float, sent_at: float) -> Verdict:
        """Return the action that is due, given the times of the last byte in each direction."""
        late = now - self._checked_at > 2 * self.check_every_s
        self._checked_at = now
        if not self.interval_s or late:
            return "fine"
        if not self._pings:
            return "dead" if now - received_at > 1.5 * self.interval_s else "fine"
        half = self.interval_s / 2
        if self._pinged_at is not None:
            # Equal times count as a reply: uvloop's clock stands still within a turn and has whole milliseconds, and a
            # broker on the same machine replies within one. If the peer is dead after all, the next ping finds out.
            if received_at >= self._pinged_at:
                self._pinged_at = None
            elif now - self._pinged_at >= half:
                return "dead"
            else:
                return "fine"
        if now - received_at >= half or now - sent_at >= half:
            self._pinged_at = now
            return "ping"
        return "fine"
