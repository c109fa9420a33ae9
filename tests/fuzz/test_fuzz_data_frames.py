"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is a data frame's bytes. An accepted frame keeps its meaning when it is sent on.
"""

import pytest
from tests.fuzz.fuzzing import assert_linear, fuzz
from tests.protocol.net import packet
from tests.protocol.strategies import batches

from hanse.protocol import codec
from hanse.protocol.messages import Run
from hanse.protocol.packets import split
from hanse.protocol.settings import SEQUENCE_MAX


def take(data: bytes) -> None:
    runs = codec.decode_data(data)
    assert codec.decode_data(codec.encode_data(runs)) == runs
    for run in runs:
        assert run.length == len(split(run.body))
        assert run.first + run.length - 1 <= SEQUENCE_MAX


def test_any_data_frame_is_read_or_refused() -> None:
    fuzz("data_frames", batches().map(codec.encode_data), take)


@pytest.mark.slow
def test_a_data_frame_of_a_megabyte_is_read_in_linear_time() -> None:
    def runs(size: int) -> bytes:
        return codec.encode_data([Run(n, 1, 0, 1, 0, 1, (f"g/{n % 50}",), packet("a")) for n in range(size // 20)])

    def packets_(size: int) -> bytes:
        body = b"".join(packet("a/b", b"x" * (n % 7)) for n in range(size // 12))
        return codec.encode_data([Run(1, 1, 0, size // 12, 0, 1, ("a/b",), body)])

    def groups(size: int) -> bytes:
        named = tuple(f"g/{n}" for n in range(size // 16))
        return codec.encode_data([Run(1, 1, 0, 1, 0, 1, named, packet("a"))])

    assert_linear(runs, take)
    assert_linear(packets_, take)
    assert_linear(groups, take)
