"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is a run's body, as a hop parses it: ends of packets and topics. It agrees with the package that reads them
whole.
"""

import pytest
from hypothesis import strategies as st
from tests.fuzz.fuzzing import assert_linear, fuzz
from tests.protocol.net import packet

from hanse.errors import RemoteError
from hanse.mqtt import publication
from hanse.mqtt.refusal import Refusal
from hanse.protocol import packets

TOPICS = st.sampled_from(["a", "a/b", "ü/e\u0301", "$SYS/x", "a/+", "x" * 130, "x" * 17_000])
BODIES = st.lists(st.builds(packet, TOPICS, st.binary(max_size=140), st.just(1)), min_size=1, max_size=4).map(b"".join)


def take(data: bytes) -> None:
    spans = packets.split(data)
    assert b"".join(data[start:end] for start, end in spans) == data
    if spans:
        packets.check_body(data, len(spans), data[0] >> 1 & 3)
    for start, end in spans:
        topic = packets.topic_of(data, start)
        assert topic.encode() in data[start:end]


def agree(data: bytes) -> None:
    """Check that the protocol splits a run in the same places as the package `mqtt`."""
    try:
        whole = publication.Reader(is_canonical=True).read_run(data)
    except Refusal:
        whole = None
    try:
        spans = packets.split(data)
    except RemoteError:
        assert whole is None
        raise
    if whole is not None:
        assert [one.packet for one in whole] == [data[start:end] for start, end in spans]
        assert [one.topic for one in whole] == [packets.topic_of(data, start) for start, _ in spans]
    take(data)


def test_any_body_is_split_or_refused() -> None:
    fuzz("packets", BODIES, agree)


@pytest.mark.slow
def test_a_body_of_a_megabyte_is_split_in_linear_time() -> None:
    assert_linear(lambda size: packet("a/b", b"xy") * (size // 10), take)
    assert_linear(lambda size: packet("a/b", b"x" * size), take)
    assert_linear(lambda size: b"\x30\x00" * (size // 2), take)
