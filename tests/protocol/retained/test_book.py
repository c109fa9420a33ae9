from collections import Counter

from hanse.protocol.retained.book import Book, Entry
from hanse.protocol.retained.values import ABSENT
from hanse.protocol.retained.versions import Version, stamp_at


def book_of(*topics: str, topics_max: int = 100) -> Book:
    book = Book(1, topics_max, Counter())
    for topic in topics:
        entry = book.open(topic)
        assert entry is not None
        book.note(topic, entry, 0)
    return book


def test_a_deletion_is_a_winner_without_a_value() -> None:
    assert not Entry().is_tombstone
    assert Entry(Version(1, 1), ABSENT).is_tombstone
    assert not Entry(Version(1, 1), 5).is_tombstone


def test_a_topic_is_settled_when_the_host_broker_holds_the_winner() -> None:
    assert Entry(Version(1, 1), 5, host_digest=5).is_settled
    assert not Entry(Version(1, 1), 5, host_digest=6).is_settled
    assert not Entry().is_settled


def test_an_entry_shows_what_it_holds() -> None:
    assert repr(Entry(Version(1, 2), 10, priors=(3,))).endswith("a, host None, 0, priors (3,))")


def test_a_full_book_takes_no_topic_and_counts_it() -> None:
    counters: Counter[str] = Counter()
    book = Book(1, 1, counters)
    assert book.open("a") is book.open("a")
    assert book.open("b") is None
    book.restore("c", Entry())
    assert len(book) == 1
    assert counters == {"retained_book_full": 2}


def test_each_change_gets_the_next_number_of_the_feed() -> None:
    book = book_of("a", "b")
    assert book.changed_since(["#"], 0) == ["a", "b"]
    first = book.sequence
    book.note("a", book.entries["a"], 0)
    assert book.changed_since(["#"], 0) == ["b", "a"]
    assert book.changed_since(["#"], first) == ["a"]
    assert book.changed_since(["#"], book.sequence) == []


def test_numbers_of_the_feed_rise_with_wall_time() -> None:
    book = book_of("a")
    book.note("a", book.entries["a"], 1_000)
    assert book.sequence == stamp_at(1_000)


def test_a_restored_entry_keeps_its_number() -> None:
    book = book_of()
    book.restore("a", Entry(sequence=9))
    book.restore("b", Entry(sequence=4))
    assert book.sequence == 9
    assert not book.dirty
    assert book.changed_since(["#"], 0) == ["b", "a"]


def test_topics_match_by_name_and_by_wildcard() -> None:
    book = book_of("a/b", "a/c", "d")
    assert book.matching(["d", "x", "a/+"]) == {"a/b", "a/c", "d"}
    assert book.matching(["a/b"]) == {"a/b"}


def test_a_dropped_topic_is_written_once() -> None:
    book = book_of("a")
    book.dirty.clear()
    book.drop("a")
    book.drop("b")
    assert book.get("a") is None
    assert book.dirty == {"a"}
