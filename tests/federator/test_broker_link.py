import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import LocalError, RemoteError
from hanse.federator.broker_link import (
    Acknowledgement,
    Kind,
    Numbered,
    Route,
    accept,
    control_payload,
    decode_acknowledgement,
    decode_data,
    encode_acknowledgements,
    encode_data,
    kind_of,
    parse_topic,
    subscriptions,
    topic_for,
)
from hanse.protocol.messages import Announcement, ControlFrame, HandOver, SetDelta, Solicit
from hanse.protocol.settings import EPOCH_MAX, FEDERATOR_ID_MAX, SEQUENCE_MAX
from hanse.protocol.topics import matches, may_cross

IDS = st.integers(0, FEDERATOR_ID_MAX)
FRAME = b"\x01\x02rest"


@given(st.sampled_from(Kind), IDS, IDS)
def test_a_topic_parses_to_its_parts(kind: Kind, to: int, from_: int) -> None:
    topic = topic_for(kind, to, from_)
    assert parse_topic(topic) == Route(kind, to, from_)
    assert not may_cross(topic)
    assert sum(matches(filter_, topic) for filter_ in subscriptions(to)) == 1


def test_the_topics_are_those_of_the_papers() -> None:
    assert topic_for(Kind.CORE_ANNOUNCEMENT, 2, 1) == "federator/core_ann/2/1"
    assert topic_for(Kind.MEMBERSHIP_ANNOUNCEMENT, 2, 1) == "federator/memb_ann/2/1"
    assert topic_for(Kind.ROUTING, 2, 1) == "federator/routing/2/1"
    assert topic_for(Kind.ACKNOWLEDGEMENT, 2, 1) == "federator/ack/2/1"
    assert topic_for(Kind.PROBE, 2, 1) == "federator/probe/2/1"  # our own, beside them


def test_a_federator_subscribes_only_to_its_own_topics() -> None:
    assert not any(matches(filter_, topic_for(Kind.ROUTING, 3, 1)) for filter_ in subscriptions(2))
    assert not any(matches(filter_, "federator/beacon/2/1") for filter_ in subscriptions(2))


@pytest.mark.parametrize("identity", [-1, FEDERATOR_ID_MAX + 1])
def test_an_outgoing_id_out_of_range_is_a_local_error(identity: int) -> None:
    with pytest.raises(LocalError):
        topic_for(Kind.ROUTING, identity, 1)
    with pytest.raises(LocalError):
        topic_for(Kind.ROUTING, 1, identity)
    with pytest.raises(LocalError):
        subscriptions(identity)


@pytest.mark.parametrize("topic", ["a", "federator", "federated/x", "federator/beacon/a/b/c/d", "federator/beacon/"])
def test_topics_that_belong_to_no_link_are_ignored(topic: str) -> None:
    assert parse_topic(topic) is None
    assert accept(1, topic, is_retained=True) is None


@pytest.mark.parametrize(
    "topic",
    [
        "federator/",
        "federator/core_ann",
        "federator/core_ann/1",
        "federator/core_ann/1/2/3",
        "federator/core_ann/1/2/",
        "federator/Core_ann/1/2",
        "federator/unknown/1/2",
        "federator//1/2",
        "federator/core_ann/+/2",
        "federator/core_ann/1/#",
        "federator/core_ann/01/2",
        "federator/core_ann/1/00",
        "federator/core_ann/-1/2",
        "federator/core_ann/+1/2",
        "federator/core_ann/1_0/2",
        "federator/core_ann/ 1/2",
        "federator/core_ann/1/2\n",
        "federator/core_ann//2",
        "federator/core_ann/4294967296/2",
        "federator/core_ann/1/99999999999999999999",
        "federator/core_ann/١/2",
        "federator/core_ann/1/²",
        "federator/core_ann/1/" + "9" * 60_000,
        "federator/core_ann/1/<script>",
    ],
)
def test_a_malformed_control_topic_is_refused(topic: str) -> None:
    with pytest.raises(RemoteError) as caught:
        parse_topic(topic)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_attack_a_retained_control_message_is_refused() -> None:
    with pytest.raises(RemoteError, match="never retained"):
        accept(2, "federator/core_ann/2/1", is_retained=True)
    assert accept(2, "federator/core_ann/2/1", is_retained=False) == Route(Kind.CORE_ANNOUNCEMENT, 2, 1)


def test_attack_reflected_own_messages_are_refused() -> None:
    with pytest.raises(RemoteError, match="as its sender"):
        accept(2, "federator/core_ann/2/2", is_retained=False)


def test_messages_to_another_federator_are_refused() -> None:
    with pytest.raises(RemoteError, match="addressed to 3"):
        accept(2, "federator/core_ann/3/1", is_retained=False)


SETS = SetDelta(1, 0, 0, ())


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (ControlFrame(1, 1, 1, 0, 0), Kind.CORE_ANNOUNCEMENT),
        (ControlFrame(1, 1, 1, 0, 0, announcements=(Announcement(1, 1, 1, 0, 0),)), Kind.CORE_ANNOUNCEMENT),
        (ControlFrame(1, 1, 1, 0, 0, solicits=(Solicit(1, 1, 1),), memberships=SETS), Kind.CORE_ANNOUNCEMENT),
        (ControlFrame(1, 1, 1, 0, 0, hand_overs=(HandOver(1, "g"),), connections=SETS), Kind.CORE_ANNOUNCEMENT),
        (ControlFrame(1, 1, 1, 0, 0, is_leaving=True, memberships=SETS), Kind.CORE_ANNOUNCEMENT),
        (ControlFrame(1, 1, 1, 0, 0, memberships=SETS), Kind.MEMBERSHIP_ANNOUNCEMENT),
        (ControlFrame(1, 1, 1, 0, 0, connections=SETS), Kind.MEMBERSHIP_ANNOUNCEMENT),
    ],
)
def test_a_frame_goes_whole_to_one_topic(frame: ControlFrame, kind: Kind) -> None:
    assert kind_of(frame) == kind


def test_a_control_topic_carries_only_control_frames() -> None:
    route = Route(Kind.CORE_ANNOUNCEMENT, 2, 1)
    assert control_payload(route, b"\x01\x01x") == b"\x01\x01x"
    for payload in (b"", b"\x01", b"\x01\x02x", b"\x02\x01x", b"{}"):
        with pytest.raises(RemoteError, match="0101"):
            control_payload(route, payload)


@given(
    st.integers(0, EPOCH_MAX),
    st.integers(0, SEQUENCE_MAX),
    st.sampled_from((b"\x01\x02", b"\x01\x06")),
    st.binary(max_size=50),
)
def test_a_data_payload_decodes_to_its_parts(epoch: int, number: int, head: bytes, rest: bytes) -> None:
    frame = head + rest
    assert decode_data(encode_data(epoch, number, frame)) == Numbered(epoch, number, frame)


def test_every_prefix_of_a_data_payload_up_to_its_frame_is_refused() -> None:
    whole = encode_data(EPOCH_MAX, SEQUENCE_MAX, b"\x01\x02")
    for size in range(len(whole)):
        with pytest.raises(RemoteError):
            decode_data(whole[:size])


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\x01\x04\x01\x01" + FRAME, "expected 0103"),
        (b"\x02\x03\x01\x01" + FRAME, "expected 0103"),
        (b"\x01\x03\x01\x01\x01\x01", "begins with 0101"),
        (b"\x01\x03\x81\x00\x01" + FRAME, "shortest form"),
        (b"\x01\x03" + b"\xff" * 12 + FRAME, "more than nine bytes"),
        (b"\x01\x03" + b"\xff" * 7 + b"\x01\x01" + FRAME, "at most"),
    ],
)
def test_a_malformed_data_payload_is_refused(payload: bytes, words: str) -> None:
    with pytest.raises(RemoteError, match=words):
        decode_data(payload)


@given(st.integers(0, EPOCH_MAX), st.sets(st.integers(1, 300) | st.integers(1, SEQUENCE_MAX), min_size=1))
def test_an_acknowledgement_names_each_frame_once_in_order(epoch: int, numbers: set[int]) -> None:
    (payload,) = encode_acknowledgements(epoch, [*numbers, *numbers])
    assert decode_acknowledgement(payload, 65_535) == Acknowledgement(epoch, tuple(sorted(numbers)))


def test_a_run_of_frames_is_acknowledged_in_a_few_bytes() -> None:
    assert encode_acknowledgements(1, range(1, 1_001)) == [b"\x01\x04\x01\x01\x01\xe7\x07"]
    assert encode_acknowledgements(1, []) == []


def test_many_ranges_take_several_payloads() -> None:
    numbers = range(1, 140_001, 2)
    payloads = encode_acknowledgements(5, numbers)
    assert len(payloads) == 3
    found = [number for payload in payloads for number in decode_acknowledgement(payload, 65_535).numbers]
    assert found == list(numbers)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "nothing"),
        (b"\x01\x03\x01\x00", "expected 0104"),
        (b"\x01\x04\x01\x01\x00\x00", "twice, or 0"),
        (b"\x01\x04\x01\x02\x01\x00\x00\x00", "twice, or 0"),
        (b"\x01\x04\x01\x01\x01\x00x", "behind its last range"),
        (b"\x01\x04\x01\x01\x01\x64", "more than 100 frames"),
        (b"\x01\x04\x01\xff\xff\x7f", "at most 32768"),
        (b"\x01\x04\x01\x01\x01" + b"\xff" * 8 + b"\x3f", "more than 100 frames"),
        (b"\x01\x04\x01\x02" + b"\xff" * 8 + b"\x3f\x00\x01\x00", "the largest number is"),
    ],
)
def test_a_malformed_acknowledgement_is_refused_before_it_costs_memory(payload: bytes, words: str) -> None:
    with pytest.raises(RemoteError, match=words):
        decode_acknowledgement(payload, 100)


def test_every_strict_prefix_of_an_acknowledgement_is_refused() -> None:
    (whole,) = encode_acknowledgements(300, [1, 2, 3, 500, 70_000])
    for size in range(len(whole)):
        with pytest.raises(RemoteError):
            decode_acknowledgement(whole[:size], 100)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    for decode in (decode_data, lambda raw: decode_acknowledgement(raw, 100)):
        try:
            decode(payload)
        except RemoteError:
            continue


@given(st.text(max_size=30))
def test_any_topic_is_read_or_refused(text: str) -> None:
    for topic in (text, f"federator/{text}", f"federator/core_ann/{text}"):
        try:
            route = parse_topic(topic)
        except RemoteError:
            continue
        assert route is None or topic_for(*route) == topic
