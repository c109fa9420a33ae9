"""The table of topics against a plain model, and its bounds."""

import tracemalloc
from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.budget import examples

from hanse.gateway.discovery.topics import STEPS_MAX, Presence, Topics
from hanse.protocol.topics import matches

LEVELS = st.sampled_from(["a", "b", "", "$SYS", "c"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
WANTED = st.lists(st.sampled_from(["a", "b", "", "$SYS", "+"]), min_size=1, max_size=4)
FILTERS = st.tuples(WANTED, st.sampled_from(["", "/#"])).map(lambda one: "/".join(one[0]) + one[1]).filter(bool)
BROKERS = st.sampled_from(["x", "y", "z"])


class TableAgainstModel(RuleBasedStateMachine):
    """A dictionary of all sights, which answers every question by a search through all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Topics()
        self.model: dict[str, dict[str, list[float]]] = defaultdict(dict)
        self.now = 0.0

    @rule(broker=BROKERS, topic=NAMES, is_retained=st.booleans())
    def see(self, broker: str, topic: str, is_retained: bool) -> None:
        self.now += 1
        assert self.table.saw(broker, topic, self.now, is_retained=is_retained)
        sight = self.model[topic].setdefault(broker, [0.0, -1.0])
        sight[0] = self.now
        if not is_retained:
            sight[1] = self.now

    @rule(broker=BROKERS, age=st.integers(0, 12))
    def expire(self, broker: str, age: int) -> None:
        before = self.now - age
        gone = [topic for topic, sights in self.model.items() if broker in sights and sights[broker][0] < before]
        for topic in gone:
            del self.model[topic][broker]
        assert self.table.expire(broker, before) == len(gone)

    @rule(filter_=st.one_of(FILTERS, st.just("#"), NAMES))
    def ask(self, filter_: str) -> None:
        expected: dict[str, Presence] = {}
        for topic, sights in self.model.items():
            if sights and matches(filter_, topic):
                newest = max(published for _, published in sights.values())
                for broker, (_, published) in sights.items():
                    one = expected.setdefault(broker, Presence())
                    one.topics += 1
                    one.homes += published == newest
        assert self.table.presence(filter_) == expected
        assert self.table.presence(f"$share/group/{filter_}") == expected

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        by_broker: dict[str, list[str]] = defaultdict(list)
        for topic, sights in self.model.items():
            for broker in sights:
                by_broker[broker].append(topic)
        assert self.table.counts() == {broker: len(topics) for broker, topics in by_broker.items()}
        assert self.table.count == sum(map(len, by_broker.values()))
        for broker, topics in by_broker.items():
            assert self.table.topics_of(broker) == sorted(topics)
        if not by_broker:
            assert self.table.size_bytes == 0


TestTable = TableAgainstModel.TestCase
TestTable.settings = settings(max_examples=examples(300), stateful_step_count=30, deadline=None)


def test_a_moved_topic_has_its_home_where_it_was_published_last() -> None:
    table = Topics()
    table.saw("old", "a/t", 1.0, is_retained=False)
    table.saw("new", "a/t", 2.0, is_retained=True)
    assert table.presence("a/t") == {"old": Presence(1, 1), "new": Presence(1, 0)}
    version = table.version
    table.saw("new", "a/t", 3.0, is_retained=False)
    assert table.presence("a/#") == {"old": Presence(1, 0), "new": Presence(1, 1)}
    assert table.version > version
    version = table.version
    table.saw("new", "a/t", 4.0, is_retained=False)
    assert table.version == version
    table.forget("new")
    assert table.presence("a/t") == {"old": Presence(1, 1)}


def test_a_full_table_counts_omitted_topics_and_accepts_more_after_an_expiry() -> None:
    table = Topics(topics_max=3)
    assert [table.saw("x", f"t/{k}", 1.0, is_retained=False) for k in range(5)] == [True] * 3 + [False] * 2
    assert (table.count, table.dropped) == (3, 2)
    assert table.saw("x", "t/0", 9.0, is_retained=False)
    assert table.expire("x", 5.0) == 2
    assert table.saw("x", "t/4", 9.0, is_retained=False)
    assert table.topics_of("x") == ["t/0", "t/4"]


def test_long_topics_fill_the_table_by_bytes() -> None:
    table = Topics(bytes_max=1_000_000)
    taken = sum(table.saw("x", f"{k}/{'y' * 60_000}", 1.0, is_retained=False) for k in range(100))
    assert taken == 16
    assert table.size_bytes <= 1_000_000
    assert table.dropped == 84


def test_a_wildcard_in_the_middle_takes_a_bounded_number_of_steps() -> None:
    table = Topics()
    for k in range(2 * STEPS_MAX):
        table.saw("x", f"plant/{k}/t", 1.0, is_retained=False)
    assert table.presence("plant/#") == {"x": Presence(2 * STEPS_MAX, 2 * STEPS_MAX)}
    assert STEPS_MAX / 4 < table.presence("plant/+/t")["x"].topics < STEPS_MAX
    assert table.presence("plant/+/no") == {}


@pytest.mark.parametrize("shape", ["plant/{b}/line/{k}/t", "t{k}", "a/{m}/{k}"])
def test_the_estimate_of_memory_is_near_the_actual_use(shape: str) -> None:
    names = [(f"b{k % 5}", shape.format(b=k % 5, m=k % 100, k=k)) for k in range(4_000)]
    tracemalloc.start()
    try:
        table = Topics()
        for broker, topic in names:
            table.saw(broker, topic, 1.0, is_retained=False)
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 < table.size_bytes / used_bytes < 1.6
