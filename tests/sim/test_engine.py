"""The engine: order of events, one source of randomness, and a trace that tells runs apart."""

import pytest

from hanse.sim.engine import TRACE_BLOCK, Engine


def test_events_run_in_order_of_time_and_ties_in_order_of_scheduling() -> None:
    engine = Engine(1)
    seen: list[tuple[str, float]] = []
    for name, time_s in (("c", 2.0), ("a", 1.0), ("d", 2.0), ("b", 1.0)):
        engine.at(time_s, lambda word: seen.append((word, engine.now)), name)
    engine.run_until(5.0)
    assert seen == [("a", 1.0), ("b", 1.0), ("c", 2.0), ("d", 2.0)]
    assert engine.now == 5.0
    assert engine.handled == 4


def test_an_event_may_schedule_another_at_the_same_time() -> None:
    engine = Engine(1)
    seen: list[float] = []

    def first() -> None:
        engine.after(0.0, lambda: seen.append(engine.now))

    engine.at(1.0, first)
    engine.run_until(1.0)
    assert seen == [1.0]


def test_events_after_the_end_wait() -> None:
    engine = Engine(1)
    seen: list[int] = []
    engine.at(2.0, seen.append, 1)
    engine.run_until(1.9)
    assert seen == []
    engine.run_until(2.0)
    assert seen == [1]


def test_the_past_cannot_be_scheduled() -> None:
    engine = Engine(1)
    engine.run_until(3.0)
    with pytest.raises(AssertionError, match="already 3"):
        engine.at(2.9, print)


def test_the_same_seed_gives_the_same_numbers_and_the_same_hash() -> None:
    def life(seed: int) -> tuple[list[float], str]:
        engine = Engine(seed)
        numbers = [engine.random.random() for _ in range(5)]
        for k in range(TRACE_BLOCK):
            engine.note(k, int(engine.random.random() * 100))
        return numbers, engine.trace_hash()

    assert life(7) == life(7)
    assert life(7) != life(8)


def test_the_hash_covers_records_time_and_an_incomplete_block() -> None:
    one, other, later = Engine(1), Engine(1), Engine(1)
    later.run_until(1.0)
    for engine in (one, other, later):
        engine.note(1, 2, 3)
    assert one.trace_hash() == other.trace_hash()
    assert one.trace_hash() != later.trace_hash()
    other.note(4)
    assert one.trace_hash() != other.trace_hash()
