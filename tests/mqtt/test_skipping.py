"""A PUBLISH beyond the limit is left out of the stream, and nothing else is."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hanse.mqtt.codec import CONNACK
from hanse.mqtt.publication import encode, with_packet_ids
from hanse.mqtt.refusal import PACKET_TOO_LARGE
from hanse.mqtt.skipping import SkippingSplitter

LIMIT = 200


def packet(size: int, qos: int, number: int) -> bytes:
    whole = encode("a/b", bytes(size), qos=qos)
    return bytes(with_packet_ids(whole, [(0, len(whole))], number))


PACKETS = st.tuples(st.sampled_from([0, 100, 150, 300, 2_000]), st.integers(0, 2), st.integers(1, 65_535))


@given(st.lists(PACKETS, max_size=6), st.sampled_from([1, 3, 7, 100, 1_000, 1 << 20]))
@example([(70_000, 1, 9), (0, 1, 10), (140_000, 2, 11)], 60_000)
def test_packets_within_the_limit_come_out_for_any_chunk_size(parts: list[tuple[int, int, int]], chunk: int) -> None:
    sent = [packet(*part) for part in parts]
    skipped: list[tuple[int, int]] = []
    splitter = SkippingSplitter(LIMIT, on_skipped=lambda qos, number: skipped.append((qos, number)))
    stream = b"".join(sent)
    found: list[bytes] = []
    for at in range(0, len(stream), chunk):
        data, offsets = splitter.feed(stream[at : at + chunk])
        found += [data[start:end] for start, end in offsets]
        assert splitter.waiting_bytes <= LIMIT + chunk
    assert splitter.refusal is None
    assert found == [one for one in sent if len(one) <= LIMIT]
    large = [one for one in sent if len(one) > LIMIT]
    expected = [
        (one[0] >> 1 & 3, int.from_bytes(one[one.index(b"a/b") + 3 :][:2]) if one[0] & 6 else 0) for one in large
    ]
    assert skipped == expected


def test_only_the_front_of_a_skipped_packet_is_kept() -> None:
    skipped: list[tuple[int, int]] = []
    splitter = SkippingSplitter(LIMIT, on_skipped=lambda qos, number: skipped.append((qos, number)))
    splitter.feed(b"\x32\xff\xff\xff\x7f\x00\x03a/b\x00\x07\x00")
    for _ in range(268_435_455 // (1 << 20)):
        splitter.feed(bytes(1 << 20))
        assert len(splitter._front) <= 65_544
        assert splitter.waiting_bytes == 0
    splitter.feed(bytes(1 << 20))
    assert skipped == [(1, 7)]


@pytest.mark.parametrize("stream", [b"\x90\xff\xff\x7f", b"\x20\xff\xff\x7f"])
def test_another_packet_beyond_the_limit_ends_the_connection(stream: bytes) -> None:
    splitter = SkippingSplitter(LIMIT, on_skipped=lambda *_: None)
    assert splitter.feed(stream)[1] == []
    assert splitter.refusal is not None
    assert splitter.refusal.reason_code == PACKET_TOO_LARGE


def test_the_first_packet_is_never_skipped() -> None:
    splitter = SkippingSplitter(LIMIT, first_kind=CONNACK, on_skipped=lambda *_: None)
    splitter.feed(packet(300, 0, 1))
    assert splitter.refusal is not None
