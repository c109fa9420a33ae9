"""Groups of brokers that are joined by static bridges."""

from hanse.federator import bridges
from hanse.federator.bridges import BridgeBook
from hanse.interest.reports import BridgeGone, BridgeSeen, Gap


def test_a_host_without_a_bridge_is_joined_with_nobody() -> None:
    book = BridgeBook()
    book.hear(2, ["a"])
    assert book.joined() == frozenset()
    assert book.names == []


def test_brokers_are_joined_by_shared_names_also_through_others() -> None:
    book = BridgeBook()
    assert book.take([BridgeSeen("a"), Gap()])
    book.hear(2, ["a", "b"])
    book.hear(3, ["b", "c"])
    book.hear(4, ["d"])
    assert book.joined() == {2, 3}


def test_unchanged_bridges_are_not_reported_again() -> None:
    book = BridgeBook()
    assert book.take([BridgeSeen("a")])
    assert not book.take([BridgeSeen("a")])
    assert book.take([BridgeGone("a")])
    assert not book.take([BridgeGone("a")])


def test_a_federator_that_no_longer_names_bridges_is_forgotten() -> None:
    book = BridgeBook()
    book.take([BridgeSeen("a")])
    book.hear(2, ["a"])
    book.hear(2, [])
    assert book.joined() == frozenset()


def test_names_and_federators_are_limited() -> None:
    book = BridgeBook()
    book.take([BridgeSeen(str(number)) for number in range(bridges.NAMES_MAX + 1)])
    assert len(book.names) == bridges.NAMES_MAX
    for origin in range(bridges.FEDERATORS_MAX + 1):
        book.hear(origin, ["0"])
    assert len(book.joined()) == bridges.FEDERATORS_MAX
