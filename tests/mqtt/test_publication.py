"""The fast parser reads publications exactly as the codec does."""

import contextlib
from typing import Any

import mqtt5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import LocalError
from hanse.mqtt import publication
from hanse.mqtt.framing import Splitter
from hanse.mqtt.publication import Publication, Reader
from hanse.mqtt.refusal import QUOTA_EXCEEDED, Refusal

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
topics = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=40
) | st.sampled_from(["a", "a/b", "/", "//", "$SYS/x", "u\u0308", "\u00fc", "x" * 200])
FIELDS = (
    "topic",
    "payload",
    "retain",
    "payload_format_indicator",
    "message_expiry_interval",
    "content_type",
    "response_topic",
    "correlation_data",
    "user_properties",
)


@st.composite
def packets(draw: st.DrawFn) -> mqtt5.PublishPacket:
    qos = draw(st.integers(0, 2))
    plain = draw(st.booleans())
    more: dict[str, Any] = (
        {}
        if plain
        else {
            "payload_format_indicator": draw(st.integers(0, 1)),
            "message_expiry_interval": draw(st.none() | st.integers(0, 2**32 - 1)),
            "content_type": draw(st.none() | text),
            "response_topic": draw(st.none() | topics),
            "correlation_data": draw(st.none() | st.binary(max_size=20)),
            "user_properties": draw(st.lists(st.tuples(text, text), max_size=5)),
        }
    )
    return mqtt5.PublishPacket(
        draw(topics),
        draw(st.binary(max_size=300) | st.just(b"x" * 20_000)),
        qos=mqtt5.QoS(qos),
        retain=draw(st.booleans()),
        packet_id=draw(st.integers(1, 65535)) if qos else None,
        duplicate=draw(st.booleans()) if qos else False,
        subscription_ids=draw(st.lists(st.integers(1, 268_435_455), max_size=3)),
        **more,
    )


def agrees(found: Publication, packet: mqtt5.PublishPacket) -> None:
    assert found.topic == packet.topic
    assert found.qos == int(packet.qos)
    assert found.retain is packet.retain
    assert found.dup is packet.duplicate
    assert found.packet_id == (packet.packet_id or 0)
    assert list(found.subscription_ids) == packet.subscription_ids
    assert found.payload == packet.payload
    parts = publication.decode(found.packet)
    assert not parts.duplicate
    assert parts.subscription_ids == []
    assert parts.topic_alias is None
    assert (parts.packet_id or 0) == 0
    assert int(parts.qos) == int(packet.qos)
    for name in FIELDS:
        assert getattr(parts, name) == getattr(packet, name), name


@given(st.lists(packets(), min_size=1, max_size=8))
def test_canonical_form_equals_the_codecs_reading_without_properties_of_the_hop(
    sent: list[mqtt5.PublishPacket],
) -> None:
    raw = [packet.write() for packet in sent]
    data = b"".join(raw)
    offsets = publication.split(data)
    reader = Reader()
    # The second time, topics and properties are cached, and ordinary packets take the fast path.
    for _ in range(2):
        found: list[Publication] = []
        k = 0
        while k < len(offsets):
            k = reader.read_from(data, offsets, k, 0, found)
            if k < len(offsets):
                found.append(reader.read(data, *offsets[k]))
                k += 1
        assert len(found) == len(sent)
        for one, packet in zip(found, sent, strict=True):
            agrees(one, packet)
    for one, whole in zip(found, raw, strict=True):
        assert publication.canonical(whole) == one.packet
    neighbour = Reader(is_canonical=True)
    run = b"".join(one.packet for one in found)
    for _ in range(2):
        read = neighbour.read_run(run)
        assert b"".join(one.packet for one in read) == run
        assert [(one.topic, one.qos, one.retain, one.receipt, one.dup) for one in read] == [
            (one.topic, one.qos, one.retain, 0, False) for one in found
        ]


@pytest.mark.parametrize(
    "packet",
    [
        mqtt5.PublishPacket("t", b"x", qos=mqtt5.QoS(1), packet_id=5).write(),
        mqtt5.PublishPacket("t", b"x", subscription_ids=[1]).write(),
        b"\x3a\x07\x00\x01t\x00\x00\x00x",
        mqtt5.PublishPacket("t", b"x", topic_alias=1).write(),
        b"\x30\x05\x00\x01#\x00x",
        b"\xe0\x00",
        b"\x30\x05\x00\x01t\x00",
    ],
)
def test_attack_a_run_that_is_not_canonical_is_refused_as_a_whole(packet: bytes) -> None:
    neighbour = Reader(is_canonical=True)
    good = publication.encode("t", b"x") + publication.encode("t", b"x", qos=1)
    assert len(neighbour.read_run(good)) == 2
    for _ in range(2):
        with pytest.raises(Refusal):
            neighbour.read_run(good + packet)


@given(st.lists(packets(), min_size=1, max_size=8), st.integers(1, 65_500), st.booleans())
def test_identifiers_patched_into_a_run_equal_the_codecs_output(
    sent: list[mqtt5.PublishPacket], first_id: int, dup: bool
) -> None:
    run = b"".join(publication.canonical(packet.write()) for packet in sent)
    patched = bytes(publication.with_packet_ids(run, publication.split(run), first_id, dup=dup))
    packet_id = first_id
    for (start, end), packet in zip(publication.split(patched), sent, strict=True):
        found, _ = mqtt5.read(memoryview(patched[start:end]))
        assert isinstance(found, mqtt5.PublishPacket)
        assert publication.topic_of(patched, start) == packet.topic
        assert publication.qos_of(patched, start) == int(packet.qos)
        assert publication.retain_of(patched, start) is packet.retain
        if int(packet.qos):
            assert found.packet_id == packet_id
            assert found.duplicate is dup
            packet_id += 1
        assert found.payload == packet.payload
        assert found.user_properties == packet.user_properties


@given(packets(), st.none() | st.integers(0, 2**32 - 1))
def test_expiry_is_read_and_replaced_and_nothing_else_changes(packet: mqtt5.PublishPacket, seconds: int | None) -> None:
    canonical = publication.canonical(packet.write())
    assert publication.expiry_s(canonical) == packet.message_expiry_interval
    changed = publication.with_expiry(canonical, seconds)
    assert publication.expiry_s(changed) == seconds
    before, after = publication.decode(canonical), publication.decode(changed)
    assert all(getattr(before, name) == getattr(after, name) for name in FIELDS if "expiry" not in name)
    assert publication.with_expiry(publication.with_expiry(changed, None), packet.message_expiry_interval)


@given(packets(), st.integers(0, 2))
def test_another_qos_changes_nothing_else(packet: mqtt5.PublishPacket, qos: int) -> None:
    canonical = publication.canonical(packet.write())
    changed = publication.with_qos(canonical, qos)
    before, after = publication.decode(canonical), publication.decode(changed)
    assert int(after.qos) == qos
    assert all(getattr(before, name) == getattr(after, name) for name in FIELDS)
    assert publication.retain_of(publication.without_retain(changed)) is False


def test_encode_gives_canonical_bytes() -> None:
    packet = publication.encode("a/b", b"x", qos=2, retain=True, expiry_s=9, user_properties=[("k", "v"), ("k", "w")])
    parts = publication.decode(packet)
    assert (parts.topic, parts.payload, int(parts.qos), parts.retain, parts.packet_id) == ("a/b", b"x", 2, True, 0)
    assert parts.user_properties == [("k", "v"), ("k", "w")]
    for bad in ("", "a/+", "#", "a\0b", "x" * 65_536, "\ud800"):
        with pytest.raises(LocalError):
            publication.encode(bad, b"")
    with pytest.raises(LocalError):
        publication.encode("a", b"", qos=3)


def test_aliases_are_resolved_within_their_connection_only() -> None:
    reader = Reader(alias_max=2)
    first = mqtt5.PublishPacket("long/topic", b"1", topic_alias=2, subscription_ids=[5]).write()
    again = mqtt5.PublishPacket("", b"2", topic_alias=2).write()
    assert reader.read(first, 0, len(first)).packet == publication.encode("long/topic", b"1")
    assert reader.read(again, 0, len(again)).packet == publication.encode("long/topic", b"2")
    reader.forget_aliases()
    with pytest.raises(Refusal, match="never set"):
        reader.read(again, 0, len(again))


MALFORMED = {
    "qos 3": (b"\x36\x08\x00\x01a\x00\x01\x00xy", 0x81),
    "packet id 0": (b"\x32\x08\x00\x01a\x00\x00\x00xy", 0x81),
    "dup at qos 0": (b"\x38\x05\x00\x01a\x00x", 0x81),
    "alias 0": (b"\x30\x08\x00\x01a\x03\x23\x00\x00x", 0x94),
    "alias over the maximum": (b"\x30\x08\x00\x01a\x03\x23\x00\x01x", 0x94),
    "no topic, no alias": (b"\x30\x04\x00\x00\x00x", 0x82),
    "wildcard +": (b"\x30\x07\x00\x03a/+\x00x", 0x90),
    "wildcard #": (b"\x30\x05\x00\x01#\x00x", 0x90),
    "nul in the topic": (b"\x30\x07\x00\x03a\x00b\x00x", 0x90),
    "topic not utf-8": (b"\x30\x06\x00\x02\xff\xfe\x00x", 0x81),
    "surrogate": (b"\x30\x07\x00\x03\xed\xa0\x80\x00x", 0x81),
    "overlong": (b"\x30\x06\x00\x02\xc0\xaf\x00x", 0x81),
    "topic beyond the packet": (b"\x30\x05\x00\x09a\x00x", 0x81),
    "properties beyond the packet": (b"\x30\x05\x00\x01a\x09x", 0x81),
    "unknown property": (b"\x30\x07\x00\x01a\x02\x7f\x00x", 0x81),
    "property of another packet": (b"\x30\x08\x00\x01a\x03\x21\x00\x01x", 0x81),
    "expiry twice": (b"\x30\x0f\x00\x01a\x0a\x02\0\0\0\1\x02\0\0\0\1x", 0x82),
    "subscription id 0": (b"\x30\x07\x00\x01a\x02\x0b\x00x", 0x82),
    "property length of five bytes": (b"\x30\x0a\x00\x01a\xff\xff\xff\xff\x01xy", 0x81),
    "subscription id of five bytes": (b"\x30\x0b\x00\x01a\x06\x0b\xff\xff\xff\xff\x01x", 0x81),
    "user property not utf-8": (b"\x30\x0b\x00\x01a\x06\x26\x00\x01\xff\x00\x00x", 0x81),
    "nothing": (b"\x30\x00", 0x81),
    "only half a length": (b"\x30\x01\x00", 0x81),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_publish_is_refused_with_its_reason_code(name: str) -> None:
    packet, code = MALFORMED[name]
    assert len(packet) == packet[1] + 2, "the table's own framing"
    reader = Reader()
    for _ in range(2):
        found: list[Publication] = []
        # Bytes behind the packet must not be read as part of it.
        data = packet + publication.encode("next", b"z" * 50)
        assert reader.read_from(data, [(0, len(packet))], 0, 0, found) == 0
        with pytest.raises(Refusal) as caught:
            reader.read(data, 0, len(packet))
        assert caught.value.reason_code == code
        assert not found


@given(packets(), st.data())
def test_cut_or_flipped_bytes_are_read_or_refused_and_nothing_else(
    packet: mqtt5.PublishPacket, data: st.DataObject
) -> None:
    whole = bytearray(packet.write())
    at = data.draw(st.integers(0, min(len(whole), 60) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    end = data.draw(st.integers(min(8, len(whole)), len(whole)))
    reader = Reader()
    try:
        offsets = publication.split(bytes(whole[:end]))
        for start, stop in offsets:
            reader.read(bytes(whole), start, stop)
    except Refusal:
        pass


@given(packets())
def test_every_strict_prefix_of_a_run_is_refused(packet: mqtt5.PublishPacket) -> None:
    run = publication.canonical(packet.write())
    for cut in range(1, min(len(run), 64)):
        with pytest.raises(Refusal):
            publication.split(run[:cut])


def test_a_flood_of_user_properties_stops_at_the_limit() -> None:
    pairs = [("k", "v")] * 10_000
    packet = mqtt5.PublishPacket("a", b"x", user_properties=pairs).write()
    with pytest.raises(Refusal) as caught:
        Reader().read(packet, 0, len(packet))
    assert caught.value.reason_code == QUOTA_EXCEEDED


def test_the_caches_are_bounded() -> None:
    reader = Reader()
    for n in range(40_000):
        packet = mqtt5.PublishPacket(f"t/{n}", b"", subscription_ids=[n + 1]).write()
        assert reader.read(packet, 0, len(packet)).topic == f"t/{n}"
    assert max(len(reader._topics), len(reader._fronts), len(reader._properties)) <= 16_384


def test_topic_names_that_some_brokers_refuse_are_reported() -> None:
    assert publication.is_portable("a/ü/😀")
    assert not publication.is_portable("a/\x01")
    assert not publication.is_portable("a/\x85")
    assert not publication.is_portable("a/\uffff")


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    """Draw packets of one size, as the stream of one publisher has them, with a few that differ."""
    size, qos = draw(st.integers(0, 30)), draw(st.integers(0, 2))
    identifiers = draw(st.sampled_from([[], [1], [300], [2, 3]]))
    topic = draw(st.sampled_from(["a", "a/b/c", "x" * 90]))
    retain = draw(st.booleans())
    found = [
        mqtt5.PublishPacket(
            topic,
            draw(st.binary(min_size=size, max_size=size)),
            qos=mqtt5.QoS(qos),
            retain=retain,
            packet_id=draw(st.integers(1, 65_535)) if qos else None,
            subscription_ids=identifiers,
        ).write()
        for _ in range(draw(st.integers(8, 20)))
    ]
    data = bytearray(b"".join(found))
    if draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


@given(rows())
def test_a_row_of_packets_reads_like_its_single_packets(data: bytes) -> None:
    _, offsets = Splitter(100_000).feed(data)
    if not all(data[start] & 0xF0 == 0x30 for start, _ in offsets):
        return
    expected: list[Publication] = []
    reader = Reader()
    with contextlib.suppress(Refusal):
        for start, end in offsets:
            expected.append(reader.read(data, start, end, 65_536))
    found: list[Publication] = []
    k = reader.read_from(data, offsets, 0, 65_536, found)
    assert found == expected[:k]
    if len(expected) == len(offsets) and not any(one.dup for one in expected):
        whole: list[Publication] = []
        assert reader.read_from(data, offsets, 0, 65_536, whole) == len(offsets)
        assert whole == expected


@given(st.integers(1, 2), st.integers(8, 40), st.sampled_from(["a", "a/b", "x" * 120]), st.integers(1, 65_490))
def test_identifiers_patched_into_a_row_equal_those_patched_one_by_one(
    qos: int, count: int, topic: str, first_id: int
) -> None:
    run = b"".join(publication.encode(topic, b"%04d" % n, qos=qos) for n in range(count))
    offsets = publication.split(run)
    whole = publication.with_packet_ids(run, offsets, first_id)
    singly = [
        publication.with_packet_ids(run[start:end], [(0, end - start)], first_id + k)
        for k, (start, end) in enumerate(offsets)
    ]
    assert bytes(whole) == b"".join(map(bytes, singly))
