"""Publications that waited on disk: the expiry of each continues, and expired ones leave a gap."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.federator.aging import aged
from hanse.mqtt.publication import encode, expiry_s
from hanse.protocol.messages import Run
from hanse.protocol.packets import split


def run_of(*expiries: int | None, first: int = 10) -> Run:
    packets = [encode("t", b"%d" % k, qos=1, expiry_s=left) for k, left in enumerate(expiries)]
    return Run(8, 1, first, len(packets), 1, 3, ("g", "h"), b"".join(packets))


def packets_of(run: Run) -> list[bytes]:
    return [run.body[start:end] for start, end in split(run.body)]


def left_in(pieces: list[Run]) -> list[tuple[int, int | None]]:
    """Return (id, expiry) of all remaining publications."""
    return [
        (piece.first + offset, expiry_s(packet)) for piece in pieces for offset, packet in enumerate(packets_of(piece))
    ]


@pytest.mark.parametrize("age_s", [-5.0, 0.0, 0.99])
def test_a_publication_that_waited_less_than_a_second_is_unchanged(age_s: float) -> None:
    run = run_of(1, None, 5)
    assert aged(run, age_s) == [run]


def test_a_run_without_expiries_is_not_touched() -> None:
    run = run_of(None, None)
    (same,) = aged(run, 1e6)
    assert same is run


def test_waiting_time_is_subtracted_from_the_expiry() -> None:
    (piece,) = aged(run_of(100, None, 61), 60.9)
    assert left_in([piece]) == [(10, 40), (11, None), (12, 1)]
    assert (piece.first, piece.length, piece.groups, piece.hops) == (10, 3, ("g", "h"), 3)


def test_a_publication_that_expires_in_this_second_is_gone() -> None:
    assert aged(run_of(60), 60.0) == []


@pytest.mark.parametrize(
    ("expiries", "expected"),
    [
        ((5, None, 5, None, None, 5), [(11, 1), (13, 2)]),
        ((5, 5, None), [(12, 1)]),
        ((None, 5, 5), [(10, 1)]),
        ((5, 5), []),
        ((50, 5, 50), [(10, 1), (12, 1)]),
    ],
)
def test_expired_publications_leave_gaps_and_the_others_keep_their_ids(
    expiries: tuple[int | None, ...], expected: list[tuple[int, int]]
) -> None:
    run = run_of(*expiries)
    pieces = aged(run, 10.0)
    assert [(piece.first, piece.length) for piece in pieces] == expected
    for piece in pieces:
        payloads = [packet[-1:] for packet in packets_of(piece)]
        assert payloads == [b"%d" % (piece.first - run.first + offset) for offset in range(piece.length)]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), min_size=1, max_size=9), st.floats(0, 30))
def test_each_publication_keeps_its_remaining_time(expiries: list[int | None], age_s: float) -> None:
    waited = int(age_s)
    expected = [
        (10 + offset, None if left is None else left - waited)
        for offset, left in enumerate(expiries)
        if waited == 0 or left is None or left > waited
    ]
    assert left_in(aged(run_of(*expiries), age_s)) == expected
