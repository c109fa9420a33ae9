import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.errors import LocalError, RemoteError
from hanse.protocol import trie
from hanse.protocol.topics import LEVELS_MAX, check_filter, matches
from hanse.protocol.trie import FilterIndex, MatchCache

BOUNDED = settings(max_examples=examples(200), deadline=None)

LEVEL = st.sampled_from(["", "a", "b", "$c"])
NAMES = st.lists(LEVEL, min_size=1, max_size=6).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(LEVEL | st.just("+"), max_size=6))
    if draw(st.booleans()) or not "/".join(levels):
        levels.append("#")
    return "/".join(levels)


def index_of(*filters_: str) -> FilterIndex:
    index = FilterIndex()
    for filter_ in filters_:
        assert index.add(filter_)
    return index


def naive(index: FilterIndex, topic: str) -> tuple[str, ...]:
    return tuple(sorted(filter_ for filter_ in index if matches(filter_, topic)))


def count_nodes(index: FilterIndex) -> int:
    """Count the nodes below the root and check that each is one where filters diverge."""
    count = 0
    open_ = [way for way in index._root.values() if isinstance(way, dict)]
    while open_:
        node = open_.pop()
        count += 1
        assert len(node.keys() - {trie._LABEL}) >= 2, node
        open_.extend(way for way in node.values() if isinstance(way, dict))
    return count


@pytest.mark.parametrize(
    ("filters_", "topic", "expected"),
    [
        ([], "a", ()),
        (["a"], "a", ("a",)),
        (["a"], "b", ()),
        (["a", "+", "#", "+/#", "a/#", "a/b"], "a", ("#", "+", "+/#", "a", "a/#")),
        (["a/+", "a/+/#", "a/+/c", "a/#"], "a/b", ("a/#", "a/+", "a/+/#")),
        (["a/+", "a/+/#", "a/+/c", "a/#"], "a", ("a/#",)),
        (["+/x", "#", "$SYS/#", "$SYS/+", "$SYS/x"], "$SYS/x", ("$SYS/#", "$SYS/+", "$SYS/x")),
        (["+/x", "#"], "$SYS/x", ()),
        (["+/+", "/+", "+/", "/#"], "/", ("+/", "+/+", "/#", "/+")),
        (["a/b/c/+/x", "a/b/c/+/y"], "a/b/c/d/y", ("a/b/c/+/y",)),
        (["a/b/c/+/x", "a/b/c/+/y"], "a/b/z/d/y", ()),
        (["a/b/c/+/x", "a/b/c/+/y"], "a/b", ()),
        (["a//+/x", "a//+/y"], "a//b/x", ("a//+/x",)),
        (["<script>/#", "../+"], "../a", ("../+",)),
        (["a/+/c/#"], "a/b/c", ("a/+/c/#",)),
        (["a/+/c/#"], "a/b/c/d/e", ("a/+/c/#",)),
        (["a/+/c/#"], "a/b", ()),
    ],
)
def test_an_index_finds_all_matching_filters_in_order(
    filters_: list[str], topic: str, expected: tuple[str, ...]
) -> None:
    for order in itertools.islice(itertools.permutations(filters_), 24):
        index = index_of(*order)
        assert index.match(topic) == expected
        assert naive(index, topic) == expected


def test_a_filter_is_added_and_discarded_once() -> None:
    index = FilterIndex()
    for filter_ in ("a/b", "a/+"):
        assert index.add(filter_)
        assert not index.add(filter_)
        assert filter_ in index
        assert index.discard(filter_)
        assert not index.discard(filter_)
        assert filter_ not in index
    assert index.match("a/b") == ()
    assert len(index) == 0


def test_an_index_is_iterated_in_sorted_order() -> None:
    assert list(index_of("b", "+/a", "a", "#")) == ["#", "+/a", "a", "b"]


@pytest.mark.parametrize("filter_", ["", "a/#/b", "a+", "a\0", "\ud800", "/" * LEVELS_MAX, "$share/g", "$share/g/a"])
def test_an_invalid_or_shared_filter_is_refused_and_leaves_the_index_unchanged(filter_: str) -> None:
    index = index_of("a/+")
    with pytest.raises(RemoteError):
        index.add(filter_)
    assert list(index) == ["a/+"]
    assert not index.discard(filter_)
    assert filter_ not in index


@pytest.mark.parametrize("topic", ["+", "#", "a/+", "a/#", "a/+/c"])
def test_a_name_with_wildcards_matches_nothing(topic: str) -> None:
    assert index_of("+", "#", "a/+", "a/#", "a/+/c", "a/+/d").match(topic) == ()


def test_filters_without_wildcards_cost_no_node() -> None:
    index = index_of(*(f"plant/{number}/temp" for number in range(1_000)))
    assert index._root == {}
    assert index.match("plant/7/temp") == ("plant/7/temp",)
    assert index.match("plant/7") == ()


def test_two_hundred_levels_neither_recurse_nor_cost_a_node_each() -> None:
    stem = "a/" * (LEVELS_MAX - 2)
    index = index_of(f"{stem}+/x", f"{stem}+/y", "+/" * (LEVELS_MAX - 1) + "#", "/".join("+" * LEVELS_MAX))
    assert count_nodes(index) == 2
    assert index.match(f"{stem}b/y") == naive(index, f"{stem}b/y")
    assert len(index.match(f"{stem}b/y")) == 3
    assert index.match("a/" * 2_000 + "a") == ("+/" * (LEVELS_MAX - 1) + "#",)
    for filter_ in list(index):
        index.discard(filter_)
    assert index._root == {}


@pytest.mark.parametrize(
    ("filters_", "leaving"),
    [
        (["+/a", "+/b"], "+/a"),  # a lone filter takes the node's place
        (["+/a/b/c", "+/a/b/d", "+/a/b/e"], "+/a/b/e"),  # filters diverge here still, below the same label
        (["+/a/b/c/d", "+/a/b/c/e", "+/a/x"], "+/a/x"),  # two labels and the level between them become one
        (["+/a", "+/a/b", "+/a/c"], "+/a"),  # the one that ended here leaves
        (["+//a", "+//b", "+/"], "+/"),  # a label of one empty level
        (["+", "a/#"], "a/#"),  # the root has no place to give
    ],
)
def test_the_trie_closes_where_a_filter_leaves(filters_: list[str], leaving: str) -> None:
    index = index_of(*filters_)
    assert index.discard(leaving)
    assert index._root == index_of(*(filter_ for filter_ in filters_ if filter_ != leaving))._root
    count_nodes(index)
    for topic in ("z/a", "z/b", "z/a/b", "z/a/b/c", "z/a/b/d", "z/a/b/c/e", "z/", "z//b", "z"):
        assert index.match(topic) == naive(index, topic)


@BOUNDED
@given(st.sets(filters(), max_size=20), st.lists(NAMES, min_size=1, max_size=8))
def test_an_index_answers_like_the_naive_matcher(filters_: set[str], topics: list[str]) -> None:
    index = index_of(*sorted(filters_))
    count_nodes(index)
    for topic in topics:
        assert index.match(topic) == naive(index, topic)


@BOUNDED
@given(st.lists(st.tuples(st.booleans(), filters()), max_size=40))
def test_after_any_changes_an_index_equals_one_built_anew(changes: list[tuple[bool, str]]) -> None:
    index = FilterIndex()
    kept: set[str] = set()
    for is_addition, filter_ in changes:
        if is_addition:
            assert index.add(filter_) == (filter_ not in kept)
            kept.add(filter_)
        else:
            assert index.discard(filter_) == (filter_ in kept)
            kept.discard(filter_)
    anew = index_of(*sorted(kept, reverse=True))
    assert index._root == anew._root
    assert list(index) == list(anew) == sorted(kept)
    assert count_nodes(index) < max(1, len(index))


@BOUNDED
@given(st.lists(filters(), unique=True, min_size=1, max_size=20))
def test_an_emptied_index_keeps_no_node(filters_: list[str]) -> None:
    index = index_of(*sorted(filters_))
    for filter_ in filters_:
        assert index.discard(filter_)
        count_nodes(index)
    assert index._root == {}


@BOUNDED
@given(st.text("a+#/$\0é", max_size=12), st.text("a+#/$\0é", max_size=12))
def test_any_text_is_indexed_or_refused_and_any_topic_answered(filter_: str, topic: str) -> None:
    index = index_of("a/+/a", "a/+/é", "#")
    try:
        index.add(filter_)
    except RemoteError:
        assert filter_ not in index
    else:
        check_filter(filter_)
    assert set(index.match(topic)) <= set(index)


def test_a_cache_answers_like_its_index_and_asks_it_once() -> None:
    index = index_of("a/+", "a/b")
    cache = MatchCache(index)
    assert cache.match("a/b") == cache.match("a/b") == ("a/+", "a/b")
    assert cache.match("x") == cache.match("x") == ()
    assert cache.misses == 2
    assert len(cache) == 2


def test_every_change_of_the_index_empties_every_cache() -> None:
    index = index_of("a/b")
    caches = [MatchCache(index), MatchCache(index)]
    for cache in caches:
        assert cache.match("a/b") == ("a/b",)
    index.add("a/+")
    for cache in caches:
        assert cache.match("a/b") == ("a/+", "a/b")
    index.discard("a/b")
    for cache in caches:
        assert cache.match("a/b") == ("a/+",)
        assert cache.cleared_changed == 2
        assert cache.cleared_full == 0


def test_a_change_without_effect_keeps_the_cache() -> None:
    index = index_of("a/b")
    cache = MatchCache(index)
    cache.match("a/b")
    index.add("a/b")
    index.discard("nobody")
    assert len(cache) == 1
    assert cache.cleared_changed == 0


def test_a_change_with_nothing_cached_is_not_counted() -> None:
    index = FilterIndex()
    cache = MatchCache(index)
    index.add("a")
    assert cache.cleared_changed == 0


def test_a_full_cache_is_emptied_and_counted() -> None:
    cache = MatchCache(index_of("+"), entries_max=3)
    for number in range(7):
        assert cache.match(str(number)) == ("+",)
        assert len(cache) <= 3
    assert cache.cleared_full == 2
    assert cache.match("6") == ("+",)
    assert cache.misses == 7


def test_cached_answers_are_bounded_by_the_filters_that_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trie, "CACHE_MATCHES_MAX", 4)
    index = index_of("+", "#")
    cache = MatchCache(index)
    for topic in ("a", "b", "c", "d", "e"):
        assert cache.match(topic) == ("#", "+")
    assert cache.cleared_full == 2
    assert len(cache) == 1
    for filter_ in ("+/#", "c", "c/#"):
        index.add(filter_)
    assert len(cache.match("c")) == 5
    assert len(cache) == 0


def test_a_long_topic_is_answered_and_not_cached() -> None:
    cache = MatchCache(index_of("#"))
    topic = "a" * (trie.CACHE_TOPIC_CHARACTERS_MAX + 1)
    assert cache.match(topic) == cache.match(topic) == ("#",)
    assert len(cache) == 0
    assert cache.misses == 2


def test_a_cache_without_capacity_is_refused() -> None:
    with pytest.raises(LocalError, match="cache of 0 entries"):
        MatchCache(FilterIndex(), entries_max=0)


def test_all_ways_to_the_end_of_a_topic_are_followed() -> None:
    index = index_of("a/b/#", "a/b/+/x", "+/b/#", "+/b/+/x", "a/+/#", "a/+/+/x")
    assert MatchCache(index).match("a/b") == ("+/b/#", "a/+/#", "a/b/#")
