"""Upstream gets its acknowledgement only after everyone downstream has acknowledged."""

from hypothesis import given
from hypothesis import strategies as st

from hanse.federator.obligations import AckOrder, DeliveryBook, Obligation


class Upstream:
    """Sender that counts its acknowledgements."""

    def __init__(self) -> None:
        self.told = 0

    def tell(self) -> None:
        self.told += 1


def test_a_batch_without_deliveries_is_released_when_it_is_distributed() -> None:
    upstream = Upstream()
    Obligation(upstream.tell).settle()
    assert upstream.told == 1


def test_nothing_is_released_while_a_batch_is_still_being_distributed() -> None:
    upstream = Upstream()
    obligation = Obligation(upstream.tell)
    obligation.owe()
    obligation.settle()  # the first hop acknowledges before the second gets its frame
    assert upstream.told == 0
    obligation.owe(2)
    obligation.settle()
    obligation.settle(2)
    assert upstream.told == 1


def test_a_range_of_numbers_is_settled_with_its_last_one() -> None:
    upstream, book = Upstream(), DeliveryBook()
    obligation = Obligation(upstream.tell)
    book.add(10, 3, obligation)
    obligation.settle()
    book.settle([11, 10])
    assert (upstream.told, len(book)) == (0, 1)
    book.settle([12])
    assert (upstream.told, len(book)) == (1, 0)


def test_numbers_that_nobody_waits_for_are_ignored() -> None:
    upstream, book = Upstream(), DeliveryBook()
    book.settle([1])
    obligation = Obligation(upstream.tell)
    book.add(10, 1, obligation)
    obligation.settle()
    book.settle([9, 11, 10])
    assert upstream.told == 1


def test_the_host_is_acknowledged_in_the_order_in_which_it_sent() -> None:
    said: list[int] = []
    order = AckOrder(said.extend)
    first, second, third = order.begin([1, 2]), order.begin([3]), order.begin([4, 5])
    second()
    assert said == []
    first()
    assert said == [1, 2, 3]
    third()
    assert said == [1, 2, 3, 4, 5]
    assert len(order) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=12), st.data())
def test_every_obligation_is_released_once_in_any_order(stretches: list[tuple[int, int]], data: st.DataObject) -> None:
    """Ranges with gaps between them are acknowledged in any order and in any portions."""
    book = DeliveryBook()
    upstreams, numbers = [], []
    at = 1
    for gap, count in stretches:
        at += gap
        upstream = Upstream()
        obligation = Obligation(upstream.tell)
        book.add(at, count, obligation)
        obligation.settle()
        upstreams.append((upstream, range(at, at + count)))
        numbers += list(range(at, at + count))
        at += count
    order = data.draw(st.permutations(numbers))
    settled: set[int] = set()
    while order:
        portion = data.draw(st.integers(1, len(order)))
        book.settle(order[:portion])
        settled.update(order[:portion])
        order = order[portion:]
        for upstream, own in upstreams:
            assert upstream.told == (1 if settled.issuperset(own) else 0)
    assert len(book) == 0
