"""Every packet except PUBLISH is read or refused, and the codec never panics."""

import contextlib

import mqtt5
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hanse.mqtt import codec
from hanse.mqtt.properties import read_varint, varint
from hanse.mqtt.refusal import Refusal

SAMPLES: list[mqtt5.Packet] = [
    mqtt5.ConnectPacket(
        "me",
        username="u",
        password=b"p",
        will=mqtt5.Will("w", payload=b"x", user_properties=[("a", "b")]),
        user_properties=[("k", "v")],
        receive_max=9,
    ),
    mqtt5.ConnAckPacket(server_reference="h:1", reason_str="why", user_properties=[("k", "v")]),
    mqtt5.PubAckPacket(7, reason_code=mqtt5.PubAckReasonCode.QUOTA_EXCEEDED, reason_str="full"),
    mqtt5.PubRecPacket(7),
    mqtt5.PubRelPacket(7),
    mqtt5.PubCompPacket(7, reason_code=mqtt5.PubCompReasonCode.PACKET_ID_NOT_FOUND),
    mqtt5.SubscribePacket(7, [mqtt5.TopicFilter("a/#"), mqtt5.TopicFilter("+/b")], subscription_id=300),
    mqtt5.SubAckPacket(7, [mqtt5.SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE], reason_str="so"),
    mqtt5.UnsubscribePacket(7, ["a", "b"]),
    mqtt5.UnsubAckPacket(7, [mqtt5.UnsubAckReasonCode.SUCCESS]),
    mqtt5.PingReqPacket(),
    mqtt5.PingRespPacket(),
    mqtt5.DisconnectPacket(reason_code=mqtt5.DisconnectReasonCode.SERVER_MOVED, server_reference="h:1"),
    mqtt5.AuthPacket(authentication_method="m"),
]
WHOLE = [packet.write() for packet in SAMPLES]


@pytest.mark.parametrize("whole", WHOLE, ids=[type(packet).__name__ for packet in SAMPLES])
def test_a_good_packet_is_read(whole: bytes) -> None:
    assert codec.decode(whole).write() == whole


def shorter(whole: bytes, cut: int) -> bytes:
    """Return the first `cut` bytes of the body behind a remaining length that fits them."""
    _, start = read_varint(whole, 1, len(whole))
    body = whole[start : start + cut]
    return whole[:1] + varint(len(body)) + body


@pytest.mark.parametrize("whole", WHOLE, ids=[type(packet).__name__ for packet in SAMPLES])
def test_every_strict_prefix_and_every_bit_flip_is_read_or_refused(
    whole: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    candidates = [shorter(whole, cut) for cut in range(len(whole) - 2)]
    for at in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            if at != 1 and flipped[0] >> 4 != 3:
                candidates.append(bytes(flipped))
    for candidate in candidates:
        with contextlib.suppress(Refusal):
            codec.decode(candidate)
    # A panic of the codec prints a message. None may reach the operator's terminal.
    assert "panicked" not in capfd.readouterr().err


@given(st.integers(0, 255), st.binary(max_size=60))
@example(0x10, b"\x00\x04MQTT\x05\x00\x00\x00\x00\x00\x02\xff\xfe")
@example(0xE0, b"\x81\x05\x1f\x00\x02\xff\xfe")
def test_noise_is_read_or_refused(head: int, body: bytes) -> None:
    if head >> 4 == 3:
        return
    with contextlib.suppress(Refusal):
        codec.decode(bytes((head,)) + varint(len(body)) + body)


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a", 0x84),
        (b"\x10\x0e\x00\x04XQTT\x05\x00\x00\x00\x00\x00\x01a", 0x81),
        (b"\x10\x0f\x00\x04MQTT\x05\x00\x00\x00\x00\x00\x02\xff\xfe", 0x81),
        (b"\x40\x02\x00\x00", 0x82),
        (b"\x41\x02\x00\x01", 0x81),
        (b"\x82\x03\x00\x01\x00", 0x82),
        (b"\x82\x07\x00\x01\x00\x00\x01a\x03", 0x81),
        (b"\x00\x00", 0x81),
        (b"\xc0\x01\x00", 0x81),
        (b"\xe0\x01\x01", 0x81),
    ],
)
def test_a_wrong_packet_is_refused_with_its_reason_code(packet: bytes, code: int) -> None:
    with pytest.raises(Refusal) as caught:
        codec.decode(packet)
    assert caught.value.reason_code == code
