"""Outbox records of neighbours that are gone for good (R78)."""

from hanse.protocol.effects import Fetch
from hanse.protocol.messages import Run
from hanse.protocol.orphans import HELD_S, Orphans


def record(position: int) -> tuple[int, tuple[Run, ...]]:
    return position, (Run(8, 1, position, 1, 1, 1, ("g",), b"x"),)


def test_records_are_fetched_piece_by_piece_and_in_order() -> None:
    orphans = Orphans()
    assert orphans.ask(0.0) is None
    assert orphans.add(7, [(0, 3), (5, 6)]) == orphans.count == 4
    assert orphans.ask(0.0) == Fetch(7, 0, 3)
    assert orphans.ask(0.0) is None
    assert orphans.answered(7, [record(0), record(1)], 2) == [record(0), record(1)]
    assert orphans.ask(0.0) == Fetch(7, 2, 3)
    assert orphans.answered(7, [record(2)], 3) == [record(2)]
    assert orphans.ask(0.0) == Fetch(7, 5, 6)
    assert orphans.answered(7, [], 6) == []
    assert orphans.count == 0


def test_answers_for_others_are_left_to_them() -> None:
    orphans = Orphans()
    assert orphans.answered(7, [record(0)], 1) is None
    orphans.add(7, [(0, 3)])
    assert orphans.answered(8, [record(0)], 1) is None
    assert orphans.answered(7, [record(3)], 4) is None  # for the same id, back as a neighbour


def test_a_repeated_answer_brings_nothing() -> None:
    """The neighbour's own fetch was under way when it went."""
    orphans = Orphans()
    orphans.add(7, [(0, 3)])
    orphans.ask(0.0)
    assert orphans.answered(7, [record(0), record(1)], 2) == [record(0), record(1)]
    assert orphans.answered(7, [record(0)], 1) == []
    assert orphans.count == 1


def test_records_without_a_route_are_fetched_again_after_a_while() -> None:
    orphans = Orphans()
    orphans.add(7, [(0, 3)])
    orphans.ask(0.0)
    orphans.answered(7, [record(0), record(1), record(2)], 3)
    orphans.hold(1.0, 7, [1, 2])
    assert orphans.count == 2
    assert orphans.ask(1.0) is None
    assert orphans.ask(1.0 + HELD_S) == Fetch(7, 1, 3)
