"""The comparison of a federator's replay with what a client already has.

A client that has moved gets three streams: what the lost broker sent before, what the new broker sends now, and the
replay of the new broker's federator, which knows every publication of QoS 1 and 2 of the last seconds. The same
publication may be in two of them.

Rules:

1. Contents are counted, because a sensor may publish the same value again and again. One publication of the replay
   stands for at most one that the client has.
2. A publication of the replay is first compared with those that came at about the same time (`near_s`), then with the
   rest. The rest may be late by any time, because a client may read slowly, and early by `lag_s`, by which one
   federator may lag behind another.
3. Ages are compared, never clocks. All times are the gateway's own.
4. What the client received of late and the replay does not have is on its way to the new broker: it will come again,
   and is then removed.
"""

from bisect import bisect_left
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Comparison(Generic[Item]):
    """One replay as it comes in, oldest publication first.

    Args:
        had: times of what the client has, by content, oldest first. It is used up.

    Attributes:
        removed: publications of the replay that the client has.
    """

    def __init__(self, had: dict[int, list[float]], near_s: float, lag_s: float) -> None:
        self._had = had
        self._live: dict[int, list[float]] = {}
        self._near_s = near_s
        self._lag_s = lag_s
        self._open: list[tuple[float, int, Item]] = []
        self.removed = 0

    def __len__(self) -> int:
        return len(self._open)

    def came_live(self, content: int, now: float) -> None:
        """Note a publication that the new broker has sent meanwhile."""
        self._live.setdefault(content, []).append(now)

    def add(self, time: float, content: int, item: Item) -> bool:
        """Take the next publication of the replay; return whether it may be missing."""
        for known in (self._had, self._live):
            times = known.get(content)
            if times:
                at = bisect_left(times, time - self._near_s)
                if at < len(times) and times[at] <= time + self._near_s:
                    del times[at]
                    self.removed += 1
                    return False
        self._open.append((time, content, item))
        return True

    def missing(self) -> list[tuple[float, int, Item]]:
        """End the replay: return what the client lacks, as time, content and item."""
        lacking = []
        for entry in self._open:
            if self._is_had(entry[0], entry[1]):
                self.removed += 1
            else:
                lacking.append(entry)
        self._open = []
        return lacking

    def _is_had(self, time: float, content: int) -> bool:
        for known in (self._had, self._live):
            times = known.get(content)
            if times:
                at = bisect_left(times, time - self._lag_s)
                if at < len(times):
                    del times[at]
                    return True
        return False

    def expected(self, since: float) -> dict[int, int]:
        """Return, after `missing`, how often each content came since then and is not in the replay (rule 4)."""
        found = {}
        for content, times in self._had.items():
            count = len(times) - bisect_left(times, since)
            if count:
                found[content] = count
        return found
