"""The bytes of a record in the outbox, in parts."""

import contextlib
import random
import struct

import pytest

from hanse.errors import RemoteError
from hanse.federator.records import PART_BYTES, PART_PUBLICATIONS, decode, encode
from hanse.mqtt.publication import encode as packet
from hanse.protocol import codec
from hanse.protocol.messages import Run


def run_of(first: int, count: int, size: int = 20, *, origin: int = 3, stamp_base: int = 0) -> Run:
    body = b"".join(packet("a/b", bytes([number % 251]) * size, qos=1) for number in range(count))
    return Run(origin, 50, first, count, 1, 1, ("a/#",), body, stamp_base=stamp_base)


@pytest.mark.parametrize(
    "runs",
    [
        [run_of(0, 1)],
        [run_of(0, 1000, stamp_base=7)],
        [run_of(0, 5), run_of(5, 5), run_of(90, 40), run_of(0, 3, origin=4)],
        [run_of(10, 9, 5_000)],
        [run_of(1, 3, PART_BYTES * 2)],
    ],
)
def test_written_runs_are_read_unchanged(runs: list[Run]) -> None:
    ((written_s, found),) = decode(b"".join(encode(runs, 123.5)))
    assert written_s == 123.5
    assert b"".join(run.body for run in found) == b"".join(run.body for run in runs)
    assert ids(found) == ids(runs)


def ids(runs: list[Run]) -> list[tuple[int, int, int]]:
    return [(run.origin, run.stamp_base, run.first + offset) for run in runs for offset in range(run.length)]


def test_a_part_holds_few_publications_or_few_bytes() -> None:
    for part in encode([run_of(0, 1000), run_of(2000, 50, 3_000)], 1.0):
        ((_, runs),) = decode(part)
        count = sum(run.length for run in runs)
        assert count == 1 or (count <= PART_PUBLICATIONS and sum(len(run.body) for run in runs) <= PART_BYTES)


def test_a_cut_run_is_one_run_again_and_a_lost_part_leaves_a_gap_in_its_ids() -> None:
    parts = encode([run_of(0, 100)], 1.0)
    assert len(parts) == -(-100 // PART_PUBLICATIONS)
    assert [run.length for _, runs in decode(b"".join(parts)) for run in runs] == [100]
    rest = [run for _, runs in decode(b"".join((*parts[:2], *parts[3:]))) for run in runs]
    assert [(run.first, run.length) for run in rest] == [(0, 32), (48, 52)]


def test_a_record_of_an_older_version_is_read() -> None:
    run = run_of(7, 40)
    assert decode(struct.pack(">d", 1.7e9) + codec.encode_data([run])) == [(1.7e9, [run])]


@pytest.mark.parametrize("seed", range(20))
def test_bytes_that_are_no_record_are_refused_or_read_as_runs(seed: int) -> None:
    rng = random.Random(seed)
    whole = b"".join(encode([run_of(0, 40)], 1.0))
    for payload in (b"", rng.randbytes(9), rng.randbytes(200), b"\1" + rng.randbytes(60), whole[: rng.randrange(700)]):
        with contextlib.suppress(RemoteError):
            assert all(isinstance(run, Run) for _, runs in decode(payload) for run in runs)
