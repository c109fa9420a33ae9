import dataclasses
import doctest
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hanse.telemetry
from hanse.errors import LocalError, RemoteError
from hanse.telemetry import (
    KINDS,
    PAYLOAD_BYTES_MAX,
    ROWS_MAX,
    Contract,
    Delivery,
    LinkCount,
    ResourceSample,
    decode,
    decode_columns,
    encode,
    encode_batches,
    fields_of,
    topic_for,
)
from hanse.telemetry.encoding import MOMENT_US_MAX
from hanse.telemetry.registry import Field

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def values_of(field: Field) -> st.SearchStrategy[Any]:
    largest = MOMENT_US_MAX if field.is_moment else 2**63 - 1
    strategies: dict[type, st.SearchStrategy[Any]] = {
        int: st.integers(0, 300) | st.integers(0, largest),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        str: st.sampled_from(["", "a", "<script>", "grüße/中文"]) | TEXT,
    }
    return st.none() | strategies[field.type] if field.is_nullable else strategies[field.type]


def rows_of(kind: str) -> st.SearchStrategy[list[Contract]]:
    contract = KINDS[kind]
    row: st.SearchStrategy[Any] = st.builds(contract, **{field.name: values_of(field) for field in fields_of(contract)})
    return st.lists(row, min_size=1, max_size=20)


BATCHES = st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), rows_of(kind)))


def delivery(seq: int = 1, **changes: Any) -> Delivery:
    row = Delivery("1", 1_700_000_000, seq, "a/b", "a/+", 1, 2, None, 1_800_000_000_000_000 + seq)
    return dataclasses.replace(row, **changes)


def sample(**changes: Any) -> ResourceSample:
    return dataclasses.replace(ResourceSample(2, 1, "h", "federator", 3, 4), **changes)


@given(BATCHES)
@settings(deadline=None)
def test_encoded_rows_decode_to_the_same_rows(batch: tuple[str, list[Contract]]) -> None:
    kind, rows = batch
    assert decode(topic_for(kind, "7"), encode(kind, rows)) == rows


@given(BATCHES, st.data())
@settings(deadline=None)
def test_every_strict_prefix_and_every_trailing_byte_is_refused(
    batch: tuple[str, list[Contract]], data: st.DataObject
) -> None:
    kind, rows = batch
    payload = encode(kind, rows)
    for size in range(len(payload)) if len(payload) < 300 else [data.draw(st.integers(0, len(payload) - 1))]:
        with pytest.raises(RemoteError):
            decode(topic_for(kind, "7"), payload[:size])
    with pytest.raises(RemoteError, match="1 bytes after its end"):
        decode(topic_for(kind, "7"), payload + b"\0")


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=300))
def test_any_bytes_decode_to_rows_or_raise_a_remote_error(kind: str, payload: bytes) -> None:
    with pytest.raises(RemoteError):
        decode(topic_for(kind, "7"), payload)


@given(BATCHES, st.data())
@settings(deadline=None)
def test_a_flipped_bit_gives_rows_or_a_remote_error(batch: tuple[str, list[Contract]], data: st.DataObject) -> None:
    kind, rows = batch
    payload = bytearray(encode(kind, rows))
    bit = data.draw(st.integers(0, len(payload) * 8 - 1))
    payload[bit // 8] ^= 1 << bit % 8
    try:
        decoded = decode(topic_for(kind, "7"), bytes(payload))
    except RemoteError:
        return
    assert len(decoded) <= ROWS_MAX


def test_columns_and_rows_agree() -> None:
    rows = [delivery(1), delivery(2, published_at_us=5)]
    said, columns = decode_columns(topic_for("delivery", "9"), encode("delivery", rows))
    assert (said.kind, said.reporter) == ("delivery", "9")
    assert columns["seq"] == [1, 2]
    assert columns["published_at_us"] == [None, 5]


HEADER = encode("resource", [sample()])[:7]
CONSTANT = struct.pack("<BQ", 0, 5)


@pytest.mark.parametrize(
    ("topic", "payload", "message"),
    [
        ("sensors/a", b"", "is not \\$hanse/telemetry/v1/<kind>/<id>"),
        ("$hanse/telemetry/v1/resource", b"", "is not \\$hanse/telemetry/v1/<kind>/<id>"),
        ("$hanse/telemetry/v1/resource/a/b", b"", "is not \\$hanse/telemetry/v1/<kind>/<id>"),
        ("$hanse/telemetry/v2/resource/a", b"", "version 'v2'; this build supports v1"),
        ("$hanse/telemetry/v1/nosuch/a", b"", "unknown kind 'nosuch'"),
        ("$hanse/telemetry/v1/resource/<script>", b"", "1 to 260 letters"),
        ("$hanse/telemetry/v1/resource/", b"", "1 to 260 letters"),
        (topic_for("resource", "7"), b"", "ends at byte 0, inside a field of 7 bytes"),
        (topic_for("resource", "7"), b"\x02" + HEADER[1:], "format 2; this build supports 1"),
        (topic_for("hop", "7"), encode("resource", [sample()]), "fields other than this build's"),
        (topic_for("resource", "7"), HEADER[:5] + b"\0\0", "batch has 0 rows"),
        (topic_for("resource", "7"), HEADER[:5] + b"\xff\xff", "batch has 65535 rows; expected 1 to 10000"),
        (topic_for("resource", "7"), HEADER + b"\x03" + bytes(8), "have 3 bytes; expected a width"),
        (topic_for("resource", "7"), HEADER + struct.pack("<BQ", 0, MOMENT_US_MAX + 1), "expected at most 2534"),
        (topic_for("resource", "7"), HEADER + CONSTANT * 2 + b"\xff\xff\xff\xff", "4294967295 distinct strings"),
        (topic_for("resource", "7"), HEADER + CONSTANT * 2 + bytes(4), "0 distinct strings; expected 1 to 1"),
        (topic_for("resource", "7"), HEADER + CONSTANT * 2 + b"\1\0\0\0\1\0\xff", "is not UTF-8"),
        (
            topic_for("resource", "7"),
            HEADER + CONSTANT * 2 + b"\1\0\0\0\1\0a" + CONSTANT,
            "integer 5; expected at most 0",
        ),
        (topic_for("resource", "7"), bytes(PAYLOAD_BYTES_MAX + 1), f"of {PAYLOAD_BYTES_MAX + 1} bytes; at most"),
    ],
)
def test_malformed_telemetry_is_refused_with_its_reason(topic: str, payload: bytes, message: str) -> None:
    with pytest.raises(RemoteError, match=message):
        decode(topic, payload)


def test_a_few_bytes_cannot_claim_much_memory() -> None:
    payload = encode("link", [LinkCount(1, 1, "n", *[1] * 11)] * ROWS_MAX)
    assert len(payload) < 200
    tracemalloc.start()
    decode_columns(topic_for("link", "7"), payload)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 20_000_000


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        ("nosuch", [sample()], "There is no telemetry kind 'nosuch'"),
        ("delivery", [], "1 to 10000 rows; got 0"),
        ("delivery", [delivery()] * (ROWS_MAX + 1), "got 10001: use encode_batches"),
        ("delivery", [sample()], "must hold Delivery; got ResourceSample"),
        ("resource", [sample(cpu_us=-1)], "between 0 and 9223372036854775807; got -1"),
        ("resource", [sample(cpu_us=2**63)], "between 0 and 9223372036854775807"),
        ("resource", [sample(cpu_us=True)], "column of int got a bool"),
        ("resource", [sample(cpu_us=1.0)], "column of int got a float"),
        ("resource", [sample(cpu_us=None)], "column of int got a NoneType"),
        ("resource", [sample(at_us=MOMENT_US_MAX + 1)], "after the year 9999"),
        ("resource", [sample(host="\ud800")], "cannot be UTF-8"),
        ("resource", [sample(host="h" * 65_536)], "of 65536 bytes; at most 65535"),
    ],
)
def test_bad_rows_are_refused_before_they_travel(kind: str, rows: list[Contract], message: str) -> None:
    with pytest.raises(LocalError, match=message):
        encode(kind, rows)


def test_many_or_large_rows_are_split_into_batches_within_the_limits() -> None:
    rows = [delivery(seq, topic=f"{seq}/" + "t" * 2_000) for seq in range(2_500)]
    batches = list(encode_batches("delivery", rows))
    assert max(map(len, batches)) <= PAYLOAD_BYTES_MAX
    assert [row for batch in batches for row in decode(topic_for("delivery", "7"), batch)] == rows
    assert len(list(encode_batches("delivery", [delivery(seq) for seq in range(ROWS_MAX + 1)]))) == 2
    assert list(encode_batches("delivery", [])) == []


def test_a_bad_row_among_many_is_named_and_not_lost_silently() -> None:
    with pytest.raises(LocalError, match="got -1"):
        list(encode_batches("resource", [sample(), sample(cpu_us=-1)]))


def test_a_delivery_costs_about_twenty_bytes() -> None:
    rows = [delivery(seq * 10, topic=f"plant/{seq % 50}/temperature") for seq in range(1_000)]
    assert len(encode("delivery", rows)) / len(rows) < 20


def test_the_example_in_the_package_runs() -> None:
    assert doctest.testmod(hanse.telemetry).failed == 0
