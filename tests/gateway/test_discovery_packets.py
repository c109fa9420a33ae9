"""Bytes that discovery reads from a broker, and sends."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.gateway import packets as p

from hanse.gateway.discovery.packets import CONNACK, PUBLISH, Packet, Reader, connect, puback, suback_codes, subscribe
from hanse.gateway.front.connect import read_connect
from hanse.mqtt.refusal import Refusal

STREAM = (
    p.connack()
    + p.suback(1, 1)
    + p.publish(b"a/b", bytes(300), 1, 7)
    + p.publish(b"c", b"", retain=True)
    + p.publish(b"d" * 200, bytes(70_000), 2, 9)
    + b"\xd0\x00"
)
EXPECTED = [
    Packet(CONNACK, b"\0\0\0"),
    Packet(9, b"\0\x01\0\x01"),
    Packet(PUBLISH, b"", b"a/b", 1, 7),
    Packet(PUBLISH, b"", b"c", 0, 0, True),
    Packet(PUBLISH, b"", b"d" * 200, 2, 9),
    Packet(13),
]


@settings(max_examples=examples(300))
@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=12))
def test_packets_are_found_for_any_cut_of_the_stream(cuts: list[int]) -> None:
    reader = Reader()
    found: list[Packet] = []
    edges = [0, *sorted(set(cuts)), len(STREAM)]
    for begin, end in itertools.pairwise(edges):
        found += reader.feed(STREAM[begin:end])
    assert found == EXPECTED
    assert reader.waiting_bytes == 0


def test_packets_are_found_byte_by_byte() -> None:
    reader = Reader()
    assert [one for k in range(len(STREAM)) for one in reader.feed(STREAM[k : k + 1])] == EXPECTED


def test_a_payload_is_never_kept() -> None:
    reader = Reader()
    reader.feed(p.connack())
    large = p.publish(b"t", bytes(3_000_000))
    assert [one.topic for one in reader.feed(large[:1_000])] == [b"t"]
    for begin in range(1_000, len(large), 65_536):
        assert reader.feed(large[begin : begin + 65_536]) == []
        assert reader.waiting_bytes == 0
    assert [one.kind for one in reader.feed(b"\xd0\x00")] == [13]


@pytest.mark.parametrize(
    "data",
    [
        b"\x30\xff\xff\xff\xff\x01",  # five bytes of length
        b"\x30\x80\x00",  # a length longer than it needs to be
        b"\x30\x03\x00\x09a",  # a topic beyond its packet
        b"\x36\x05\x00\x01a\x00\x01",  # QoS 3
        b"\x32\x03\x00\x01a",  # no packet identifier
        b"\x30\x04\x00\x02\xff\xfe",  # not UTF-8
        b"\x20\xff\xff\x7f",  # a CONNACK of 2 MB
        b"\x80\x05\x00\x01\x00\x01a",  # a SUBSCRIBE with the flags of none
        b"\xd1\x00",  # a PINGRESP with flags
    ],
)
def test_a_malformed_stream_is_refused(data: bytes) -> None:
    reader = Reader()
    reader.feed(p.connack())
    assert reader.feed(b"\xd0\x00" + data) == [Packet(13)]
    assert reader.refusal is not None
    assert reader.feed(b"\xd0\x00") == []


def test_another_protocol_is_refused_at_its_first_byte() -> None:
    reader = Reader()
    assert reader.feed(b"S") == []
    assert "0x53" in str(reader.refusal)


@settings(max_examples=examples(1_000))
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    reader = Reader()
    reader.feed(p.connack())
    for k in range(len(data)):
        reader.feed(data[k : k + 1])
    assert reader.waiting_bytes <= len(data)


@pytest.mark.parametrize("level", [4, 5])
def test_sent_packets_are_readable_by_the_gateway(level: int) -> None:
    packet = connect("c", level, b"user", b"secret", receive_max=20)
    found = read_connect(packet)
    assert (found.level, found.client_id, found.username, found.password) == (level, b"c", b"user", b"secret")
    assert found.is_transient
    assert found.will is None
    assert found.receive_max == (20 if level == 5 else 65_535)
    assert subscribe(3, ["#", "a/b"], 1, level) == p.subscribe(3, (b"#", 1), (b"a/b", 1), version=level)
    assert puback(258) == p.ack(0x40, 258)


def test_suback_codes() -> None:
    assert suback_codes(p.suback(1, 1, 0x8F)[2:], 5) == b"\x01\x8f"
    assert suback_codes(p.suback(1, 0x80, version=4)[2:], 4) == b"\x80"
    with pytest.raises(Refusal):
        suback_codes(b"\0\x01\x05", 5)
    with pytest.raises(Refusal):
        suback_codes(b"\0\x01", 4)
