"""Runs that are split and joined again."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.federator.pieces import joined, singles
from hanse.mqtt.publication import encode
from hanse.protocol.messages import Run
from hanse.protocol.packets import split


def run_of(count: int, first: int = 7) -> Run:
    body = b"".join(encode("t", b"%d" % (first + offset), qos=2) for offset in range(count))
    return Run(8, 1, first, count, 2, 3, ("g",), body)


def test_joining_the_publications_of_a_run_restores_it() -> None:
    run = run_of(5)
    assert [(single.first, single.length) for single in singles(run)] == [(number, 1) for number in range(7, 12)]
    assert joined(singles(run)) == [run]
    assert joined([]) == []


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_the_rest_keeps_its_ids_in_as_few_runs_as_possible(is_kept: list[bool]) -> None:
    kept = [single for single, keep in zip(singles(run_of(len(is_kept))), is_kept, strict=True) if keep]
    pieces = joined(kept)
    assert [single for piece in pieces for single in singles(piece)] == kept
    for piece in pieces:
        assert len(split(piece.body)) == piece.length
        assert piece._replace(first=0, length=0, body=b"") == run_of(1)._replace(first=0, length=0, body=b"")
    assert all(one.first + one.length < other.first for one, other in pairwise(pieces))
