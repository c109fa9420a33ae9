"""The topics of each broker, as discovery has seen them: bounded, and matched by filters.

Rules:

1. The table is bounded in topics and in estimated bytes, over all brokers together. Further topics are counted and left
   out; they can enter when others have expired.
2. A sight has a time. A *published* sight came while a client published; a *retained* one came because of a
   subscription, and may be years old. A topic's home is the broker where it was published last. Without such a sight,
   every broker that retains the topic counts as its home.
3. Levels with topics below keep totals, so that `a/#` is answered without a walk. A filter with `+` takes at most
   `STEPS_MAX` steps, a millisecond or two, however many topics there are. Beyond that the answer is a sample.
4. The table does no IO and reads no clock.
"""

from collections.abc import Iterator
from typing import Final

from hanse.protocol.topics import split_share

TOPICS_MAX: Final = 100_000
BYTES_MAX: Final = 64 << 20
STEPS_MAX: Final = 4_000

# Estimates, from tracemalloc with CPython 3.11: tests/gateway/test_topics.py compares them. A level costs its object
# and a place in its parent's dictionary; the first level below another gives that one dictionaries; a sight has one.
_LEVEL_BYTES: Final = 150
_PARENT_BYTES: Final = 350
_SIGHT_BYTES: Final = 300

_NEVER: Final = float("-inf")


class Presence:
    """Relation of one broker to the topics that match a filter.

    Attributes:
        topics: how many of them it has.
        homes: of how many it is the home (rule 2).
    """

    __slots__ = ("homes", "topics")

    def __init__(self, topics: int = 0, homes: int = 0) -> None:
        self.topics = topics
        self.homes = homes

    def __repr__(self) -> str:
        return f"Presence(topics={self.topics}, homes={self.homes})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Presence) and (self.topics, self.homes) == (other.topics, other.homes)

    __hash__ = None  # type: ignore[assignment]


class _Sight:
    __slots__ = ("is_home", "published_at", "seen_at")

    def __init__(self) -> None:
        self.seen_at = _NEVER
        self.published_at = _NEVER
        self.is_home = False


class _Level:
    """One level of topics.

    Attributes:
        sights: of the topic that ends here, by broker.
        below: further levels.
        totals: of this topic and all below; None without levels below, where `sights` says it.
    """

    __slots__ = ("below", "sights", "totals")

    def __init__(self) -> None:
        self.below: dict[str, _Level] | None = None
        self.sights: dict[str, _Sight] | None = None
        self.totals: dict[str, Presence] | None = None


class Topics:
    """The table of one gateway.

    Attributes:
        count: topics, each once per broker that has it.
        size_bytes: estimate of what they take.
        dropped: sights that were left out because the table was full.
        version: grows whenever a topic comes, goes or changes its home.
    """

    def __init__(self, topics_max: int = TOPICS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._topics_max = topics_max
        self._bytes_max = bytes_max
        self._root = _Level()
        self._counts: dict[str, int] = {}
        self.count = 0
        self.size_bytes = 0
        self.dropped = 0
        self.version = 0

    def saw(self, broker_id: str, topic: str, now: float, *, is_retained: bool) -> bool:
        """Note that a broker has a topic; return whether there was a place for it (rule 1)."""
        path = self._path(topic)
        level = path[-1]
        is_known = len(path) == topic.count("/") + 2
        sight = level.sights.get(broker_id) if is_known and level.sights is not None else None
        if sight is None:
            added = self._add(broker_id, topic, path)
            if added is None:
                return False
            sight = added
        sight.seen_at = now
        if not is_retained:
            sight.published_at = now
            self._settle(path)
        return True

    def _path(self, topic: str) -> list[_Level]:
        """Return the levels of a topic from the root on, as far as there are any."""
        path = [self._root]
        for name in topic.split("/"):
            below = path[-1].below
            found = None if below is None else below.get(name)
            if found is None:
                break
            path.append(found)
        return path

    def _add(self, broker_id: str, topic: str, path: list[_Level]) -> _Sight | None:
        """Add a topic of a broker; `path` is extended to it. None if there is no place."""
        missing = topic.split("/")[len(path) - 1 :]
        size_bytes = _SIGHT_BYTES + sum(_LEVEL_BYTES + len(name) for name in missing)
        if missing:
            size_bytes += _PARENT_BYTES * (len(missing) - (1 if path[-1].below is not None else 0))
        if self.count >= self._topics_max or self.size_bytes + size_bytes > self._bytes_max:
            self.dropped += 1
            return None
        for name in missing:
            parent = path[-1]
            if parent.below is None:
                parent.below = {}
                parent.totals = {one: Presence(1, int(sight.is_home)) for one, sight in (parent.sights or {}).items()}
            made = parent.below[name] = _Level()
            path.append(made)
        level = path[-1]
        if level.sights is None:
            level.sights = {}
        sight = level.sights[broker_id] = _Sight()
        for one in path:
            if one.totals is not None:
                total = one.totals.get(broker_id)
                if total is None:
                    total = one.totals[broker_id] = Presence()
                total.topics += 1
        self.count += 1
        self._counts[broker_id] = self._counts.get(broker_id, 0) + 1
        self.size_bytes += size_bytes
        self.version += 1
        self._settle(path)
        return sight

    def _settle(self, path: list[_Level]) -> None:
        """Decide which brokers are the topic's home (rule 2)."""
        sights = path[-1].sights
        assert sights is not None
        newest = max(sight.published_at for sight in sights.values())
        for broker_id, sight in sights.items():
            is_home = sight.published_at == newest
            if is_home is sight.is_home:
                continue
            sight.is_home = is_home
            self.version += 1
            for level in path:
                if level.totals is not None:
                    level.totals[broker_id].homes += 1 if is_home else -1

    def expire(self, broker_id: str, seen_before: float) -> int:
        """Forget the topics of a broker that were last seen before this time; return how many."""
        gone = [
            topic
            for topic, level in self._walk()
            if level.sights is not None and broker_id in level.sights and level.sights[broker_id].seen_at < seen_before
        ]
        for topic in gone:
            self._remove(broker_id, topic)
        return len(gone)

    def forget(self, broker_id: str) -> int:
        """Forget a broker; return how many topics it had."""
        return self.expire(broker_id, float("inf"))

    def _remove(self, broker_id: str, topic: str) -> None:
        levels = topic.split("/")
        path = self._path(topic)
        sights = path[-1].sights
        assert sights is not None
        sight = sights.pop(broker_id)
        for level in path:
            if level.totals is not None:
                total = level.totals[broker_id]
                total.topics -= 1
                total.homes -= sight.is_home
                if not total.topics:
                    del level.totals[broker_id]
        self.size_bytes -= _SIGHT_BYTES
        self.count -= 1
        self._counts[broker_id] -= 1
        if not self._counts[broker_id]:
            del self._counts[broker_id]
        self.version += 1
        if sights:
            self._settle(path)
            return
        for depth in range(len(levels), 0, -1):
            level = path[depth]
            if level.sights or level.below:
                break
            above = path[depth - 1]
            assert above.below is not None
            del above.below[levels[depth - 1]]
            self.size_bytes -= _LEVEL_BYTES + len(levels[depth - 1])
            if not above.below:
                above.below = above.totals = None
                self.size_bytes -= _PARENT_BYTES

    def counts(self) -> dict[str, int]:
        """Return the number of topics of each broker that has any."""
        return dict(self._counts)

    def topics_of(self, broker_id: str) -> list[str]:
        """Return the topics of a broker, sorted."""
        return sorted(topic for topic, level in self._walk() if level.sights is not None and broker_id in level.sights)

    def presence(self, filter_: str) -> dict[str, Presence]:
        """Return what each broker has of the topics that match a filter (rules 2 and 3)."""
        found: dict[str, Presence] = {}
        wanted = split_share(filter_)[1].split("/")
        for level, is_whole in self._matching(wanted):
            if is_whole and level.totals is not None:
                for broker_id, total in level.totals.items():
                    _count(found, broker_id, total.topics, total.homes)
            elif level.sights:
                for broker_id, sight in level.sights.items():
                    _count(found, broker_id, 1, int(sight.is_home))
        return found

    def _matching(self, wanted: list[str]) -> Iterator[tuple[_Level, bool]]:
        """Yield the levels whose topics match a filter (MQTT 5, 4.7), and whether everything below matches as well."""
        steps = 0
        stack: list[tuple[Iterator[_Level], int]] = [(iter((self._root,)), 0)]
        while stack and steps < STEPS_MAX:
            level = next(stack[-1][0], None)
            depth = stack[-1][1]
            if level is None:
                stack.pop()
                continue
            steps += 1
            if depth == len(wanted):
                yield level, False
                continue
            name = wanted[depth]
            if name == "#":
                if depth:
                    yield level, True
                else:
                    # 4.7.2: a wildcard at the first level hides names that begin with $.
                    for key, below in (level.below or {}).items():
                        if not key.startswith("$"):
                            yield below, True
            elif level.below is None:
                continue
            elif name == "+":
                if depth:
                    stack.append((iter(level.below.values()), depth + 1))
                else:
                    shown = (below for key, below in level.below.items() if not key.startswith("$"))
                    stack.append((shown, depth + 1))
            elif (exact := level.below.get(name)) is not None:
                stack.append((iter((exact,)), depth + 1))

    def _walk(self) -> Iterator[tuple[str, _Level]]:
        """Give every level with the topic that ends there."""
        stack = list((self._root.below or {}).items())
        while stack:
            topic, level = stack.pop()
            yield topic, level
            if level.below:
                stack += [(f"{topic}/{name}", below) for name, below in level.below.items()]


def _count(found: dict[str, Presence], broker_id: str, topics: int, homes: int) -> None:
    presence = found.get(broker_id)
    if presence is None:
        found[broker_id] = Presence(topics, homes)
    else:
        presence.topics += topics
        presence.homes += homes
