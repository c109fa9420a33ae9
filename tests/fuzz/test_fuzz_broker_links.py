"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is the publications that anybody may send on the control topics of `link = broker`: topic and payload.
"""

from hypothesis import strategies as st
from tests.fuzz.fuzzing import assert_linear, fuzz
from tests.protocol.strategies import CONTROL_FRAMES, batches

from hanse.errors import RemoteError
from hanse.federator import broker_link
from hanse.federator.broker_link import CONTROL_KINDS, Kind
from hanse.protocol import codec

OWED_MAX = 1_000
NUMBERS = st.lists(st.integers(1, 5_000), min_size=1, max_size=50)
CONTROL = CONTROL_FRAMES.map(lambda frame: (broker_link.kind_of(frame), codec.encode_control(frame)))
DATA = batches().map(lambda runs: (Kind.ROUTING, broker_link.encode_data(1_000, 5, codec.encode_data(runs))))
ACKS = NUMBERS.map(lambda all_: (Kind.ACKNOWLEDGEMENT, broker_link.encode_acknowledgements(1_000, all_)[0]))
MESSAGES = st.one_of(CONTROL, DATA, ACKS).map(
    lambda message: broker_link.topic_for(message[0], 1, 2).encode() + b"\n" + message[1]
)


def take(data: bytes) -> None:
    name, _, payload = data.partition(b"\n")
    topic = name.decode("utf-8", "replace")
    route = broker_link.accept(1, topic, is_retained=len(data) % 17 == 0)
    if route is None:
        assert not topic.startswith("federator/") or topic.startswith("federator/beacon")
        return
    assert route.to == 1
    assert route.from_ != 1
    if route.kind in CONTROL_KINDS:
        codec.decode_control(broker_link.control_payload(route, payload))
    elif route.kind is Kind.ROUTING:
        codec.decode_data(broker_link.decode_data(payload).frame)
    else:
        epoch, numbers = broker_link.decode_acknowledgement(payload, OWED_MAX)
        assert len(numbers) <= OWED_MAX
        assert broker_link.encode_acknowledgements(epoch, numbers) or not numbers


def test_any_publication_on_a_control_topic_is_read_or_refused() -> None:
    fuzz("broker_links", MESSAGES, take)


def test_a_payload_of_a_megabyte_is_read_in_linear_time() -> None:
    def acknowledgement(size: int) -> bytes:
        payload = broker_link.encode_acknowledgements(1, range(1, size, 2))[0]
        return b"federator/ack/1/2\n" + payload

    def wide(data: bytes) -> None:
        broker_link.decode_acknowledgement(data.partition(b"\n")[2], 65_535)

    assert_linear(acknowledgement, wide, large=1 << 16)
    assert_linear(lambda size: b"federator/core_ann/1/" + b"9" * size + b"\n", take)
    assert_linear(lambda size: b"federator/" + b"/" * size + b"\n", take)


def test_an_id_has_only_one_spelling() -> None:
    for text in ("01", "+1", "-1", "1 ", "\u0661", "4294967296", "1" * 60_000, "", "#", "+"):
        try:
            broker_link.parse_topic(f"federator/ack/1/{text}")
        except RemoteError:
            continue
        raise AssertionError(text)
