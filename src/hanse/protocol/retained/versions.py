"""Versions of retained values, and the hybrid logical clock that makes them.

A version is a stamp and the id of the federator that gave it. A stamp is a time in milliseconds, shifted left by
`COUNTER_BITS`, plus a counter. Versions are ordered by stamp, then by federator, so two are never equal by accident.
"""

from typing import NamedTuple

COUNTER_BITS = 16
# Stamps stay below 2**61. On the wire, where numbers are below 2**62, `FOUND` is added to stamps of messages that a
# look found.
FOUND = 1 << 61
TIME_MS_MAX = (1 << 61 - COUNTER_BITS) - 1


class Version(NamedTuple):
    """Place of one retained write or deletion in the order of all of them."""

    stamp: int
    federator: int

    @property
    def time_ms(self) -> int:
        """Wall time of the write, as far as its federator knew it."""
        return self.stamp >> COUNTER_BITS


def stamp_at(time_ms: int) -> int:
    """Return the first stamp of a millisecond."""
    return max(0, min(time_ms, TIME_MS_MAX)) << COUNTER_BITS


class HybridClock:
    """Clock whose stamps follow wall time, never repeat, and exceed every stamp that it has seen.

    Args:
        ahead_ms_max: largest lead of a stamp over our own wall clock; one further ahead is refused.
    """

    def __init__(self, ahead_ms_max: int) -> None:
        self.last = 0
        self._ahead_ms_max = ahead_ms_max

    def next(self, wall_ms: int, count: int = 1) -> int:
        """Return the first of `count` consecutive new stamps."""
        first = max(self.last + 1, stamp_at(wall_ms))
        self.last = first + count - 1
        return first

    def see(self, stamp: int) -> None:
        """Note a stamp: later ones exceed it."""
        self.last = max(self.last, stamp)

    def is_refused(self, wall_ms: int, stamp: int) -> bool:
        """Return whether a stamp is too far in the future to be true."""
        return stamp > stamp_at(wall_ms + self._ahead_ms_max)
