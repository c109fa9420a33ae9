"""The rules of `redelivery`, in order, and a model of a broker that tests them at random."""

import random

import pytest

from hanse.pipeline.redelivery import Redelivery

Publication = tuple[str, bool, int, int]


def spooled(*rows: tuple[int, int]) -> Redelivery[str]:
    memory: Redelivery[str] = Redelivery()
    memory.spooled(rows)
    memory.resumed()
    return memory


def test_without_dup_equal_content_is_a_new_row() -> None:
    found = spooled((1, 10), (2, 10)).sort([("a", False, 1, 10), ("b", False, 2, 10)])
    assert (found.new, found.copies) == (["a", "b"], [])


def test_in_a_new_session_nothing_is_a_duplicate() -> None:
    memory: Redelivery[str] = Redelivery()
    memory.spooled([(1, 10)])
    assert memory.sort([("a", True, 1, 10)]).new == ["a"]


def test_a_redelivered_run_that_reaches_the_last_row_consists_of_duplicates() -> None:
    found = spooled((1, 10), (2, 20), (3, 30)).sort([("b", True, 2, 20), ("c", True, 3, 30), ("d", True, 4, 40)])
    assert (found.new, found.copies) == (["d"], ["b", "c"])


def test_a_run_may_span_several_reads() -> None:
    memory = spooled((1, 10), (2, 20))
    first = memory.sort([("a", True, 1, 10)])
    assert (first.new, first.copies, memory.held) == ([], [], 1)
    assert memory.sort([("b", True, 2, 20)]).copies == ["a", "b"]
    assert memory.held == 0


def test_qos_0_does_not_end_a_run() -> None:
    memory = spooled((1, 10), (2, 20))
    assert memory.sort([("a", True, 1, 10), ("x", False, 0, 0)]).new == ["x"]
    assert memory.sort([("b", True, 2, 20)]).copies == ["a", "b"]


@pytest.mark.parametrize(
    "second",
    [("b", True, 2, 99), ("b", True, 9, 20), ("b", False, 2, 20), ("b", True, 1, 10)],
    ids=["other content", "unknown identifier", "no DUP", "not the next row"],
)
def test_a_run_that_ends_before_the_last_row_is_new(second: Publication) -> None:
    memory = spooled((1, 10), (2, 20), (3, 30))
    found = memory.sort([("a", True, 1, 10), second, ("c", True, 3, 30)])
    assert (found.new, found.copies) == (["a", "b", "c"], [])


def test_a_constant_reading_with_reused_identifiers_is_not_lost() -> None:
    # 65535 identifiers, all rows equal; three rows of the next cycle were received, not spooled, and come again.
    memory: Redelivery[str] = Redelivery()
    memory.spooled([(n, 7) for n in range(1, 65_533)])
    memory.resumed()
    again = [(f"r{n}", True, n, 7) for n in (1, 2, 3)]
    assert memory.sort(again).new == []
    assert memory.sort([("next", False, 4, 7)]).new == ["r1", "r2", "r3", "next"]


def test_an_undecided_run_counts_as_new() -> None:
    memory = spooled((1, 10), (2, 20))
    memory.sort([("a", True, 1, 10)])
    assert memory.give_up() == ["a"]
    assert memory.sort([("b", True, 2, 20)]).new == ["b"]


def test_a_new_session_forgets_all_identifiers() -> None:
    memory = spooled((1, 10))
    memory.forget()
    memory.resumed()
    assert memory.sort([("a", True, 1, 10)]).new == ["a"]


def test_a_connection_lost_within_a_run_restarts_it() -> None:
    memory = spooled((1, 10), (2, 20), (3, 30))
    memory.sort([("a", True, 1, 10)])
    memory.resumed()
    assert memory.held == 0
    assert memory.sort([("a", True, 1, 10), ("b", True, 2, 20), ("c", True, 3, 30)]).copies == ["a", "b", "c"]


class Broker:
    """Model of a broker.

    It delivers in order within a window, holds unacknowledged messages, and redelivers them with DUP and the same
    identifier.
    """

    def __init__(self, identifiers: int, window: int, cyclic: bool) -> None:
        self.identifiers, self.window, self.cyclic = identifiers, window, cyclic
        self.queue: list[tuple[int, int]] = []
        self.in_flight: list[tuple[int, int, int]] = []
        self.last_id = 0

    def deliver(self, count: int) -> list[tuple[int, int, int]]:
        out = []
        for _ in range(count):
            if not self.queue or len(self.in_flight) >= self.window:
                break
            taken = {packet_id for packet_id, _, _ in self.in_flight}
            if self.cyclic:
                self.last_id = self.last_id % self.identifiers + 1
                packet_id = self.last_id
            else:
                packet_id = min(n for n in range(1, self.identifiers + 1) if n not in taken)
            self.in_flight.append((packet_id, *self.queue.pop(0)))
            out.append(self.in_flight[-1])
        return out

    def acknowledge(self, count: int) -> None:
        del self.in_flight[:count]


@pytest.mark.parametrize("cyclic", [True, False], ids=["identifiers in a circle", "lowest free identifier"])
@pytest.mark.parametrize("seed", range(60))
def test_with_a_broker_that_keeps_order_every_publication_is_spooled_exactly_once(seed: int, cyclic: bool) -> None:
    chance = random.Random(seed)
    window = chance.choice([1, 3, 8])
    broker = Broker(identifiers=window + chance.choice([1, 4]), window=window, cyclic=cyclic)
    # Three in four are equal. With the lowest free identifier, equal ones cannot be distinguished, so there all differ.
    broker.queue = [(n, chance.choice([-1, -1, -1, n]) if cyclic else n) for n in range(300)]
    rows: list[tuple[int, int, int]] = []
    copies_seen = 0
    while broker.queue or broker.in_flight:
        # One run of a collector: it takes messages, spools some, acknowledges some of those, and is killed.
        memory: Redelivery[tuple[int, int, int]] = Redelivery()
        memory.spooled([(packet_id, content) for packet_id, _, content in rows[-window:]])
        memory.resumed()
        arrivals = [(one, True) for one in broker.in_flight]
        unanswered = 0
        for _ in range(chance.randrange(1, 6)):
            arrivals += [(one, False) for one in broker.deliver(chance.randrange(5))]
            found = memory.sort([(one, dup, one[0], one[2]) for one, dup in arrivals])
            arrivals = []
            new = found.new + (memory.give_up() if not broker.queue or len(broker.in_flight) == window else [])
            copies_seen += len(found.copies)
            unanswered += len(found.copies)
            if chance.random() < 0.3:
                break
            rows += new
            unanswered += len(new)
            memory.spooled([(one[0], one[2]) for one in new])
            # Acknowledged in order; the number that arrives before the kill is random.
            arrived = chance.randrange(unanswered + 1)
            broker.acknowledge(arrived)
            unanswered -= arrived
            if chance.random() < 0.3:
                break
    assert [number for _, number, _ in rows] == list(range(300))
    assert copies_seen > 0
