"""Custody on its own: entries, duties, destinations and the outbox (R55 to R78)."""

from collections import Counter
from collections.abc import Sequence

import pytest
from tests.protocol.net import packet

from hanse.protocol import custody
from hanse.protocol.accounts import Accounts
from hanse.protocol.custody import BUSY_FACTOR, CHECK_EVERY_S, NOBODY, Custody, Entry
from hanse.protocol.effects import Acknowledge, Deliver, Discard, Effect, Fetch, SendRuns, SendSummaries, Store
from hanse.protocol.messages import BLOCKED, HOST, Run, Summary
from hanse.protocol.settings import Settings

NEAR, FAR = 1, 2
SIZE = len(packet("g", b"0", 1))


def run_of(number: int, *groups: str) -> Run:
    return Run(8, 1, number, 1, 1, 1, groups or ("g",), packet("g", b"%d" % (number % 10), 1))


class Books:
    """Custody with the neighbours NEAR and FAR, whose destinations are open."""

    def __init__(self, **settings: float) -> None:
        self.now = 0.0
        self.counters: Counter[str] = Counter()
        self.settings = Settings(**settings)  # type: ignore[arg-type]
        self.custody = Custody(self.settings, self.counters, Accounts())
        self.receipt = 0
        for way in (NEAR, FAR):
            self.custody.open_way(0.0, way)

    def give(self, *numbers: int, to: tuple[int, ...] = (NEAR,), giver: int = HOST, receipt: int = 1) -> list[int]:
        """Give a batch with one run per number to each destination. Return the tokens."""
        entry = self.custody.open(giver, receipt)
        runs = [run_of(number) for number in numbers]
        tokens = [self.custody.send(self.now, entry, way, runs, giver) for way in to]
        self.custody.close(entry)
        return tokens

    def block(self, number: int, *groups: str, source: int = HOST, receipt: int = 1) -> None:
        entry = self.custody.open(source, receipt)
        self.custody.block(self.now, entry, run_of(number, *groups), source)
        self.custody.close(entry)

    def has_blocked(self) -> bool:
        return self.custody.has_blocked

    def effects(self) -> list[Effect]:
        return self.custody.take_effects()

    def check(self, after_s: float) -> list[Effect]:
        self.now += after_s
        self.custody.check(self.now)
        return self.effects()

    def stored(self, way: int, end: int) -> list[Effect]:
        self.custody.stored(way, end)
        return self.effects()

    def acknowledge(self, way: int, *tokens: int) -> list[Effect]:
        self.custody.acknowledge(self.now, way, tokens)
        return self.effects()

    def fetched(self, way: int, *positions: int, end: int) -> list[Effect]:
        records = [(position, (run_of(position),)) for position in positions]
        self.custody.fetched(self.now, way, records, end, lambda runs: runs)
        return self.effects()


def sent_numbers(effects: list[Effect]) -> list[int]:
    return [run.first for effect in effects if isinstance(effect, SendRuns) for run in effect.runs]


# --- entries ---------------------------------------------------------------------------------------------------------


def test_a_giver_is_acknowledged_when_every_destination_has_acknowledged() -> None:
    books = Books()
    near, far = books.give(0, to=(NEAR, FAR), receipt=7)
    assert (near, far) == (1, 2)
    assert books.custody.waiting == 2
    assert books.acknowledge(NEAR, near) == []
    assert books.acknowledge(FAR, far) == [Acknowledge(HOST, (7,))]
    assert books.custody.waiting == 0


def test_an_empty_batch_is_acknowledged_at_once() -> None:
    books = Books()
    books.give(to=(), receipt=7)
    assert books.effects() == [Acknowledge(HOST, (7,))]


def test_a_batch_without_a_receipt_is_not_acknowledged() -> None:
    books = Books()
    (token,) = books.give(0, receipt=0)
    assert books.acknowledge(NEAR, token) == []


def test_an_acknowledgement_counts_once_and_only_for_its_destination() -> None:
    books = Books()
    (token,) = books.give(0, receipt=7)
    assert books.acknowledge(FAR, token) == []
    assert books.acknowledge(99, token) == []
    assert books.acknowledge(NEAR, token, token, 1234) == [Acknowledge(HOST, (7,))]
    assert books.acknowledge(NEAR, token) == []
    assert books.custody._ways[NEAR].sent_weight == 0


def test_a_duplicate_from_the_same_giver_is_acknowledged_with_the_first() -> None:
    books = Books()
    custody = books.custody
    first, again, other = custody.open(FAR, 1), custody.open(FAR, 2), custody.open(NEAR, 3)
    custody.note(first, run_of(0))
    token = custody.send(0.0, first, NEAR, [run_of(0)], FAR)
    custody.close(first)
    custody.follow(again, run_of(0))
    custody.follow(again, run_of(0))  # a second run with the same ids is no second wait
    custody.note(again, run_of(0))
    custody.close(again)
    custody.follow(other, run_of(0))  # another giver's: the first still has custody
    custody.close(other)
    assert books.effects() == [Acknowledge(NEAR, (3,))]
    assert books.acknowledge(NEAR, token) == [Acknowledge(FAR, (1,)), Acknowledge(FAR, (2,))]
    assert custody._in_progress == {}


def test_a_duplicate_within_one_batch_does_not_wait_for_itself() -> None:
    books = Books()
    entry = books.custody.open(FAR, 1)
    books.custody.note(entry, run_of(0))
    books.custody.follow(entry, run_of(0))
    books.custody.close(entry)
    assert books.effects() == [Acknowledge(FAR, (1,))]


def test_publications_of_the_host_have_no_duplicates_to_wait_for() -> None:
    books = Books()
    entry = books.custody.open(HOST, 1)
    books.custody.note(entry, run_of(0))
    assert books.custody._in_progress == {}


# --- destinations ---------------------------------------------------------------------------------------------------


def test_beyond_the_window_runs_wait_in_order_and_no_destination_waits_for_another() -> None:
    books = Books(window_bytes=2 * custody.PUBLICATION_BYTES_MIN)
    tokens = [books.give(number)[0] for number in range(5)]
    assert tokens == [1, 2, 0, 0, 0]
    assert books.give(5, to=(FAR,)) == [3]
    assert books.custody.backlog_of(NEAR) == 5
    assert books.custody.backlog_of(99) == 0
    assert sent_numbers(books.acknowledge(NEAR, 1)) == [2]
    effects = books.acknowledge(NEAR, 2, 4)
    assert sent_numbers(effects) == [3, 4]


def test_runs_that_wait_for_the_host_are_delivered_in_turn() -> None:
    books = Books(window_bytes=SIZE)
    assert books.give(0, to=(HOST,)) == [1]
    assert books.give(1, to=(HOST,)) == [0]
    assert books.acknowledge(HOST, 1) == [Acknowledge(HOST, (1,)), Deliver((run_of(1),), 2)]


def test_a_destination_that_was_never_open_keeps_what_is_for_it() -> None:
    books = Books()
    assert books.give(0, to=(9,)) == [0]
    assert books.custody.open_ways.isdisjoint((9, 10))
    books.custody.open_way(0.0, 9)
    assert sent_numbers(books.effects()) == [0]
    books.custody.open_way(0.0, 9)
    assert books.effects() == []
    assert 9 in books.custody.open_ways


def test_a_closed_destination_gives_back_what_was_sent_and_what_waits_in_order() -> None:
    books = Books(window_bytes=SIZE)
    for number in range(3):
        books.give(number, receipt=number + 1)
    lost = books.custody.close_way(NEAR)
    assert [run.first for duty in lost for run in duty.runs] == [0, 1, 2]
    assert books.custody.backlog_of(NEAR) == 0
    assert books.custody._ways[NEAR].is_idle
    books.custody.hold(NEAR, lost[1], lost[1].runs)
    for duty in lost:
        books.custody.release(NEAR, duty)
    assert books.effects() == [Acknowledge(HOST, (1,)), Acknowledge(HOST, (3,))]
    books.custody.open_way(1.0, NEAR)
    assert sent_numbers(books.effects()) == [1]
    assert books.custody.close_way(99) == []


def test_unacknowledged_runs_are_sent_again_in_order() -> None:
    books = Books()
    books.give(0)
    books.now = 1.0
    books.give(1)
    wait_s = books.settings.retransmission_s
    effects = books.check(wait_s - 0.9)
    assert sent_numbers(effects) == [0]
    assert [effect.token for effect in effects if isinstance(effect, SendRuns)] == [1]
    # Not again at once: the next time is a whole wait later.
    assert sent_numbers(books.check(0.9)) == []
    assert sent_numbers(books.check(wait_s)) == [0, 1]
    assert books.counters["retransmitted"] == 3


def test_over_reliable_links_runs_are_sent_again_later() -> None:
    books = Books(retransmission_factor=10)
    books.give(0)
    assert sent_numbers(books.check(9 * books.settings.expiry_s)) == []
    assert sent_numbers(books.check(books.settings.expiry_s)) == [0]


def test_nothing_is_sent_to_the_host_again() -> None:
    """Its session sends again by itself."""
    books = Books(stuck_after_s=1000.0)
    books.give(0, to=(HOST,))
    assert books.check(books.settings.retransmission_s * 3) == []


def test_summaries_are_sent_again_until_they_are_acknowledged() -> None:
    books = Books(stuck_after_s=1000.0)
    summaries = (Summary("g", 5),)
    books.custody.summarise(0.0, NEAR, summaries)
    assert books.effects() == [SendSummaries(NEAR, summaries, 1)]
    books.give(0)
    books.effects()
    asking_s = books.settings.asking_s
    assert books.check(asking_s - 0.1) == []
    for number in (1, 2):  # sooner than a publication that is not acknowledged
        late_ms = int(1000 * number * asking_s)
        assert books.check(0.1) == [SendSummaries(NEAR, (Summary("g", 5 + late_ms),), 1)]
        assert books.check(asking_s - 0.1) == []
    assert books.acknowledge(NEAR, 2) == [Acknowledge(HOST, (1,))]
    assert books.acknowledge(NEAR, 1) == []
    assert books.check(100.0) == []
    assert books.custody.check_at == float("inf")


def test_summaries_for_a_closed_destination_are_left_to_the_next_link() -> None:
    books = Books()
    books.custody.summarise(0.0, NEAR, (Summary("g", 5),))
    books.effects()
    assert books.custody.close_way(NEAR) == []
    books.custody.summarise(0.0, NEAR, (Summary("g", 5),))
    books.custody.summarise(0.0, 99, (Summary("g", 5),))
    books.custody.open_way(1.0, NEAR)
    assert books.effects() == []


# --- the outbox ------------------------------------------------------------------------------------------------------


def test_runs_that_wait_too_long_are_stored_and_then_acknowledged() -> None:
    books = Books(window_bytes=SIZE)
    books.give(0, receipt=1)
    books.give(1, receipt=2)
    books.give(2, receipt=3)
    assert books.custody.check_at == CHECK_EVERY_S
    assert books.check(books.settings.outbox_after_s + 0.05) == [Store(NEAR, 0, ((run_of(1),), (run_of(2),)))]
    assert books.check(0.1) == []  # once is enough
    assert books.stored(NEAR, 2) == [Acknowledge(HOST, (2,)), Acknowledge(HOST, (3,))]
    assert (books.custody.waiting, books.custody.records, books.custody.backlog_of(NEAR)) == (1, 2, 3)


def test_behind_a_busy_destination_runs_stay_in_memory_for_a_while() -> None:
    books = Books(window_bytes=SIZE)
    for number in range(20):
        books.give(number, receipt=number + 1)
    busy_s = BUSY_FACTOR * books.settings.stuck_after_s
    effects: list[Effect] = []
    token = 1
    while books.now < busy_s:
        assert [effect for effect in effects if isinstance(effect, Store)] == []
        books.now += books.settings.stuck_after_s / 2
        answer = books.acknowledge(NEAR, token)
        token = next(effect.token for effect in answer if isinstance(effect, SendRuns))
        effects = books.check(0.01)
    assert effects == [Store(NEAR, 0, tuple((run_of(number),) for number in range(token, 20)))]


def test_behind_a_busy_destination_runs_beyond_the_limit_go_to_disk_oldest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(custody, "BACKLOG_BYTES", 3 * SIZE)
    books = Books(window_bytes=SIZE)
    for number in range(5):
        books.give(number, receipt=number + 1)
    assert sent_numbers(books.acknowledge(NEAR, 1)) == [1]
    assert books.check(books.settings.outbox_after_s + 0.05) == []  # 2, 3 and 4 wait
    for number in (5, 6):
        books.give(number, receipt=number + 1)
    assert books.check(0.01) == [Store(NEAR, 0, ((run_of(2),), (run_of(3),)))]
    assert books.stored(NEAR, 2) == [Acknowledge(HOST, (3,)), Acknowledge(HOST, (4,))]


def test_records_on_disk_are_sent_before_later_runs() -> None:
    books = Books(window_bytes=SIZE)
    for number in range(3):
        books.give(number, receipt=number + 1)
    books.check(1.0)
    books.stored(NEAR, 2)
    books.give(3, receipt=4)
    assert books.acknowledge(NEAR, 1) == [Acknowledge(HOST, (1,)), Fetch(NEAR, 0, 2)]
    assert books.acknowledge(NEAR, 77) == []  # it is fetched once
    assert sent_numbers(books.fetched(NEAR, 0, 1, end=2)) == [0]
    effects = books.acknowledge(NEAR, 2)
    assert effects[0] == Discard(NEAR, (0,))
    assert sent_numbers(effects) == [1]
    effects = books.acknowledge(NEAR, 3)
    assert effects[0] == Discard(NEAR, (1,))
    assert sent_numbers(effects) == [3]
    assert books.acknowledge(NEAR, 4) == [Acknowledge(HOST, (4,))]
    assert books.custody.records == 0


def test_records_on_disk_are_fetched_piece_by_piece() -> None:
    books = Books(window_bytes=SIZE)
    books.custody.restore({NEAR: (4, 9)})
    assert books.custody.records == 5
    assert books.effects() == [Fetch(NEAR, 4, 9)]
    assert sent_numbers(books.fetched(NEAR, 5, end=6)) == [5]
    assert books.custody.records == 3
    assert books.acknowledge(NEAR, 1) == [Discard(NEAR, (5,)), Fetch(NEAR, 6, 9)]
    assert books.fetched(NEAR, end=9) == []
    assert books.custody._ways[NEAR].is_idle


def test_stuck_runs_are_stored_and_still_under_way() -> None:
    books = Books()
    (token,) = books.give(0, receipt=1)
    books.give(1, receipt=0)  # nobody waits for that
    books.custody.summarise(1.0, NEAR, (Summary("g", 5),))
    books.effects()
    assert books.check(books.settings.stuck_after_s + 0.1) == [Store(NEAR, 0, ((run_of(0),),))]
    assert books.stored(NEAR, 1) == [Acknowledge(HOST, (1,))]
    assert books.stored(NEAR, 1) == []
    assert books.acknowledge(NEAR, token) == [Discard(NEAR, (0,))]


def test_records_acknowledged_before_they_were_written_are_discarded() -> None:
    books = Books()
    (token,) = books.give(0, receipt=1)
    books.check(books.settings.stuck_after_s + 0.1)
    assert books.acknowledge(NEAR, token) == [Discard(NEAR, (0,)), Acknowledge(HOST, (1,))]
    assert books.stored(NEAR, 1) == []


def test_records_that_a_closed_destination_was_sent_go_back_to_disk_in_order() -> None:
    books = Books(window_bytes=2 * custody.PUBLICATION_BYTES_MIN)
    books.custody.restore({FAR: (0, 8)})
    books.effects()
    books.fetched(FAR, 0, 1, 2, 4, end=5)
    assert books.custody.close_way(FAR) == []
    assert list(books.custody._ways[FAR].disk) == [[0, 3], [4, 8]]
    books.custody.open_way(1.0, FAR)
    assert books.effects() == [Fetch(FAR, 0, 3)]


def test_an_answer_to_a_fetch_from_before_a_loss_is_ignored() -> None:
    """The neighbour restarted while its records were being read, so the next answer belongs to another fetch."""
    books = Books()
    books.custody.restore({NEAR: (0, 6)})
    books.effects()
    # The first two are under way, the others are being fetched.
    assert sent_numbers(books.fetched(NEAR, 0, 1, end=2)) == [0, 1]
    assert books.custody.close_way(NEAR) == []
    books.custody.open_way(1.0, NEAR)
    assert books.effects() == [Fetch(NEAR, 0, 6)]
    assert books.fetched(NEAR, 2, 3, 4, 5, end=6) == []
    assert sent_numbers(books.fetched(NEAR, 0, 1, 2, 3, 4, 5, end=6)) == [0, 1, 2, 3, 4, 5]


def test_answers_without_a_fetch_are_ignored() -> None:
    books = Books()
    assert books.fetched(NEAR, 0, end=1) == []
    assert books.fetched(99, 0, end=1) == []
    assert books.stored(99, 5) == []


def test_runs_stored_behind_one_that_was_not_stay_in_memory_in_order() -> None:
    books = Books(window_bytes=SIZE)
    books.give(0)
    books.give(1, receipt=2)
    books.check(0.15)
    books.give(2, receipt=3)
    books.check(0.15)
    # A destination that closed held one back for its neighbour. It is not on disk.
    way = books.custody._ways[NEAR]
    entry = Entry(HOST, 9)
    books.custody.send(books.now, entry, NEAR, [run_of(5)], HOST)
    way.backlog.rotate(1)
    assert books.stored(NEAR, 2) == [Acknowledge(HOST, (2,)), Acknowledge(HOST, (3,))]
    assert [duty.runs[0].first for duty in way.backlog] == [5, 1, 2]
    assert books.custody.records == 0
    effects = books.acknowledge(NEAR, 1)
    assert sent_numbers(effects) == [5]
    assert sent_numbers(books.acknowledge(NEAR, 2)) == [1]
    assert books.acknowledge(NEAR, 3)[0] == Discard(NEAR, (0,))


def test_a_lost_destinations_stored_runs_are_discarded_when_another_has_taken_them() -> None:
    books = Books()
    books.give(0, receipt=1)
    books.check(books.settings.stuck_after_s + 0.1)
    (duty,) = books.custody.close_way(NEAR)
    token = books.custody.send(books.now, duty.entry, FAR, duty.runs, HOST)
    books.custody.release(NEAR, duty)
    assert books.effects() == [Discard(NEAR, (0,))]
    assert books.acknowledge(FAR, token) == [Acknowledge(HOST, (1,))]


def test_a_record_that_another_destination_took_is_not_written_again_for_it() -> None:
    books = Books()
    books.block(0, receipt=1)
    books.check(1.0)
    books.stored(BLOCKED, 1)
    books.effects()
    entry = Entry(-4, record=(BLOCKED, 0))
    (token,) = [books.custody.send(books.now, entry, NEAR, [run_of(0)], HOST)]
    books.custody.close(entry)
    assert books.check(books.settings.stuck_after_s + 0.1) == []
    assert books.acknowledge(NEAR, token) == [Discard(BLOCKED, (0,))]


def test_a_neighbour_that_is_gone_for_good_leaves_its_records() -> None:
    books = Books()
    books.custody.restore({7: (2, 4)})
    assert books.custody.forget_way(books.now, 7) == 2
    assert books.custody.records == 2
    assert books.check(0.2) == [Fetch(7, 2, 4)]
    assert books.check(0.2) == []  # one answer at a time
    assert books.custody.orphans.answered(7, [], 4) == []
    assert books.custody.records == 0
    assert books.custody.forget_way(books.now, 7) == 0
    # Positions go on even after the destination is gone.
    books.give(0, to=(7,))
    assert books.check(1.0) == [Store(7, 4, ((run_of(0),),))]


def test_records_that_a_former_process_left_for_the_host_are_fetched_at_once() -> None:
    books = Books()
    books.custody.restore({HOST: (3, 5), 7: (0, 2), NEAR: (6, 6), BLOCKED: (1, 4)})
    assert books.effects() == [Fetch(HOST, 3, 5)]
    assert books.custody.records == 7
    assert books.has_blocked() is True
    books.custody.fetch_unsorted()
    assert books.effects() == [Fetch(BLOCKED, 1, 4)]
    assert books.has_blocked() is False
    books.give(0, to=(7,))
    assert books.check(1.0) == [Store(7, 2, ((run_of(0),),))]


def test_only_records_that_a_former_process_left_for_the_host_are_sifted() -> None:
    books = Books(window_bytes=SIZE)
    sifted: list[int] = []

    def sift(runs: Sequence[Run]) -> Sequence[Run]:
        sifted.extend(run.first for run in runs)
        return runs

    books.custody.restore({HOST: (3, 4), NEAR: (0, 1)})
    books.custody.fetched(books.now, NEAR, [(0, (run_of(0),))], 1, sift)
    books.custody.fetched(books.now, HOST, [(3, (run_of(3),))], 4, sift)
    books.give(4, to=(HOST,))  # behind the record, so it goes to disk in turn
    assert Store(HOST, 4, ((run_of(4),),)) in books.check(BUSY_FACTOR * books.settings.stuck_after_s + 1)
    books.stored(HOST, 5)
    assert Fetch(HOST, 4, 5) in books.acknowledge(HOST, 2)
    books.custody.fetched(books.now, HOST, [(4, (run_of(4),))], 5, sift)
    assert [effect.runs for effect in books.effects() if isinstance(effect, Deliver)] == [(run_of(4),)]
    assert sifted == [3]


def test_the_first_record_for_the_host_is_not_sifted_if_no_process_left_any() -> None:
    books = Books()
    sifted: list[int] = []

    def sift(runs: Sequence[Run]) -> Sequence[Run]:
        sifted.extend(run.first for run in runs)
        return runs

    books.custody.restore({NEAR: (0, 1)})
    books.custody.fetched(books.now, HOST, [(0, (run_of(0),))], 1, sift)
    assert sifted == []


# --- no route --------------------------------------------------------------------------------------------------------


def test_runs_without_a_route_wait_and_are_stored() -> None:
    books = Books()
    books.block(0, receipt=1)
    books.block(1, receipt=2)
    books.block(2, "h", source=FAR, receipt=3)
    assert books.counters["blocked"] == 3
    assert books.custody.blocked_keys() == [(HOST, ("g",)), (FAR, ("h",))]
    (store,) = books.check(1.0)
    assert store == Store(BLOCKED, 0, ((run_of(0),), (run_of(1),), (run_of(2, "h"),)))
    assert books.stored(BLOCKED, 2) == [Acknowledge(HOST, (1,)), Acknowledge(HOST, (2,))]
    assert books.custody.records == 2
    assert books.stored(BLOCKED, 3) == [Acknowledge(FAR, (3,))]
    assert books.custody.waiting == 0
    assert books.custody.has_blocked
    assert books.custody.take_blocked(HOST, ("g",)) == []
    assert books.effects() == [Fetch(BLOCKED, 0, 2)]


def test_a_run_that_came_later_is_stored_later() -> None:
    books = Books()
    books.block(0, receipt=1)
    books.check(1.0)
    books.block(1, receipt=2)
    assert books.stored(BLOCKED, 1) == [Acknowledge(HOST, (1,))]
    assert books.custody.waiting == 1
    (duty,) = books.custody.take_blocked(HOST, ("g",))
    assert duty.runs == (run_of(1),)
    books.custody.release(BLOCKED, duty)
    assert books.effects() == [Fetch(BLOCKED, 0, 1), Acknowledge(HOST, (2,))]


def test_records_know_their_source_within_this_process() -> None:
    books = Books()
    for number, source in enumerate((FAR, NEAR, FAR)):
        books.custody.keep_blocked(source, ("g",), number)
    for number in (3, 4):
        books.custody.keep_blocked(FAR, ("g",), number)
    books.custody.take_blocked(FAR, ("g",))
    assert books.effects() == [Fetch(BLOCKED, 0, 1), Fetch(BLOCKED, 2, 5)]
    assert books.custody.take_sources([0], 1) == [FAR]
    # Position 3 was dropped meanwhile, and nothing of it is left either.
    assert books.custody.take_sources([2, 4], 5) == [FAR, FAR]
    assert books.custody._fetched_from == []
    assert books.custody.take_sources([1], 2) == [NOBODY]


def test_the_backlog_of_a_way_is_what_is_under_way_and_what_waits() -> None:
    books = Books(window_bytes=1)
    custody = books.custody
    assert custody.backlog_of(99) == 0
    books.give(0)
    books.give(1)
    assert custody.backlog_of(NEAR) == 2
    custody.close_way(NEAR)
    custody.restore({NEAR: (10, 13)})
    assert custody.backlog_of(NEAR) == 3
    books.effects()
    custody.open_way(books.now, NEAR)
    assert Fetch(NEAR, 10, 13) in books.effects()
    books.fetched(NEAR, 10, 11, 12, end=13)
    assert len(custody._ways[NEAR].front) == 2
    assert custody.backlog_of(NEAR) == 3


def test_an_outbox_in_which_nothing_waits_to_be_matched_asks_for_nothing() -> None:
    books = Books()
    books.custody.restore({BLOCKED: (7, 7)})
    assert not books.has_blocked()
    books.custody.fetch_unsorted()
    assert books.effects() == []
