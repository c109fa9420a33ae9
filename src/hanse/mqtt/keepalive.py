"""When to ping and when to give a peer up. Pure: the time comes in.

Rules: a ping goes out when half the interval passed without a byte sent or without a byte received, so a dead peer
is found also while we send; a peer is dead when a ping stays without any byte for half the interval (client side),
or when nothing came for one and a half (server side, MQTT 5, 3.1.2.10). An observer that was itself stopped blames
itself first: after a pause of its own it looks once more before it judges.
"""

from typing import Final, Literal

Verdict = Literal["fine", "ping", "dead"]

# Checks in one interval: a verdict is late by at most a quarter of it.
CHECKS: Final = 4


class KeepAlive:
    """One for a connection. `interval_s` 0 switches it off."""

    def __init__(self, interval_s: float, now: float, *, pings: bool) -> None:
        self.interval_s = interval_s
        self._pings = pings
        self._pinged_at: float | None = None
        self._checked_at = now

    @property
    def check_every_s(self) -> float:
        """How often `check` wants to be called."""
        return self.interval_s / CHECKS

    def check(self, now: float, received_at: float, sent_at: float) -> Verdict:
        """What to do, given when a byte last came and last went."""
        late = now - self._checked_at > 2 * self.check_every_s
        self._checked_at = now
        if not self.interval_s or late:
            return "fine"
        if not self._pings:
            return "dead" if now - received_at > 1.5 * self.interval_s else "fine"
        half = self.interval_s / 2
        if self._pinged_at is not None:
            # Equal counts as an answer: uvloop's clock stands still within a turn and has whole milliseconds, and a
            # broker next door answers within one. A peer that is dead all the same is pinged again and found then.
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
