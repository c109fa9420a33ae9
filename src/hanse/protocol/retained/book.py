"""The book: a federator's knowledge of each retained topic, bounded, and ready to be written to disk.

Rules:

- Per topic: the winner (version and digest), the value at the host broker (version and digest), its values before
  injections that it has not acknowledged, and the injections of the last minute. Values are not in the book.
- Each change of a topic gets the next number of the feed. Others request the changes since a number.
- A topic beyond `topics_max` is not added, but counted.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from hanse.protocol.retained.values import ABSENT
from hanse.protocol.retained.versions import Version, stamp_at
from hanse.protocol.trie import FilterIndex


class Injection(NamedTuple):
    """One value that this federator published at the host broker with RETAIN."""

    at_ms: int
    digest: int
    version: Version | None


class Entry:
    """One topic.

    Attributes:
        version, digest: the winner; `ABSENT` is a deletion. No version means that nothing is known.
        host, host_digest: version of the value at the host broker, if known, and its digest.
        qos: QoS of the winner. A look does not show it.
        is_kept: whether a look has shown a value of ours at the host broker, which thus retains our injections.
        sequence: number of the last change in the feed.
        changed_ms: wall time of the last change of the winner.
        priors: values at the host broker before each injection that it has not acknowledged.
        recent: injections of the last minute, oldest first.
    """

    __slots__ = (
        "changed_ms",
        "digest",
        "host",
        "host_digest",
        "is_kept",
        "priors",
        "qos",
        "recent",
        "sequence",
        "version",
    )

    def __init__(
        self,
        version: Version | None = None,
        digest: int = ABSENT,
        host: Version | None = None,
        host_digest: int = ABSENT,
        sequence: int = 0,
        changed_ms: int = 0,
        priors: tuple[int, ...] = (),
        recent: tuple[Injection, ...] = (),
        qos: int = 0,
        is_kept: bool = False,
    ) -> None:
        self.version = version
        self.digest = digest
        self.host = host
        self.host_digest = host_digest
        self.sequence = sequence
        self.changed_ms = changed_ms
        self.priors = priors
        self.recent = recent
        self.qos = qos
        self.is_kept = is_kept

    @property
    def is_tombstone(self) -> bool:
        """Return whether the winner is a deletion."""
        return self.version is not None and self.digest == ABSENT

    @property
    def is_settled(self) -> bool:
        """Return whether the host broker holds the winner."""
        return self.version is not None and self.digest == self.host_digest

    def __repr__(self) -> str:
        return f"Entry({self.version}, {self.digest:x}, host {self.host}, {self.host_digest:x}, priors {self.priors})"


class Book:
    """All topics that this federator knows.

    Args:
        epoch: epoch of a new feed; cursors of another epoch are ignored.
        topics_max: limit of the topics.
        counters: counters of `retained_book_full`.
    """

    def __init__(self, epoch: int, topics_max: int, counters: Counter[str]) -> None:
        self.epoch = epoch
        self.sequence = 0
        self.entries: dict[str, Entry] = {}
        self.dirty: set[str] = set()
        # The feed in order: (number, topic). A row counts while the topic's last change has this number.
        self._feed: list[tuple[int, str]] = []
        self._is_ordered = True
        self._topics_max = topics_max
        self._counters = counters

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, topic: str) -> Entry | None:
        """Return a topic's entry."""
        return self.entries.get(topic)

    def open(self, topic: str) -> Entry | None:
        """Return a topic's entry, created if necessary; None if the book is full."""
        entry = self.entries.get(topic)
        if entry is None:
            if len(self.entries) >= self._topics_max:
                self._counters["retained_book_full"] += 1
                return None
            entry = self.entries[topic] = Entry()
        return entry

    def note(self, topic: str, entry: Entry, wall_ms: int) -> None:
        """Note that an entry changed: it moves to the end of the feed, and must be written."""
        # Wall time keeps the numbers rising over a restart, even if the topic with the largest one was dropped.
        self.sequence = entry.sequence = max(self.sequence + 1, stamp_at(wall_ms))
        self.dirty.add(topic)
        self._feed.append((entry.sequence, topic))
        if len(self._feed) > 2 * len(self.entries) + 1_000:
            self._order()

    def _order(self) -> None:
        self._feed = sorted((entry.sequence, topic) for topic, entry in self.entries.items())

    def drop(self, topic: str) -> None:
        """Forget a topic."""
        if self.entries.pop(topic, None) is not None:
            self.dirty.add(topic)

    def restore(self, topic: str, entry: Entry) -> None:
        """Add an entry from disk."""
        if self.open(topic) is not None:
            self.entries[topic] = entry
            self.sequence = max(self.sequence, entry.sequence)
            # Records come in the order of topics: the feed is sorted when it is asked for.
            self._is_ordered = False

    def matching(self, filters: Iterable[str]) -> set[str]:
        """Return the topics that any of the filters matches."""
        found: set[str] = set()
        wild = FilterIndex()
        for filter_ in filters:
            if "+" in filter_ or "#" in filter_:
                wild.add(filter_)
            elif filter_ in self.entries:
                found.add(filter_)
        if len(wild):
            found.update(topic for topic in self.entries if wild.match(topic))
        return found

    def changed_since(self, filters: Iterable[str], sequence: int, limit: int | None = None) -> list[str]:
        """Return the topics under the filters that changed after a number of the feed, in the order of the feed.

        At most `limit` of them, so that a part of a long answer does not cost as much as all of it.
        """
        found: list[str] = []
        if sequence >= self.sequence:
            return found
        if not self._is_ordered:
            self._is_ordered = True
            self._order()
        index = FilterIndex()
        for filter_ in filters:
            index.add(filter_)
        entries = self.entries
        for at in range(bisect_right(self._feed, sequence, key=itemgetter(0)), len(self._feed)):
            number, topic = self._feed[at]
            entry = entries.get(topic)
            if entry is not None and entry.sequence == number and index.match(topic):
                found.append(topic)
                if len(found) == limit:
                    break
        return found
