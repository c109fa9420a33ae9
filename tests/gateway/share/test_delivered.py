"""Delivered publications, which a replay leaves out."""

from tests.gateway import packets as p

from hanse.gateway.session.received import digest
from hanse.gateway.session.replayed import Replayed
from hanse.gateway.share.delivered import KEPT_S, Delivered

GROUP, OTHER = b"$share/g/a/#", b"$share/h/a/b"


class Link:
    """A second session, reduced to the parts that the test needs."""

    def __init__(self, *filters: bytes) -> None:
        self.filters = dict.fromkeys(filters, (1, 1))


def item(time: float, payload: bytes, topic: bytes = b"a/b") -> Replayed:
    return Replayed(time, 1, digest(topic, payload), topic, p.publish(topic, payload, 1, 1))


def deliver(delivered: Delivered, at: float, payload: bytes, *filters: bytes) -> None:
    delivered.add(at, Link(*filters), p.publish(b"a/b", payload, 1, 1), 5)  # type: ignore[arg-type]


def test_each_delivery_counts_once_and_for_its_group_alone() -> None:
    delivered = Delivered()
    deliver(delivered, 10.0, b"x", GROUP)
    deliver(delivered, 10.0, b"y", OTHER)
    items = [item(9.9, b"x"), item(10.1, b"x"), item(9.9, b"y")]
    assert delivered.missing(GROUP, items) == [items[2], items[1]]
    assert delivered.missing(OTHER, items) == [items[0], items[1]]


def test_old_delivery_of_the_same_content_takes_nothing_away() -> None:
    delivered = Delivered()
    deliver(delivered, 5.0, b"on", GROUP)
    assert delivered.missing(GROUP, [item(9.0, b"on")]) == [item(9.0, b"on")]
    assert delivered.missing(GROUP, [item(5.3, b"on")]) == []


def test_delivery_that_may_belong_to_two_groups_is_not_noted() -> None:
    delivered = Delivered()
    deliver(delivered, 10.0, b"x", GROUP, OTHER)
    deliver(delivered, 10.0, b"z", GROUP, b"$share/g/c")
    assert delivered.missing(GROUP, [item(10.0, b"x"), item(10.0, b"z")]) == [item(10.0, b"x")]


def test_deliveries_are_forgotten() -> None:
    delivered = Delivered()
    deliver(delivered, 0.0, b"x", GROUP)
    deliver(delivered, KEPT_S + 1, b"y", GROUP)
    assert len(delivered._records) == 1
