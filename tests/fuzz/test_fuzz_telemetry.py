"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is a telemetry payload, on its topic. An accepted payload is the output of an encoder.
"""

from hypothesis import strategies as st
from tests.fuzz.fuzzing import assert_linear, fuzz
from tests.telemetry.test_encoding import rows_of

from hanse.telemetry import KINDS, Contract, ResourceSample, decode, encode, topic_for

NUMBERS = {kind: number for number, kind in enumerate(sorted(KINDS))}


def batch(kind: str, rows: list[Contract]) -> bytes:
    return bytes((NUMBERS[kind],)) + encode(kind, rows)


BATCHES = st.sampled_from(sorted(KINDS)).flatmap(lambda kind: rows_of(kind).map(lambda rows: batch(kind, rows)))


def take(data: bytes) -> None:
    kind = sorted(KINDS)[data[0] % len(KINDS)] if data else min(KINDS)
    rows = decode(topic_for(kind, "7"), data[1:])
    assert decode(topic_for(kind, "7"), encode(kind, rows)) == rows


def test_any_telemetry_is_read_or_refused() -> None:
    fuzz("telemetry", BATCHES, take)


def test_a_payload_is_read_in_linear_time() -> None:
    assert_linear(lambda size: b"\0" + b"\x01" * size, take)
    assert ResourceSample in KINDS.values()
