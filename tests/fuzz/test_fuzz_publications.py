"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is a run that a neighbour sent. An accepted run is canonical, byte for byte, and can be processed.
"""

import pytest
from hypothesis import strategies as st
from tests.fuzz.fuzzing import assert_linear, fuzz
from tests.mqtt.test_publication import packets

from hanse.mqtt import publication
from hanse.mqtt.publication import Reader

RUNS = st.lists(packets().map(lambda one: publication.canonical(one.write())), min_size=1, max_size=3).map(b"".join)


def take(data: bytes) -> None:
    reader = Reader(is_canonical=True)
    found = reader.read_run(data)
    assert b"".join(one.packet for one in found) == data
    # The second time, topics and properties are cached, and take the fast path.
    assert reader.read_run(data) == found
    for one in found:
        parts = publication.decode(one.packet)
        assert (parts.topic, parts.payload, int(parts.qos)) == (one.topic, one.payload, one.qos)
        assert publication.expiry_s(publication.with_expiry(one.packet, 7)) == 7
        assert publication.qos_of(publication.with_qos(one.packet, 0)) == 0
        assert publication.expiry_s(one.packet) == parts.message_expiry_interval


def test_any_run_is_read_or_refused() -> None:
    fuzz("publications", RUNS, take)


@pytest.mark.slow
def test_a_run_of_a_megabyte_is_read_in_linear_time() -> None:
    def many(size: int) -> bytes:
        return b"".join(publication.encode(f"a/{n % 300}", b"x" * (n % 9), qos=n % 3) for n in range(size // 14))

    assert_linear(many, take)
    assert_linear(lambda size: publication.encode("a", b"x" * size), take)
