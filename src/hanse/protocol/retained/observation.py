"""Observed filters of the host broker, and the ends of former observations."""

from hanse.protocol.trie import FilterIndex


class Observation:
    """Granted subscriptions, those among them with a completed look, and the ends of former ones.

    Attributes:
        ends: filter to the stamp at which its observation ended; on disk.
    """

    def __init__(self, filters_max: int) -> None:
        self.granted = FilterIndex()
        self.ends: dict[str, int] = {}
        self._complete = FilterIndex()
        self._ended = FilterIndex()
        self._filters_max = filters_max

    def grant(self, filter_: str) -> None:
        """Note that the host broker holds the subscription."""
        self.granted.add(filter_)
        self._complete.discard(filter_)

    def complete(self, filter_: str) -> None:
        """Note that a look at the filter is complete, and that the subscription existed before it began."""
        if filter_ in self.granted:
            self._complete.add(filter_)

    def begin_anew(self) -> None:
        """Invalidate former looks: each filter needs another one."""
        for filter_ in list(self._complete):
            self._complete.discard(filter_)

    def end(self, filter_: str, stamp: int) -> list[str]:
        """Note the end of a subscription; return the filters whose ends changed, including dropped ones."""
        if filter_ not in self.granted:
            return []
        self.granted.discard(filter_)
        if not self._complete.discard(filter_):
            return []  # no look has shown what the host broker held under it, so its end gives no time
        changed = [filter_]
        self.ends[filter_] = max(stamp, self.ends.pop(filter_, 0))
        self._ended.add(filter_)
        if len(self.ends) > self._filters_max:
            oldest = next(iter(self.ends))
            del self.ends[oldest]
            self._ended.discard(oldest)
            changed.append(oldest)
        return changed

    def restore(self, filter_: str, stamp: int) -> None:
        """Add an end from disk."""
        self.ends[filter_] = stamp
        self._ended.add(filter_)

    def is_observed(self, topic: str) -> bool:
        """Return whether every write to the topic is heard."""
        return bool(self._complete.match(topic))

    def is_granted(self, topic: str) -> bool:
        """Return whether the federator is subscribed to the topic."""
        return bool(self.granted.match(topic))

    def complete_filters(self) -> list[str]:
        """Return all filters that are observed."""
        return list(self._complete)

    def is_complete(self, filter_: str) -> bool:
        """Return whether the filter itself is observed."""
        return filter_ in self._complete

    def ended_at(self, topic: str) -> int:
        """Return the latest stamp at which an observation of the topic ended; 0 if there was none."""
        return max((self.ends[filter_] for filter_ in self._ended.match(topic)), default=0)
