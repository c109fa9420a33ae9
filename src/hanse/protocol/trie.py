"""An index of topic filters that finds all filters that match a topic, and a cache in front of it.

The rules:

- A filter without wildcards is one entry of a set and costs no trie node. A valid topic has no wildcards, so one set of
  all filters answers both "is it here" and "which plain filter matches".
- Filters with wildcards are in a trie of plain dicts, level by level. A node exists only where filters diverge: an edge
  that leads to one filter *is* that filter (a `str` in place of a dict), and levels that all filters below a node share
  are one label in it. So there are fewer nodes than filters, however deep these are, and the trie is the same
  whatever the order of additions and removals.
- Nothing recurses: a filter of 200 levels costs a loop, not a stack.
- Only valid filters get in, and no shared subscription, because no topic could match its share name.
- Answers are sorted, so that decisions that follow from them are the same in every run.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from hanse.errors import LocalError, RemoteError
from hanse.protocol.topics import SHARE_PREFIX, check_filter

# From a level to the node below, or to the only filter below.
_Node: TypeAlias = "dict[str, _Way]"
_Way: TypeAlias = "_Node | str"

# Two keys that no level can be, because of their slashes: of the filter that ends at a node where others go on, and of
# the label, which holds the levels between the key that leads to a node and the level at which the filters below it
# diverge.
_END = "/"
_LABEL = "//"

# Larger: more distinct topics stay quick, at about 200 bytes each. Smaller: the cache is emptied more often. A plant
# with more than 65,536 live topics at one broker still pays the uncached price only now and then.
CACHE_ENTRIES_MAX = 65_536

# Filters named by all cached answers together, 8 bytes each. Without this bound, topics that match 1,000 filters each
# would fill half a gigabyte.
CACHE_MATCHES_MAX = 1_048_576

# Longer topics are matched each time: 65,536 of 65,535 bytes would be four gigabytes of keys.
CACHE_TOPIC_CHARACTERS_MAX = 1_024


class FilterIndex:
    """A set of topic filters that finds those that match a topic."""

    __slots__ = ("_filters", "_root", "_watchers")

    def __init__(self) -> None:
        self._filters: set[str] = set()
        self._root: _Node = {}
        self._watchers: list[Callable[[], None]] = []

    def add(self, filter_: str) -> bool:
        """Add a filter. Return False if it is there already.

        Raises:
            RemoteError: If the filter is not valid, or is a shared subscription: `split_share` gives the filter
                behind it.
        """
        if filter_ in self._filters:
            return False
        check_filter(filter_)
        if filter_.startswith(SHARE_PREFIX):
            raise RemoteError(
                f"The shared subscription {filter_[:60]!a} cannot be indexed; expected the filter behind its "
                "share name."
            )
        self._filters.add(filter_)
        if _has_wildcard(filter_):
            self._grow(filter_)
        self._tell_watchers()
        return True

    def discard(self, filter_: str) -> bool:
        """Remove a filter. Return False if it is not there."""
        if filter_ not in self._filters:
            return False
        self._filters.remove(filter_)
        if _has_wildcard(filter_):
            self._prune(filter_)
        self._tell_watchers()
        return True

    def match(self, topic: str) -> tuple[str, ...]:
        """Return all filters that match the topic name, sorted, and none if it has wildcards and so is no name."""
        if "+" in topic or "#" in topic:
            return ()
        if not self._root:
            return (topic,) if topic in self._filters else ()
        found = self._match_wildcards(topic)
        if topic in self._filters:
            found.append(topic)
        found.sort()
        return tuple(found)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after every change, for as long as the index lives."""
        self._watchers.append(changed)

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, filter_: object) -> bool:
        return filter_ in self._filters

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._filters))

    def _match_wildcards(self, topic: str) -> list[str]:
        # Hot while the cache is cold: no call except for a label or a lone filter. 7 us in bench/bench_match.py.
        found: list[str] = []
        levels = topic.split("/")
        root = self._root
        # MQTT 5, 4.7.2: a wildcard at the first level does not match a name that begins with $.
        if topic.startswith("$"):
            root = {levels[0]: root[levels[0]]} if levels[0] in root else {}
        open_ = [(root, 0)]
        while open_:
            node, depth = open_.pop()
            rest = node.get("#")
            if type(rest) is str:
                found.append(rest)  # 4.7.1.2: also at the end of the topic, because a/# matches its parent a
            if depth == len(levels):
                end = node.get(_END)
                if type(end) is str:
                    found.append(end)
                continue
            for way in (node.get(levels[depth]), node.get("+")):
                if type(way) is dict:
                    label = way.get(_LABEL)
                    if type(label) is not str:
                        open_.append((way, depth + 1))
                    elif below := _below_label(label, levels, depth + 1):
                        open_.append((way, below))
                elif type(way) is str and _rest_matches(way, levels, depth + 1):
                    found.append(way)
        return found

    def _grow(self, filter_: str) -> None:
        levels = filter_.split("/")
        node = self._root
        depth = 0
        while True:
            key = _key(levels, depth)
            depth += 1
            way = node.get(key)
            if way is None:
                node[key] = filter_
                return
            others = way.split("/")[depth:] if isinstance(way, str) else _label(way)
            shared = _count_shared(levels[depth:], others)
            depth += shared
            if isinstance(way, dict):
                if shared == len(others):
                    node = way
                    continue
                # The new filter diverges within the label. The rest of the label moves below the new branch.
                _set_label(way, others[shared + 1 :])
            branch: _Node = {_key(others, shared): way, _key(levels, depth): filter_}
            _set_label(branch, others[:shared])
            node[key] = branch
            return

    def _prune(self, filter_: str) -> None:
        levels = filter_.split("/")
        node, key, depth = self._root, levels[0], 1
        above, key_above = node, key
        while isinstance(way := node[key], dict):
            above, key_above, node = node, key, way
            depth += len(_label(node))
            key = _key(levels, depth)
            depth += 1
        del node[key]
        if node is self._root:
            return
        label = _label(node)
        node.pop(_LABEL, None)
        if len(node) > 1:
            _set_label(node, label)
            return
        # Filters no longer diverge here. What is left takes the node's place.
        ((level, last),) = node.items()
        if isinstance(last, dict):
            _set_label(last, [*label, level, *_label(last)])
        above[key_above] = last

    def _tell_watchers(self) -> None:
        for changed in self._watchers:
            changed()


class MatchCache:
    """Cache of an index's answers by topic, until the index changes.

    It is emptied whenever it is full. The topics in use are back after one uncached match each, and a hit stays one
    lookup in a dict, with no list to keep in order of use.

    Attributes:
        misses: Answers that had to be looked up in the index.
        cleared_full: Times that it was emptied because a bound was reached.
        cleared_changed: Times that it was emptied, with something in it, because the index changed.
    """

    __slots__ = ("_entries_max", "_found", "_index", "_matches", "cleared_changed", "cleared_full", "misses")

    def __init__(self, index: FilterIndex, entries_max: int = CACHE_ENTRIES_MAX) -> None:
        if entries_max < 1:
            raise LocalError(f"A match cache of {entries_max} entries was asked for; expected at least 1.")
        self._index = index
        self._entries_max = entries_max
        self._found: dict[str, tuple[str, ...]] = {}
        self._matches = 0
        self.misses = 0
        self.cleared_full = 0
        self.cleared_changed = 0
        index.watch(self._forget_changed)

    def match(self, topic: str) -> tuple[str, ...]:
        """Return all filters of the index that match the topic name, sorted."""
        found = self._found.get(topic)
        return self._look_up(topic) if found is None else found

    def __len__(self) -> int:
        return len(self._found)

    def _look_up(self, topic: str) -> tuple[str, ...]:
        self.misses += 1
        found = self._index.match(topic)
        if len(topic) > CACHE_TOPIC_CHARACTERS_MAX or len(found) > CACHE_MATCHES_MAX:
            return found
        if len(self._found) >= self._entries_max or self._matches + len(found) > CACHE_MATCHES_MAX:
            self._forget()
            self.cleared_full += 1
        self._found[topic] = found
        self._matches += len(found)
        return found

    def _forget(self) -> None:
        self._found.clear()
        self._matches = 0

    def _forget_changed(self) -> None:
        if self._found:
            self._forget()
            self.cleared_changed += 1


def _has_wildcard(filter_: str) -> bool:
    return "+" in filter_ or "#" in filter_


def _key(levels: list[str], depth: int) -> str:
    return levels[depth] if depth < len(levels) else _END


def _label(node: _Node) -> list[str]:
    label = node.get(_LABEL)
    return label.split("/") if isinstance(label, str) else []


def _set_label(node: _Node, levels: list[str]) -> None:
    # Kept as text, which is smaller than a tuple of levels. One empty level ("") is still a label.
    if levels:
        node[_LABEL] = "/".join(levels)
    else:
        node.pop(_LABEL, None)


def _count_shared(levels: list[str], others: list[str]) -> int:
    """Return how many levels two lists have in common at their beginning."""
    count = 0
    for level, other in zip(levels, others, strict=False):
        if level != other:
            break
        count += 1
    return count


def _below_label(label: str, levels: list[str], depth: int) -> int:
    """Return the depth below a label that matches the topic's levels from `depth` on, or 0 if it does not match."""
    wanted = label.split("/")
    below = depth + len(wanted)
    if below > len(levels):
        return 0
    for position, level in enumerate(wanted, start=depth):
        if level not in ("+", levels[position]):
            return 0
    return below


def _rest_matches(filter_: str, levels: list[str], depth: int) -> bool:
    """Return whether a filter whose first `depth` levels match does so to its end. `depth` is at least 1."""
    wanted = filter_.split("/")
    for position in range(depth, len(wanted)):
        level = wanted[position]
        if level == "#":
            return True
        if position == len(levels) or level not in ("+", levels[position]):
            return False
    return len(wanted) == len(levels)
