"""MQTT 3.1.1 on the wire, MQTT 5 inside: every packet in both directions, and invalid ones."""

import contextlib

import mqtt5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import LocalError
from hanse.mqtt import v311
from hanse.mqtt.counters import Counters
from hanse.mqtt.framing import Splitter
from hanse.mqtt.properties import read_varint, varint
from hanse.mqtt.publication import Publication, Reader, encode, payload_of, with_packet_ids
from hanse.mqtt.refusal import Refusal
from hanse.mqtt.v311 import V311, Reader311, Written

TOPICS = st.text(st.characters(exclude_characters="+#\0", exclude_categories=["Cs"]), min_size=1, max_size=300)
PAYLOADS = st.binary(max_size=300)


def publish(
    topic: str, payload: bytes, *, qos: int = 0, packet_id: int = 1, retain: bool = False, dup: bool = False
) -> bytes:
    name = topic.encode()
    body = len(name).to_bytes(2) + name + (packet_id.to_bytes(2) if qos else b"") + payload
    return bytes((0x30 | qos << 1 | retain | dup << 3,)) + varint(len(body)) + body


def read_all(reader: Reader, data: bytes) -> list[Publication]:
    """Parse as `Exchange` does: on the fast path as far as it goes, then one packet in full."""
    found, offsets = Splitter(1 << 20).feed(data)
    into: list[Publication] = []
    k = 0
    while k < len(offsets):
        k = reader.read_from(found, offsets, k, 1 << 16, into)
        if k < len(offsets):
            into.append(reader.read(found, *offsets[k], 1 << 16))
            k += 1
    return into


@given(
    st.lists(
        st.tuples(TOPICS, PAYLOADS, st.integers(0, 2), st.integers(1, 65_535), st.booleans(), st.booleans()), max_size=8
    )
)
def test_packets_are_read_in_canonical_form_and_leave_as_they_came(
    publications: list[tuple[str, bytes, int, int, bool, bool]],
) -> None:
    wire = b"".join(
        publish(topic, payload, qos=qos, packet_id=packet_id, retain=retain, dup=dup and qos > 0)
        for topic, payload, qos, packet_id, retain, dup in publications
    )
    reader = Reader311()
    for _ in range(2):  # the second time on the fast path
        read = read_all(reader, wire)
        assert [(p.topic, p.payload, p.qos, p.retain) for p in read] == [
            (topic, payload, qos, retain) for topic, payload, qos, _, retain, _ in publications
        ]
        assert [p.packet for p in read] == [
            encode(topic, payload, qos=qos, retain=retain) for topic, payload, qos, _, retain, _ in publications
        ]
        assert [(p.packet_id, p.dup) for p in read if p.qos] == [
            (packet_id, dup) for _, _, qos, packet_id, _, dup in publications if qos
        ]
    run = b"".join(p.packet for p in read)
    plain = b"".join(
        publish(topic, payload, qos=qos, packet_id=0, retain=retain)
        for topic, payload, qos, _, retain, _ in publications
    )
    assert V311(Counters()).outward(run) == plain


def test_properties_are_removed_and_counted_once_per_publication() -> None:
    counters = Counters()
    rich = encode("a/b", b"x" * 200, qos=1, expiry_s=9, content_type="t", user_properties=[("k", "v" * 200)])
    out = V311(counters).outward(rich + encode("c", b"y") + rich)
    assert out == publish("a/b", b"x" * 200, qos=1, packet_id=0) * 1 + publish("c", b"y") + publish(
        "a/b", b"x" * 200, qos=1, packet_id=0
    )
    assert counters.properties_lost == 2


def test_outgoing_packets_are_reported_as_one_list_per_write() -> None:
    told: list[list[Written]] = []
    wire = V311(Counters(), told.append)
    run = encode("a", b"1", user_properties=[("k", "v")]) + encode("ü", b"", qos=2)
    wire.outward(
        with_packet_ids(run, ((0, len(encode("a", b"1", user_properties=[("k", "v")]))),), 7) + b"\x40\x02\x00\x01"
    )
    wire.outward(b"\xc0\x00")
    assert told == [[(b"a", b"1"), ("ü".encode(), b"")]]


def test_acknowledgements_go_out_without_reason_codes() -> None:
    said = (
        b"\x40\x03\x00\x07\x97" + b"\x50\x02\x00\x08" + b"\x62\x03\x00\x09\x92" + b"\x70\x03\x00\x0a\x92" + b"\xc0\x00"
    )
    assert V311(Counters()).outward(said) == bytes.fromhex("40020007 50020008 62020009 7002000a c000")


def test_subscriptions_go_out_with_only_their_qos() -> None:
    filters = [
        mqtt5.TopicFilter("a/#", max_qos=mqtt5.QoS(2), no_local=True, retain_as_published=True),
        mqtt5.TopicFilter("+", max_qos=mqtt5.QoS(0), retain_handling=mqtt5.RetainHandling(2)),
    ]
    wire = V311(Counters())
    out = wire.outward(mqtt5.SubscribePacket(5, filters, subscription_id=300).write())
    assert out == b"\x82\x0c\x00\x05\x00\x03a/#\x02\x00\x01+\x00"
    assert wire.outward(mqtt5.UnsubscribePacket(6, ["a/#", "+"]).write()) == b"\xa2\x0a\x00\x06\x00\x03a/#\x00\x01+"


def test_an_unsuback_has_one_code_per_filter_of_its_request() -> None:
    wire = V311(Counters())
    wire.outward(mqtt5.UnsubscribePacket(6, ["a", "b", "c"]).write())
    answer = wire.decode(b"\xb0\x02\x00\x06")
    assert isinstance(answer, mqtt5.UnsubAckPacket)
    assert [int(code) for code in answer.reason_codes] == [0, 0, 0]
    with pytest.raises(Refusal, match="no UNSUBSCRIBE"):
        wire.decode(b"\xb0\x02\x00\x06")


def test_a_suback_keeps_its_codes() -> None:
    answer = V311(Counters()).decode(b"\x90\x06\x00\x07\x00\x01\x02\x80")
    assert isinstance(answer, mqtt5.SubAckPacket)
    assert (answer.packet_id, [int(code) for code in answer.reason_codes]) == (7, [0, 1, 2, 0x80])


@pytest.mark.parametrize(
    ("wire", "code", "is_present"),
    [
        (b"\x20\x02\x00\x00", 0, False),
        (b"\x20\x02\x01\x00", 0, True),
        (b"\x20\x02\x00\x01", 0x84, False),
        (b"\x20\x02\x00\x02", 0x85, False),
        (b"\x20\x02\x00\x03", 0x88, False),
        (b"\x20\x02\x00\x04", 0x86, False),
        (b"\x20\x02\x00\x05", 0x87, False),
    ],
)
def test_a_connack_is_translated_to_the_codes_of_mqtt_5(wire: bytes, code: int, is_present: bool) -> None:
    answer = v311.connack(wire)
    assert (int(answer.reason_code), answer.session_present) == (code, is_present)
    assert not answer.subscription_id_available


@pytest.mark.parametrize(
    "wire",
    [
        b"\x20\x02\x00\x06",
        b"\x20\x02\x02\x00",
        b"\x20\x02\x01\x01",
        b"\x20\x03\x00\x00\x00",
        b"\x20\x01\x00",
        b"\x21\x02\x00\x00",
    ],
)
def test_an_invalid_connack_is_refused(wire: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        v311.connack(wire)
    assert caught.value.reason_code == 0x81


def test_a_connect_carries_the_requested_settings() -> None:
    will = mqtt5.Will("w", payload=b"gone", qos=mqtt5.QoS(1), retain=True)
    packet = v311.connect("me", clean_session=False, keep_alive_s=20, username="u", password="p", will=will)
    assert (
        packet == bytes((0x10, 29)) + b"\x00\x04MQTT\x04\xec\x00\x14\x00\x02me\x00\x01w\x00\x04gone\x00\x01u\x00\x01p"
    )
    assert v311.connect("", clean_session=True, keep_alive_s=0) == b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client_id": "me", "password": "p"}, "no user name"),
        ({"client_id": "", "clean_session": False}, "client id"),
        ({"client_id": "x" * 65_536}, "65535"),
        ({"client_id": "\ud800"}, "UTF-8"),
    ],
)
def test_settings_that_3_1_1_cannot_express_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(LocalError, match=words):
        v311.connect(**{"clean_session": True, "keep_alive_s": 1, **settings})  # type: ignore[arg-type]


WHOLE = [
    b"\x40\x02\x00\x07",
    b"\x50\x02\x00\x07",
    b"\x62\x02\x00\x07",
    b"\x70\x02\x00\x07",
    b"\x90\x04\x00\x07\x01\x80",
    b"\xb0\x02\x00\x07",
    b"\xd0\x00",
]


@pytest.mark.parametrize("whole", WHOLE)
def test_every_strict_prefix_and_every_bit_flip_is_read_or_refused(whole: bytes) -> None:
    wire = V311(Counters())
    _, start = read_varint(whole, 1, len(whole))
    candidates = [whole[:1] + varint(cut) + whole[start : start + cut] for cut in range(len(whole) - start)]
    for at in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            if at != 1 and flipped[0] >> 4 != 3:
                candidates.append(bytes(flipped))
    for candidate in candidates:
        with contextlib.suppress(Refusal):
            wire.decode(candidate)


@given(st.integers(0, 255), st.binary(max_size=40))
def test_noise_is_read_or_refused(head: int, body: bytes) -> None:
    packet = bytes((head,)) + varint(len(body)) + body
    with contextlib.suppress(Refusal):
        if head >> 4 == 3:
            read = read_all(Reader311(), packet)
            assert payload_of(read[0].packet) == read[0].payload
        else:
            V311(Counters()).decode(packet)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_strict_prefix_of_a_publish_is_read_or_refused(qos: int) -> None:
    whole = publish("a/bc", b"payload", qos=qos, packet_id=300)
    reader = Reader311()
    read_all(reader, whole)
    for cut in range(len(whole) - 2):
        body = whole[2 : 2 + cut]
        with contextlib.suppress(Refusal):
            (found,) = read_all(reader, whole[:1] + varint(len(body)) + body)
            assert (found.topic, b"payload".startswith(found.payload)) == ("a/bc", True)
            assert cut >= len(whole) - 2 - len(b"payload")


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (b"\x90\x02\x00\x07", 0x81),  # no code
        (b"\x90\x03\x00\x07\x03", 0x81),  # a code that is none
        (b"\x90\x03\x00\x00\x01", 0x82),
        (b"\x90\x01\x00", 0x81),
        (b"\x92\x03\x00\x07\x01", 0x81),  # flags
        (b"\x40\x03\x00\x07\x00", 0x81),  # a reason code: MQTT 5
        (b"\xb0\x03\x00\x07\x00", 0x81),
        (b"\xb0\x02\x00\x00", 0x82),
        (b"\xd0\x01\x00", 0x82),
        (b"\xe0\x00", 0x82),  # a 3.1.1 server sends no DISCONNECT
        (b"\xf0\x00", 0x82),
        (b"\x00\x00", 0x82),
        (b"\x20\x02\x00\x00", 0x82),  # a second CONNACK
        (b"\x82\x06\x00\x01\x00\x01a\x00", 0x81),
        (b"\xc0\x00", 0x82),
    ],
)
def test_a_wrong_packet_is_refused_with_its_reason_code(packet: bytes, code: int) -> None:
    with pytest.raises(Refusal) as caught:
        V311(Counters()).decode(packet)
    assert caught.value.reason_code == code


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (b"\x30\x00", 0x81),
        (b"\x30\x01\x00", 0x81),
        (b"\x30\x02\x00\x05", 0x81),
        (b"\x38\x03\x00\x01a", 0x81),  # DUP at QoS 0
        (b"\x32\x03\x00\x01a", 0x81),  # no packet identifier
        (b"\x32\x05\x00\x01a\x00\x00", 0x81),
        (b"\x36\x05\x00\x01a\x00\x01", 0x81),  # QoS 3
        (b"\x30\x04\x00\x02\xff\xfe", 0x81),
        (b"\x30\x02\x00\x00", 0x90),
        (b"\x30\x05\x00\x03a+b", 0x90),
        (b"\x32\x05\x00\x01\x00\x00\x01", 0x90),
    ],
)
def test_a_wrong_publish_is_refused_with_its_reason_code(packet: bytes, code: int) -> None:
    with pytest.raises(Refusal) as caught:
        read_all(Reader311(), packet)
    assert caught.value.reason_code == code


def test_the_topic_cache_is_bounded() -> None:
    reader = Reader311()
    for number in range(40_000):
        read_all(reader, publish(f"t/{number}", b""))
    assert len(reader._topics) <= 16_384
