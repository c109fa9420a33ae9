"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is a peer's byte stream: the splitter, in pieces of any size, and the codec behind its guard.
"""

import mqtt5
import pytest
from hypothesis import strategies as st
from tests.fuzz.fuzzing import assert_linear, fuzz

from hanse.mqtt import codec
from hanse.mqtt.framing import Splitter
from hanse.mqtt.publication import PUBLISH, Reader
from hanse.mqtt.refusal import QUOTA_EXCEEDED, Refusal

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3)
IDS = st.integers(1, 65_535)
FILTERS = st.sampled_from(["a", "a/#", "+/b", "$share/g/a", "ü"])
PACKETS = st.one_of(
    st.builds(
        mqtt5.ConnectPacket, TEXT, username=st.none() | TEXT, user_properties=PAIRS, keep_alive=st.integers(0, 9)
    ),
    st.builds(mqtt5.ConnAckPacket, session_present=st.booleans(), user_properties=PAIRS, reason_str=st.none() | TEXT),
    st.builds(mqtt5.PubAckPacket, IDS, user_properties=PAIRS),
    st.builds(mqtt5.PubRelPacket, IDS),
    st.builds(mqtt5.SubscribePacket, IDS, st.lists(st.builds(mqtt5.TopicFilter, FILTERS), min_size=1, max_size=3)),
    st.builds(
        mqtt5.SubAckPacket, IDS, st.just([mqtt5.SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE]), user_properties=PAIRS
    ),
    st.builds(mqtt5.UnsubscribePacket, IDS, st.lists(FILTERS, min_size=1, max_size=3)),
    st.builds(mqtt5.DisconnectPacket, reason_str=st.none() | TEXT, user_properties=PAIRS),
    st.builds(mqtt5.AuthPacket, authentication_method=TEXT),
    st.builds(mqtt5.PingReqPacket),
    st.builds(mqtt5.PublishPacket, st.sampled_from(["a", "a/b", "ü"]), st.binary(max_size=20), user_properties=PAIRS),
)
STREAMS = st.lists(PACKETS.map(lambda packet: packet.write()), min_size=1, max_size=4).map(b"".join)
PACKET_BYTES_MAX = 1 << 20


def split(pieces: list[bytes]) -> tuple[list[bytes], Refusal | None]:
    splitter = Splitter(PACKET_BYTES_MAX)
    packets: list[bytes] = []
    for piece in pieces:
        data, offsets = splitter.feed(piece)
        packets += [data[start:end] for start, end in offsets]
        assert splitter.waiting_bytes <= PACKET_BYTES_MAX
    return packets, splitter.refusal


def take(data: bytes) -> None:
    packets, refusal = split([data])
    size = 1 + len(data) % 7 if len(data) < 4_096 else 1_000
    again, refusal_again = split([data[at : at + size] for at in range(0, len(data), size)])
    assert packets == again
    assert str(refusal) == str(refusal_again)
    reader = Reader(alias_max=5, properties_max=50)
    for packet in packets:
        if packet[0] & 0xF0 == PUBLISH:
            try:
                found = reader.read(packet, 0, len(packet))
            except Refusal as error:
                if error.reason_code == QUOTA_EXCEEDED:
                    continue
                raise
            assert Reader(is_canonical=True).read_run(found.packet)[0].topic == found.topic
        else:
            codec.decode(packet)
    if refusal is not None:
        raise refusal


def test_any_input_of_a_peer_is_read_or_refused() -> None:
    fuzz("mqtt_packets", STREAMS, take)


@pytest.mark.slow
def test_a_stream_of_a_megabyte_is_read_in_linear_time() -> None:
    publish = mqtt5.PublishPacket("a/b", b"x" * 20).write()
    assert_linear(lambda size: publish * (size // len(publish)), take)
    assert_linear(lambda size: b"\xc0\x00" * (size // 2), take)
    many = [("k", "v")]
    assert_linear(lambda size: mqtt5.PubAckPacket(1, user_properties=many * (size // 7)).write(), take)
    assert_linear(lambda size: mqtt5.PublishPacket("a", b"", user_properties=many * (size // 7)).write(), take)
    wanted = [mqtt5.TopicFilter("a/b/c/d")]
    assert_linear(lambda size: mqtt5.SubscribePacket(1, wanted * (size // 10)).write(), take)
