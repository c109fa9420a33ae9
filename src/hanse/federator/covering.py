"""Choice of the filters to hold at a broker, among the wanted ones: those that no other filter covers.

A broker may send a publication once for each matching subscription (Mosquitto does). With `#` beside ten narrow
filters, that is eleven writes, reads and comparisons per message.

Rules:

- A filter is left out while a filter that covers it is granted, but not before: the broker may refuse the wider one,
  and wanted publications must not stop meanwhile. For the same reason, a released filter ends only after the filters
  that it covered have been requested. A broker handles the requests of one session in order.
- A filter that the broker has granted once will be granted again. Behind a long queue, its answer takes long, and
  duplicates would make the queue longer.
- Covered filters are searched among those with the same beginning, up to the first wildcard. If there are more than
  `SEARCHED_MAX`, the filter covers nothing: ending that many filters and requesting them again costs more than the
  duplicates, of which a publication has as many as it matches filters.
"""

from bisect import bisect_left, insort
from typing import NamedTuple

from hanse.protocol.topics import covers
from hanse.protocol.trie import FilterIndex

# A search of this length takes a millisecond, each time a filter with a wildcard is added or removed.
SEARCHED_MAX = 1_000

# In the place of each wildcard, this makes a name that exactly the filters match that cover the filter with wildcards.
_ANY_LEVEL = "\x01"
_LAST_CHARACTER = "\U0010ffff"


class Change(NamedTuple):
    """Requests to the broker: first all subscriptions, then all that end."""

    subscribe: list[str]
    unsubscribe: list[str]


class Covering:
    """Filters of one session; no IO.

    Attributes:
        held: filters that the broker holds for us, or has been asked to hold.
    """

    def __init__(self) -> None:
        self.held: set[str] = set()
        self._wanted: list[str] = []  # sorted
        self._wide = FilterIndex()  # granted filters that can cover others
        self._granted_once: set[str] = set()

    def want(self, filter_: str) -> Change:
        """Add a wanted filter, and return the requests."""
        if not self._is_wanted(filter_):
            insort(self._wanted, filter_)
        asked = self._hold([filter_])
        return Change(asked, self._cover(filter_) if asked and filter_ in self._granted_once else [])

    def release(self, filter_: str) -> Change:
        """Remove a wanted filter, and return the requests."""
        if self._is_wanted(filter_):
            del self._wanted[bisect_left(self._wanted, filter_)]
        if filter_ not in self.held:
            return Change([], [])
        self.held.discard(filter_)
        return Change(self._uncover(filter_), [filter_])

    def granted(self, filter_: str) -> Change:
        """Note that the broker granted a filter, and return the covered ones to end."""
        if filter_ not in self.held or not _has_wildcard(filter_):
            return Change([], [])
        if len(self._granted_once) >= SEARCHED_MAX:
            self._granted_once.clear()
        self._granted_once.add(filter_)
        return Change([], self._cover(filter_))

    def refused(self, filter_: str) -> Change:
        """Note that the broker refuses a filter that it may have granted before.

        Return the covered filters to request.
        """
        self._granted_once.discard(filter_)
        return Change(self._uncover(filter_), [])

    def is_covered(self, filter_: str) -> bool:
        """Return whether a granted filter covers this one."""
        return self._is_covered(filter_)

    def _cover(self, filter_: str) -> list[str]:
        """Let a filter cover others, and return the redundant ones."""
        if len(self._alike(filter_)) > SEARCHED_MAX:
            return []
        self._wide.add(filter_)
        narrow = [other for other in self._below(filter_) if other in self.held and other != filter_]
        for other in narrow:
            self.held.discard(other)
            self._wide.discard(other)
        return narrow

    def _uncover(self, filter_: str) -> list[str]:
        if not self._wide.discard(filter_):
            return []
        return self._hold([other for other in self._below(filter_) if other not in self.held])

    def _hold(self, filters: list[str]) -> list[str]:
        new = [filter_ for filter_ in filters if filter_ not in self.held and not self._is_covered(filter_)]
        self.held.update(new)
        return new

    def _is_wanted(self, filter_: str) -> bool:
        at = bisect_left(self._wanted, filter_)
        return at < len(self._wanted) and self._wanted[at] == filter_

    def _is_covered(self, filter_: str) -> bool:
        name = "/".join([_ANY_LEVEL if level in ("+", "#") else level for level in filter_.split("/")])
        return any(covers(wide, filter_) for wide in self._wide.match(name))

    def _below(self, wide: str) -> list[str]:
        """Return the wanted filters that a filter covers, sorted."""
        return [other for at in self._alike(wide) if covers(wide, other := self._wanted[at])]

    def _alike(self, wide: str) -> range:
        """Return the positions of the wanted filters with the same beginning as one with wildcards."""
        # Without the last slash, because `a/#` also covers `a`.
        start = wide[: min(wide.find(wildcard) for wildcard in "+#" if wildcard in wide)].removesuffix("/")
        return range(bisect_left(self._wanted, start), bisect_left(self._wanted, start + _LAST_CHARACTER))


def _has_wildcard(filter_: str) -> bool:
    return "+" in filter_ or "#" in filter_
