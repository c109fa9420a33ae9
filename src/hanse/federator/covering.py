"""Which of the filters that are wanted at a broker to hold there: those that no other one covers.

A broker may send a publication once for each subscription that it matches (Mosquitto does). With `#` beside ten narrow
filters that is eleven writes, reads and comparisons for each message.

Rules:

- A filter is left out while one that covers it is granted: not before, as the broker may refuse that one, and what is
  wanted must not fall silent meanwhile. For the same reason one that is released ends only after those that it covered
  have been asked for; a broker takes the words of one session in order.
- What the broker has granted once it will grant again: where a queue stands before us its answer takes as long, and
  copies would make the queue longer.
- What a filter covers is looked for among those that begin like it, up to its first wildcard. Where these are more than
  `SEARCHED_MAX` it covers nothing: to end so many, and to ask for them again, costs more than copies do, of which a
  publication has as many as it matches filters.
"""

from bisect import bisect_left, insort
from typing import NamedTuple

from hanse.protocol.topics import covers
from hanse.protocol.trie import FilterIndex

# A search of this length takes a millisecond, each time that a filter with a wildcard comes or goes.
SEARCHED_MAX = 1_000

# In the place of each wildcard this makes a name that is matched by every filter that covers the one with wildcards.
_ANY_LEVEL = "\x01"
_LAST_CHARACTER = "\U0010ffff"


class Change(NamedTuple):
    """What to say to the broker: first all that is to be subscribed to, then what is to end."""

    subscribe: list[str]
    unsubscribe: list[str]


class Covering:
    """The filters of one session; no IO.

    Attributes:
        held: Those that the broker holds for us, or has been asked to.
    """

    def __init__(self) -> None:
        self.held: set[str] = set()
        self._wanted: list[str] = []  # sorted
        self._wide = FilterIndex()  # of those held, the granted ones that can cover others
        self._granted_once: set[str] = set()

    def want(self, filter_: str) -> Change:
        """A filter is wanted from now on."""
        if not self._is_wanted(filter_):
            insort(self._wanted, filter_)
        asked = self._hold([filter_])
        return Change(asked, self._cover(filter_) if asked and filter_ in self._granted_once else [])

    def release(self, filter_: str) -> Change:
        """A filter is not wanted any longer."""
        if self._is_wanted(filter_):
            del self._wanted[bisect_left(self._wanted, filter_)]
        if filter_ not in self.held:
            return Change([], [])
        self.held.discard(filter_)
        return Change(self._uncover(filter_), [filter_])

    def granted(self, filter_: str) -> Change:
        """The broker holds a filter: those that it covers can go."""
        if filter_ not in self.held or not _has_wildcard(filter_):
            return Change([], [])
        if len(self._granted_once) >= SEARCHED_MAX:
            self._granted_once.clear()
        self._granted_once.add(filter_)
        return Change([], self._cover(filter_))

    def refused(self, filter_: str) -> Change:
        """The broker will not hold a filter, though it may have done so before: what it covered is asked for."""
        self._granted_once.discard(filter_)
        return Change(self._uncover(filter_), [])

    def is_covered(self, filter_: str) -> bool:
        """Return whether a granted filter covers this one."""
        return self._is_covered(filter_)

    def _cover(self, filter_: str) -> list[str]:
        """From now on a filter covers others: those that can go."""
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
        """The wanted filters that a filter covers, sorted."""
        return [other for at in self._alike(wide) if covers(wide, other := self._wanted[at])]

    def _alike(self, wide: str) -> range:
        """The places of the wanted filters that begin like one with wildcards."""
        # Without the last slash, because `a/#` covers `a`, too.
        start = wide[: min(wide.find(wildcard) for wildcard in "+#" if wildcard in wide)].removesuffix("/")
        return range(bisect_left(self._wanted, start), bisect_left(self._wanted, start + _LAST_CHARACTER))


def _has_wildcard(filter_: str) -> bool:
    return "+" in filter_ or "#" in filter_
