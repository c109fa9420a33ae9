"""Gaps: publications that no account counts, because something took or destroyed them.

`/accounts` reports them, and `hanse account` shows them beside the balance. Rules:

1. Each gap is also logged and counted by the module that finds it.
2. At most `GAPS_MAX` gaps are kept, the newest; how many were dropped is reported.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hanse.protocol.balance import GAPS

# A federator whose session is taken over every minute fills the page in two hours.
GAPS_MAX = 128


@dataclass(slots=True)
class OpenGap:
    """One gap. All times are microseconds since 1970.

    Attributes:
        kind: one of `GAPS`.
        since_us, until_us: when it began and ended; None while it lasts.
        publications: how many are missing; None if that is not known.
        detail: which ones, and why.
    """

    kind: str
    since_us: int
    until_us: int | None
    publications: int | None
    detail: str


class GapBook:
    """The gaps of one federator since its process began."""

    def __init__(self, clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000) -> None:
        self._clock_us = clock_us
        self._gaps: deque[OpenGap] = deque(maxlen=GAPS_MAX)
        self.dropped = 0

    def add(
        self,
        kind: str,
        detail: str,
        *,
        since_us: int | None = None,
        until_us: int | None = None,
        publications: int | None = None,
    ) -> OpenGap:
        """Add a gap, which begins now if no time is given, and return it; the caller may end it later."""
        assert kind in GAPS, kind
        if len(self._gaps) == GAPS_MAX:
            self.dropped += 1
        gap = OpenGap(kind, self._clock_us() if since_us is None else since_us, until_us, publications, detail)
        self._gaps.append(gap)
        return gap

    def now_us(self) -> int:
        """Return the time in the unit of gaps."""
        return self._clock_us()

    def rows(self) -> list[list[str | int | None]]:
        """Return the gaps, oldest first, in the form of `/accounts`."""
        return [[gap.kind, gap.since_us, gap.until_us, gap.publications, gap.detail] for gap in self._gaps]
