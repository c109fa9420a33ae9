import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.protocol import seen
from hanse.protocol.seen import CHUNK, EPOCHS_MAX, NOTHING, OVERFLOW, Done, SeenIds, SeenWindow

G: Done = (frozenset({"g"}), True)
H: Done = (frozenset({"h"}), False)


def test_a_run_is_new_once() -> None:
    window = SeenWindow()
    assert window.record_if_new(0.0, 10, 5, G)
    assert not window.record_if_new(0.0, 10, 5, G)
    assert not window.record_if_new(0.0, 14, 1, G)
    assert window.record_if_new(0.0, 15, 1, G)
    assert not window.record_if_new(0.0, 15, 5, G)
    assert window.record_if_new(0.0, 16, 5, G)


def test_a_run_that_is_partly_duplicate_comes_in_pieces_that_share_a_history() -> None:
    window = SeenWindow()
    window.record(0.0, 2, 2, G)
    window.record(0.0, 4, 1, H)
    assert list(window.pieces(0, 7)) == [(0, 2, NOTHING), (2, 2, G), (4, 1, H), (5, 2, NOTHING)]


def test_a_run_across_chunks_is_recorded_piece_by_piece() -> None:
    window = SeenWindow()
    first, count = CHUNK - 2, CHUNK + 4
    assert not window.record_if_new(0.0, first, count, G)  # the hot path leaves it to the other
    window.record(0.0, first, count, G)
    assert list(window.pieces(first - 1, count + 2)) == [
        (first - 1, 1, NOTHING),
        (first, count, G),
        (first + count, 1, NOTHING),
    ]


def test_forgotten_ids_are_refused_and_unknown_ones_are_not() -> None:
    window = SeenWindow()
    window.record(0.0, 5, 1, G)
    window.record(50.0, 3 * CHUNK, 1, G)
    assert window.forget(10.0) == 1
    assert list(window.pieces(4, 3)) == [(4, 2, None), (6, 1, NOTHING)]
    assert list(window.pieces(4, 1)) == [(4, 1, None)]
    assert not window.record_if_new(50.0, 5, 1, G)
    assert window.record_if_new(50.0, 6, 1, G)


def test_a_chunk_that_is_still_touched_keeps_the_later_ones() -> None:
    window = SeenWindow()
    window.record(50.0, 0, 1, G)
    window.record(0.0, CHUNK, 1, G)
    assert window.forget(10.0) == 2
    assert list(window.pieces(CHUNK, 1)) == [(CHUNK, 1, G)]


def test_more_histories_than_a_byte_can_name_are_kept() -> None:
    window = SeenWindow()
    histories: list[Done] = [(frozenset({str(number)}), False) for number in range(2 * OVERFLOW)]
    for number, done in enumerate(histories):
        window.record(0.0, 2 * number, 2, done)
    assert list(window.pieces(0, 4 * OVERFLOW)) == [(2 * n, 2, done) for n, done in enumerate(histories)]
    window.record(0.0, 1_000, 1, G)  # and may be replaced
    assert list(window.pieces(1_000, 2)) == [(1_000, 1, G), (1_001, 1, histories[500])]


def test_some_epochs_of_an_origin_are_remembered_and_the_oldest_is_dropped() -> None:
    seen = SeenIds(60.0, 1 << 20)
    windows = {epoch: seen.window(1, epoch) for epoch in range(10, 10 + EPOCHS_MAX)}
    assert None not in windows.values()
    assert seen.window(1, 10) is windows[10]
    assert seen.window(1, 9) is None
    assert seen.window(1, 10 + EPOCHS_MAX) is not None
    assert seen.window(1, 10) is None
    assert seen.window(1, 11) is windows[11]
    assert seen.window(2, 1) is not None


def test_ids_beyond_the_limit_are_forgotten_early() -> None:
    seen = SeenIds(60.0, 4 * CHUNK)
    window = seen.window(1, 1)
    assert window is not None
    for second in range(20):
        window.record(float(second), second * CHUNK, 1, G)
    seen.forget(20.0)
    left = [second for second in range(20) if next(window.pieces(second * CHUNK, 1))[2] == G]
    assert 0 < len(left) <= 4
    assert left[-1] == 19  # the newest


STRETCHES = st.tuples(st.integers(0, 3 * CHUNK), st.integers(1, 60))
DONE = st.sampled_from([G, H, (frozenset({"g", "h"}), True)])
ACTIONS = st.lists(st.tuples(st.sampled_from(["new", "record", "pieces", "forget"]), STRETCHES, DONE), max_size=30)


@settings(max_examples=examples(150), deadline=None)
@given(ACTIONS, st.sampled_from([0, CHUNK - 30]))
def test_a_window_behaves_like_a_dictionary(actions: list[tuple[str, tuple[int, int], Done]], shift: int) -> None:
    window, model = SeenWindow(), dict[int, Done]()
    touched: dict[int, float] = {}
    floor = 0
    for now, (action, (first, count), done) in enumerate(actions, start=1):
        ids = range(first + shift, first + shift + count)
        if action == "new":
            is_new = window.record_if_new(float(now), ids[0], count, done)
            if ids[0] // CHUNK == ids[-1] // CHUNK:
                assert is_new == (ids[0] >= floor and not any(number in model for number in ids))
            if is_new:
                model.update(dict.fromkeys(ids, done))
                touched[ids[0] // CHUNK] = now
        elif action == "record" and ids[0] >= floor:
            window.record(float(now), ids[0], count, done)
            model.update(dict.fromkeys(ids, done))
            touched.update({number // CHUNK: now for number in ids})
        elif action == "forget":
            before = now - 5.0
            window.forget(before)
            for chunk in sorted(touched):
                if touched[chunk] >= before:
                    break
                del touched[chunk]
                gone = [number for number in model if number // CHUNK == chunk]
                floor = max([floor, *(number + 1 for number in gone)])
                for number in gone:
                    del model[number]
        told = [(n, what) for start, size, what in window.pieces(ids[0], count) for n in range(start, start + size)]
        assert told == [(number, None if number < floor else model.get(number, NOTHING)) for number in ids]


def test_fresh_ids_are_kept_even_if_there_are_too_many() -> None:
    seen = SeenIds(60.0, CHUNK)
    window = seen.window(1, 1)
    assert window is not None
    for chunk in range(5):
        window.record(20.0, chunk * CHUNK, 1, G)
    seen.forget(20.0)  # what came at this very moment is never forgotten
    assert next(window.pieces(0, 1))[2] == G


def test_origins_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "ORIGINS_MAX", 2)
    ids = SeenIds(60.0, CHUNK)
    assert ids.window(1, 1) is not None
    assert ids.window(2, 1) is not None
    assert ids.window(3, 1) is None
    assert ids.window(1, 2) is not None


def test_a_pair_is_not_new_if_its_second_id_is_known() -> None:
    window = SeenWindow()
    assert window.record_if_new(0.0, 20, 1, G)
    assert not window.record_if_new(0.0, 19, 2, G)
    assert list(window.pieces(19, 2)) == [(19, 1, NOTHING), (20, 1, G)]
