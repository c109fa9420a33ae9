"""Delay before the next attempt: doubled each time up to a limit, with jitter.

The limit is low for a client with back-off (1 s). A federator must be back within two announcement intervals of its
broker's return, and a broker has only one federator. Randomness comes in as an argument.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hanse.errors import LocalError


@dataclass(frozen=True, slots=True)
class BackoffSettings:
    """Delays in seconds. After a connection that lasted for `steady_s`, the delays start from the beginning."""

    first_s: float = 0.05
    max_s: float = 1.0
    factor: float = 2.0
    steady_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.max_s or self.factor < 1:
            raise LocalError(
                f"back-off from {self.first_s} s to {self.max_s} s by {self.factor} was given; the first must be "
                "above 0 and at most the largest, the factor at least 1."
            )


class Backoff:
    """Back-off of one peer. `jitter` gives numbers from 0 to 1; a delay is half to all of its nominal value."""

    def __init__(self, settings: BackoffSettings, jitter: Callable[[], float]) -> None:
        self._settings = settings
        self._jitter = jitter
        self._next_s = settings.first_s

    def next_s(self) -> float:
        """Return the delay before the next attempt."""
        nominal_s = self._next_s
        self._next_s = min(self._settings.max_s, nominal_s * self._settings.factor)
        return nominal_s * (0.5 + 0.5 * self._jitter())

    def held(self, seconds: float) -> None:
        """Note that a connection ended after so many seconds."""
        if seconds >= self._settings.steady_s:
            self._next_s = self._settings.first_s
