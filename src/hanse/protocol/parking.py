"""Parking: QoS 0 that has no route waits a little while, within limits. QoS 1 and 2 wait in custody.

The rules (docs/protocol.md R51): what was parked first goes first. Beyond `parked_bytes_max` the oldest is dropped, and
so is what has waited for (K + 2)·A. Every drop is counted.
"""

from collections import Counter, deque
from typing import NamedTuple

from hanse.protocol.accounts import DROPPED, Accounts
from hanse.protocol.messages import Run
from hanse.protocol.settings import Settings


class Parked(NamedTuple):
    """One run that waits, and its source."""

    expires_at: float
    source: int
    run: Run


class Parking:
    """The QoS 0 runs that wait for a route at one federator.

    Attributes:
        size: Bytes that wait.
    """

    def __init__(self, settings: Settings, counters: Counter[str], accounts: Accounts) -> None:
        self._wait_s = (settings.expiry_factor + 2) * settings.announcement_interval_s
        self._size_max = settings.parked_bytes_max
        self._counters = counters
        self._accounts = accounts
        self._parked: deque[Parked] = deque()
        self.size = 0

    @property
    def runs(self) -> list[Run]:
        """All that wait, in order."""
        return [parked.run for parked in self._parked]

    def park(self, now: float, source: int, run: Run) -> None:
        """Keep a run until there is a route. Beyond the limit the oldest is dropped."""
        self._counters["parked"] += run.length
        self.keep(Parked(now + self._wait_s, source, run))
        while self.size > self._size_max:
            self._drop("dropped_parked_full", "parked_full")

    def keep(self, parked: Parked) -> None:
        """Park a run again after `take`, for the rest of its time."""
        self._parked.append(parked)
        self.size += len(parked.run.body)

    def take(self) -> deque[Parked]:
        """Remove and return all that wait, in order."""
        waiting, self._parked = self._parked, deque()
        self.size = 0
        return waiting

    def age(self, now: float) -> None:
        """Age by one round: drop what has waited for too long."""
        while self._parked and self._parked[0].expires_at <= now:
            self._drop("parked_expired", "parked_expired")

    def _drop(self, counter: str, reason: str) -> None:
        parked = self._parked.popleft()
        self.size -= len(parked.run.body)
        self._counters[counter] += parked.run.length
        self._accounts.count(f"{DROPPED}{reason}", parked.run)
