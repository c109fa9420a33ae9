"""The comparison of a federator's replay with what a client already has.

A client that has moved gets three streams: what the lost broker sent before, what the new broker sends now, and the
replay of the new broker's federator, which knows every publication of QoS 1 and 2 of the last seconds. The same
publication may be in two of them, or in all three.

Rules:

1. Contents are counted, because a sensor may publish the same value again and again. One publication of a stream stands
   for at most one of another stream.
2. The replay and the new broker's publications are joined first: a live publication that arrived at about the time at
   which the federator had it is the same one. The times may differ by `lag_s` for QoS 2, where a duplicate is worse
   than a loss; by `near_s` for contents that the client does not have at all; by a tenth of it for all others and for
   contents that repeat.
3. The result is compared with what the client has: first with publications of about the same time, then with the rest.
   The rest may be later by any time, because a client may read slowly, and earlier by up to `lag_s`, because one
   federator may lag behind another.
4. A publication that the client received recently and that is in neither of them is on its way to the new broker. It
   will arrive again, and is then removed.
5. A publication that the federator had at about the start of the subscription or later, and that has not come live, may
   still do so: the new broker may wait for the client's acknowledgements. The same is true for one that the new broker
   does not have yet. The gateway does not wait for them. `may_come` names those whose content does not repeat. Such a
   publication is then removed at QoS 2; at QoS 1 it is counted, because a duplicate is better than a loss.
6. Ages are compared, never clocks. All times are the gateway's own.
"""

from bisect import bisect_left
from collections import deque
from math import inf
from typing import Generic, TypeVar

Item = TypeVar("Item")
LiveItem = TypeVar("LiveItem")


class Entry(Generic[Item, LiveItem]):
    """One publication at the new broker: of the replay (`item`), of the live ones (`live`), or of both."""

    __slots__ = ("content", "is_at_host", "is_once", "item", "live", "time")

    def __init__(self, time: float, content: int, item: Item | None, live: LiveItem | None, is_once: bool) -> None:
        self.time = time
        self.content = content
        self.item = item
        self.live = live
        self.is_once = is_once
        self.is_at_host = True


class Comparison(Generic[Item, LiveItem]):
    """One replay as it arrives, oldest publication first, and the live publications that arrive meanwhile.

    Args:
        had: times of the client's publications by content, oldest first. The comparison empties it.
        is_draining: live publications may have been queued for any length of time.

    Attributes:
        removed: publications that the client has and does not get again.
    """

    def __init__(self, had: dict[int, list[float]], near_s: float, lag_s: float, *, is_draining: bool = False) -> None:
        self._had = had
        self._near_s = near_s
        self._lag_s = lag_s
        self._is_draining = is_draining
        self._replayed: list[Entry[Item, LiveItem]] = []
        self._live: list[Entry[Item, LiveItem]] = []
        self.removed = 0

    def came_live(self, content: int, now: float, live: LiveItem) -> None:
        """Take a publication that the new broker has sent meanwhile."""
        self._live.append(Entry(now, content, None, live, False))

    def add(self, time: float, content: int, item: Item, *, is_once: bool, is_at_host: bool = True) -> None:
        """Take the next publication of the replay. `is_once`: its QoS is 2. `is_at_host`: the new broker has it."""
        entry = Entry[Item, LiveItem](time, content, item, None, is_once)
        entry.is_at_host = is_at_host
        self._replayed.append(entry)

    def missing(self) -> tuple[list[Entry[Item, LiveItem]], list[LiveItem]]:
        """End the replay: return what the client lacks, in order, and the live publications that it has already."""
        entries = self._join()
        unsure = [one for one in entries if not self._has_near(one)]
        lacking = {id(one) for one in unsure if not self._has_any(one)}
        self.removed += len(entries) - len(lacking)
        known = [one.live for one in entries if one.live is not None and id(one) not in lacking]
        return [one for one in entries if id(one) in lacking], known

    def may_come(self, since: float) -> list[Entry[Item, LiveItem]]:
        """Return, after `missing`, the publications of the replay that may still come live (rule 5)."""
        often: dict[int, int] = {}
        for one in (*self._replayed, *self._live):
            often[one.content] = often.get(one.content, 0) + 1
        return [
            one
            for one in self._replayed
            if (one.time >= since or not one.is_at_host) and one.live is None and often[one.content] == 1
        ]

    def _join(self) -> list[Entry[Item, LiveItem]]:
        """Join live and replayed publications (rule 2); return both, oldest first."""
        waiting: dict[int, deque[Entry[Item, LiveItem]]] = {}
        often: dict[int, int] = {}
        for one in self._live:
            waiting.setdefault(one.content, deque()).append(one)
        for one in self._replayed:
            if one.content in waiting:
                often[one.content] = often.get(one.content, 0) + 1
        joined = set()
        for one in self._replayed:
            candidates = waiting.get(one.content)
            if not candidates:
                continue
            within_s = self._near_s / 10
            if self._is_draining:
                within_s = inf
            elif len(candidates) == often[one.content] == 1:
                if one.is_once:
                    within_s = self._lag_s
                elif one.content not in self._had:
                    within_s = self._near_s
            while candidates and candidates[0].time < one.time - within_s:
                candidates.popleft()
            if candidates and candidates[0].time <= one.time + within_s:
                same = candidates.popleft()
                one.live = same.live
                joined.add(id(same))
        return self._replayed + [one for one in self._live if id(one) not in joined]

    def _has_near(self, one: Entry[Item, LiveItem]) -> bool:
        times = self._had.get(one.content)
        if times:
            at = bisect_left(times, one.time - self._near_s)
            if at < len(times) and times[at] <= one.time + self._near_s:
                del times[at]
                return True
        return False

    def _has_any(self, one: Entry[Item, LiveItem]) -> bool:
        times = self._had.get(one.content)
        if times:
            at = bisect_left(times, one.time - self._lag_s)
            if at < len(times):
                del times[at]
                return True
        return False

    def expected(self, since: float) -> dict[int, int]:
        """Return, after `missing`, how often each content came since then and is not at the new broker (rule 4)."""
        found = {}
        for content, times in self._had.items():
            count = len(times) - bisect_left(times, since)
            if count:
                found[content] = count
        return found
