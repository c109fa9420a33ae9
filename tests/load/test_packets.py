"""The fast reader against the plain codec, and blocks against their expected contents."""

import contextlib
import random
import struct

import mqtt5
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.errors import RemoteError
from hanse.load.packets import BLOCK_BYTES_MAX, STAMP_BYTES, Arrivals, Block, Reader, filler


def stamped(publisher: int, number: int, time_ns: int, size: int = 64, run: int = 7) -> bytes:
    return struct.pack(">IIQQ", run, publisher, number, time_ns) + filler(size)


def decode(content: bytes | memoryview) -> list[mqtt5.Packet]:
    view, packets = memoryview(bytes(content)), []
    while view:
        packet, size = mqtt5.read(view)
        packets.append(packet)
        view = view[size:]
    return packets


def records(arrivals: Arrivals) -> list[tuple[int, int, int, int]]:
    return [record for row in arrivals.rows for record in row.records]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [STAMP_BYTES, 64, 200, 20_000])
def test_a_block_equals_the_codecs_output(qos: int, size: int) -> None:
    block = Block(7, 3, ["a/b", "c"], size, qos)
    assert block.messages % 2 == 0
    first = block.take(10, [100, 101, 102]) if block.room() >= 3 else block.take(10, [100])
    packets = decode(first)
    for k, packet in enumerate(packets):
        assert isinstance(packet, mqtt5.PublishPacket)
        assert packet.topic == ("a/b", "c")[k % 2]
        assert packet.payload == stamped(3, 10 + k, 100 + k, size)
        assert packet.qos == qos
        assert packet.packet_id == (10 + k + 1 if qos else None)


def test_blocks_restart_and_large_payloads_make_small_blocks() -> None:
    block = Block(7, 0, ["t"], 100_000, 0)
    assert block.messages == BLOCK_BYTES_MAX // 100_010
    for number in range(5):
        (packet,) = decode(block.take(number, [0]))
        assert isinstance(packet, mqtt5.PublishPacket)
        assert packet.payload[8:16] == struct.pack(">Q", number)
        assert 1 <= block.room() <= block.messages


def test_packet_ids_wrap_around_without_zero() -> None:
    block = Block(7, 0, ["t"], 64, 1)
    ids = [
        packet.packet_id
        for packet in decode(block.take(65_533, [0, 0, 0, 0]))
        if isinstance(packet, mqtt5.PublishPacket)
    ]
    assert ids == [65_534, 65_535, 1, 2]


def test_a_row_is_read_and_acknowledged_in_one_go() -> None:
    sent = bytes(Block(7, 1, ["t"], 64, 1).take(0, [5] * 200))
    arrivals = Reader(64, verify=True).feed(sent)
    assert [len(row.records) for row in arrivals.rows] == [200]
    assert arrivals.rows[0].corrupted == 0
    assert records(arrivals) == [(7, 1, number, 5) for number in range(200)]
    assert bytes(arrivals.answers) == b"".join(mqtt5.PubAckPacket(number + 1).write() for number in range(200))


@st.composite
def streams(draw: st.DrawFn) -> list[mqtt5.PublishPacket]:
    packets = []
    for number in range(draw(st.integers(1, 60))):
        qos = draw(st.sampled_from([0, 0, 0, 1, 2]))
        packets.append(
            mqtt5.PublishPacket(
                draw(st.sampled_from(["t", "t", "t", "u", "longer/topic", "x" * 200])),
                stamped(draw(st.integers(0, 2)), number, number * 10, draw(st.sampled_from([64, 64, 64, 70]))),
                qos=mqtt5.QoS(qos),
                packet_id=number + 1 if qos else None,
                retain=draw(st.booleans()),
                user_properties=draw(st.sampled_from([[], [], [("a", "b")], [("k", "v" * 300)]])),
            )
        )
    return packets


@settings(deadline=None)
@given(streams(), st.integers(0, 2**32))
def test_any_stream_in_any_chunks_is_read_like_the_codec_does(packets: list[mqtt5.PublishPacket], seed: int) -> None:
    content = b"".join(packet.write() for packet in packets)
    chance = random.Random(seed)
    reader, got, answers, corrupted = Reader(64), [], b"", 0
    while content:
        size = chance.choice([1, 7, 100, 1000, 10_000])
        arrivals = reader.feed(content[:size])
        content = content[size:]
        got += records(arrivals)
        answers += bytes(arrivals.answers)
        corrupted += sum(row.corrupted for row in arrivals.rows)
    assert got == [struct.unpack(">IIQQ", packet.payload[:24]) for packet in packets]
    kinds = {1: mqtt5.PubAckPacket, 2: mqtt5.PubRecPacket}
    expected = [kinds[int(packet.qos)](packet.packet_id) for packet in packets if packet.packet_id is not None]
    assert answers == b"".join(answer.write() for answer in expected)
    assert corrupted == sum(len(packet.payload) != 64 for packet in packets)


def test_an_altered_payload_is_found_on_request() -> None:
    sent = bytearray(Block(7, 1, ["t"], 64, 0).take(0, [5] * 20))
    sent[-1] ^= 1
    assert Reader(64, verify=True).feed(bytes(sent)).rows[0].corrupted == 1
    short = mqtt5.PublishPacket("t", b"short").write()
    assert Reader(64).feed(short).rows[0].corrupted == 1


def test_acknowledgements_are_counted_and_answered_in_every_form() -> None:
    reader = Reader(64)
    acks = b"".join(mqtt5.PubAckPacket(number).write() for number in range(1, 51))
    none = mqtt5.PubAckPacket(51, reason_code=mqtt5.PubAckReasonCode.NO_MATCHING_SUBSCRIBERS).write()
    denied = mqtt5.PubAckPacket(52, reason_code=mqtt5.PubAckReasonCode.NOT_AUTHORIZED).write()
    arrivals = reader.feed(acks + none + denied)
    assert (arrivals.acknowledged, arrivals.refused) == (52, 1)

    recs = b"".join(mqtt5.PubRecPacket(number).write() for number in range(1, 11))
    arrivals = reader.feed(recs)
    assert arrivals.acknowledged == 0
    assert bytes(arrivals.answers) == b"".join(mqtt5.PubRelPacket(number).write() for number in range(1, 11))
    refused = mqtt5.PubRecPacket(11, reason_code=mqtt5.PubRecReasonCode.QUOTA_EXCEEDED).write()
    arrivals = reader.feed(refused)
    assert (arrivals.acknowledged, arrivals.refused, bytes(arrivals.answers)) == (1, 1, b"")

    rels = b"".join(mqtt5.PubRelPacket(number).write() for number in (3, 4))
    assert bytes(reader.feed(rels).answers) == b"".join(mqtt5.PubCompPacket(number).write() for number in (3, 4))
    assert reader.feed(b"".join(mqtt5.PubCompPacket(number).write() for number in range(1, 9))).acknowledged == 8


def test_bytes_that_are_not_mqtt_are_refused() -> None:
    for wrong in (b"\x30\xff\xff\xff\xff\x01", b"\x10\x00", b"\x30\x03\x00\x09a"):
        with pytest.raises(RemoteError, match="broker sent"):
            Reader(64).feed(wrong)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with contextlib.suppress(RemoteError):
        Reader(64).feed(content)
