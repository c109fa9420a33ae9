"""Members: the federators that may hold copies of what this one retains, and which deletions they remember.

A federator becomes a member of a filter when it fetches it with lasting interest, and stays one until it says that it
holds nothing under the filter any more.
"""

from collections import Counter

from hanse.protocol.trie import FilterIndex


class Members:
    """The members by filter.

    Args:
        members_max, filters_max: bounds; what exceeds them is counted as `retained_members_full`, and deletions are
            then kept for their full time.
    """

    def __init__(self, members_max: int, filters_max: int, counters: Counter[str]) -> None:
        # Filter to federator to the number of our feed up to which it remembers our deletions.
        self.acknowledged: dict[str, dict[int, int]] = {}
        self.is_overflown = False
        self._filters: Counter[int] = Counter()
        self._members_max = members_max
        self._filters_max = filters_max
        self._counters = counters
        self._index = FilterIndex()

    def note(self, federator: int, filter_: str, sequence: int) -> bool:
        """A member has applied our feed for a filter up to a number; return whether that is news."""
        known = self.acknowledged.get(filter_, {})
        if federator not in known:
            is_full = federator not in self._filters and len(self._filters) >= self._members_max
            if is_full or self._filters[federator] >= self._filters_max:
                self._counters["retained_members_full"] += 1
                self.is_overflown = True
                return False
            self._filters[federator] += 1
        elif known[federator] >= sequence:
            return False
        if not known:
            self._index.add(filter_)
        self.acknowledged.setdefault(filter_, {})[federator] = sequence
        return True

    def end(self, federator: int, filter_: str) -> bool:
        """A member holds nothing under a filter any more; return whether it was one."""
        known = self.acknowledged.get(filter_, {})
        if known.pop(federator, None) is None:
            return False
        self._filters[federator] -= 1
        if not self._filters[federator]:
            del self._filters[federator]
        if not known:
            del self.acknowledged[filter_]
            self._index.discard(filter_)
        return True

    def wants(self, federator: int, topic: str) -> bool:
        """Return whether a federator is a member of a filter that matches the topic."""
        return any(federator in self.acknowledged[filter_] for filter_ in self._index.match(topic))

    def have_acknowledged(self, topic: str, sequence: int) -> bool:
        """Return whether all members that may hold a copy of the topic remember its deletion."""
        return not self.is_overflown and all(
            known >= sequence for filter_ in self._index.match(topic) for known in self.acknowledged[filter_].values()
        )
