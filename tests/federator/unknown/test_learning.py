"""Interest learned from acknowledgements: when everything is claimed, what is learned, and when it ends."""

from collections import Counter

import pytest

from hanse.federator.unknown import learning as module
from hanse.federator.unknown.learning import CLIENT, SOURCE, Learning
from hanse.interest import Report, Subscribed, Unsubscribed
from hanse.mqtt.publication import encode, split, topic_of


class Scene:
    """One learner, its broker's counts, and what it did."""

    def __init__(self, *held: str) -> None:
        self.now_s = 0.0
        self.unknown: int | None = 0
        self.claims: list[bool] = []
        self.known: set[str] = set()
        self.own: set[str] = set()
        self.reports: list[Report] = []
        self.counters: Counter[str] = Counter()
        self.learning = Learning(
            60.0,
            unknown=lambda: self.unknown,
            claim=self.claims.append,
            is_known=self.known.__contains__,
            is_own=self.own.__contains__,
            take=self._take,
            held=lambda source: [(CLIENT, one, 2) for one in held] if source == SOURCE else [],
            counters=self.counters,
            clock=lambda: self.now_s,
        )
        self.learning.restore()
        self._number = 1

    def _take(self, source: str, reports: list[Report]) -> None:
        assert source == SOURCE
        self.reports += reports

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.learning.look()

    def begin(self) -> None:
        self.unknown = 1
        self.learning.look()
        self.pass_time(module.PATIENCE_S)
        assert self.claims[-1]

    def deliver(self, *topics: str, unmatched: bool = False) -> None:
        body = b"".join(encode(topic, b"x", qos=1) for topic in topics)
        first, self._number = self._number, self._number + len(topics)
        self.learning.sent(first, body)
        numbers = range(first, first + len(topics))
        if unmatched:
            self.learning.unmatched(list(zip(numbers, topics, strict=True)))
        self.learning.acknowledged(numbers)


def test_everything_is_claimed_for_a_while_if_something_stays_unknown() -> None:
    scene = Scene()
    scene.unknown = None
    scene.pass_time(100)
    scene.unknown = 2
    scene.pass_time(1)
    assert scene.claims == []
    scene.pass_time(module.PATIENCE_S)
    assert scene.claims == [True]
    scene.pass_time(59)
    assert scene.learning.is_active
    scene.pass_time(1)
    assert scene.claims == [True, False]
    # What could not be learned in that time is not tried again, but more is.
    scene.pass_time(1_000)
    assert scene.claims == [True, False]
    scene.unknown = 3
    scene.pass_time(1)
    assert scene.claims == [True, False, True]


def test_topic_with_a_subscriber_that_nothing_known_matches_is_learned() -> None:
    scene = Scene()
    scene.begin()
    scene.known.add("known")
    scene.own.add("own")
    scene.deliver("known", "own", "wanted", "wanted")
    scene.deliver("nobody", unmatched=True)
    assert scene.reports == [Subscribed(CLIENT, "wanted", 2)]
    assert (scene.learning.topics, scene.counters["interest_learned"]) == (1, 1)


def test_learned_interest_ends_when_nobody_subscribes_and_when_nothing_is_unknown() -> None:
    scene = Scene("before")
    scene.begin()
    scene.deliver("one", "two")
    scene.deliver("one", unmatched=True)
    assert scene.reports[2:] == [Unsubscribed(CLIENT, "one")]
    scene.unknown = 0
    scene.pass_time(1)
    assert scene.reports[3:] == [Unsubscribed(CLIENT, "before"), Unsubscribed(CLIENT, "two")]
    assert scene.claims == [True, False]
    assert scene.learning.topics == 0


def test_number_of_learned_topics_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPICS_MAX", 2)
    scene = Scene()
    scene.begin()
    scene.deliver("a", "b", "c")
    assert scene.learning.topics == 2
    assert scene.counters["interest_learned_max"] == 1


def test_publications_of_qos_0_are_raised_to_qos_1() -> None:
    body = encode("a", b"1") + encode("b/c", b"")
    raised = Scene().learning.raised(body)
    assert [(topic_of(raised, start), raised[start] >> 1 & 3) for start, _ in split(raised)] == [("a", 1), ("b/c", 1)]
