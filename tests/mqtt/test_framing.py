"""A stream is split into packets, however it is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.mqtt.framing import Row, Splitter
from hanse.mqtt.properties import varint

CONNECT = b"\x10\x0d\x00\x04MQTT\x05\x00\x00\x00\x00\x00\x00"
packets = st.builds(
    lambda head, body: bytes((head,)) + varint(len(body)) + body,
    st.integers(0, 255),
    st.binary(max_size=40) | st.sampled_from([b"x" * 127, b"x" * 128, b"x" * 16_383, b"x" * 16_384]),
)


def drain(splitter: Splitter, data: bytes) -> list[bytes]:
    found, offsets = splitter.feed(data)
    return [found[start:end] for start, end in offsets]


@given(st.lists(packets, max_size=10), st.integers(1, 5000))
def test_packets_come_out_as_they_went_in_for_any_chunk_size(sent: list[bytes], chunk: int) -> None:
    stream = b"".join(sent)
    splitter = Splitter(100_000)
    found: list[bytes] = []
    for at in range(0, len(stream), chunk):
        found += drain(splitter, stream[at : at + chunk])
    assert found == sent
    assert splitter.refusal is None
    assert splitter.waiting_bytes == 0


def test_a_large_packet_in_small_pieces_is_copied_once() -> None:
    body = bytes(4 * 1024 * 1024)
    packet = b"\x30" + varint(len(body)) + body
    splitter = Splitter(len(packet))
    joins = 0
    for at in range(0, len(packet), 512):
        before = len(splitter._pieces)
        found = drain(splitter, packet[at : at + 512])
        if before and not splitter._pieces:
            joins += 1
    assert found == [packet]
    # Once the header was known, nothing was joined before the last piece arrived.
    assert joins == 1


def test_a_packet_over_the_limit_is_refused_before_any_of_it_is_kept() -> None:
    splitter = Splitter(1000)
    good = b"\x30\x02ab"
    assert drain(splitter, good + b"\x30" + varint(998) + b"x" * 100) == [good]
    assert splitter.refusal is not None
    assert splitter.refusal.reason_code == 0x95
    assert splitter.waiting_bytes == 0
    assert drain(splitter, good) == []
    at_the_limit = Splitter(1000)
    assert len(drain(at_the_limit, b"\x30" + varint(997) + b"x" * 997)) == 1


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x01", b"\x85\x00", b"\x80\x80\x00"])
def test_a_length_of_five_bytes_or_with_padding_is_malformed(length: bytes) -> None:
    for chunk in (1, 100):
        splitter = Splitter(1000)
        stream = b"\x30" + length
        for at in range(0, len(stream), chunk):
            assert drain(splitter, stream[at : at + chunk]) == []
        assert splitter.refusal is not None
        assert splitter.refusal.reason_code == 0x81


def test_a_server_accepts_nothing_before_connect() -> None:
    for first in range(256):
        splitter = Splitter(1000, first_kind=1, first_bytes_max=100)
        drain(splitter, bytes((first,)))
        assert (splitter.refusal is None) == (first >> 4 == 1), first


def test_a_connect_has_a_smaller_limit_than_later_packets() -> None:
    splitter = Splitter(1000, first_kind=1, first_bytes_max=100)
    long = b"\x30" + varint(500) + b"x" * 500
    assert drain(splitter, CONNECT + long) == [CONNECT, long]
    assert splitter.refusal is None
    splitter = Splitter(1000, first_kind=1, first_bytes_max=100)
    assert drain(splitter, b"\x10" + varint(500)) == []
    assert splitter.refusal is not None
    assert splitter.refusal.reason_code == 0x95


@given(st.integers(2, 140), st.integers(1, 30), st.binary(max_size=9), st.integers(1, 3000))
def test_packets_of_one_size_come_out_as_they_went_in(size: int, count: int, tail: bytes, chunk: int) -> None:
    body = varint(size) + bytes(size)
    sent = [bytes((0x30 | n & 1,)) + body for n in range(count)]
    stream = b"".join(sent) + b"\xc0\x00" + b"\x40" + varint(len(tail)) + tail
    splitter = Splitter(100_000)
    found: list[bytes] = []
    for at in range(0, len(stream), chunk):
        found += drain(splitter, stream[at : at + chunk])
    assert found == [*sent, b"\xc0\x00", b"\x40" + varint(len(tail)) + tail]


def test_attack_a_row_of_packets_above_the_limit_is_refused() -> None:
    splitter = Splitter(20)
    assert drain(splitter, b"\x30\x20" * 1000) == []
    assert splitter.refusal is not None


def test_a_row_is_a_list_of_offsets() -> None:
    row = Row(4, 10)
    listed = [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert list(row) == listed
    assert [row[k] for k in range(-4, 4)] == listed * 2
    assert row[1:] == listed[1:]
    assert row[:2] == listed[:2]
    assert len(row) == 4
    with pytest.raises(IndexError):
        row[4]
