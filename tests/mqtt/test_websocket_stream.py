"""MQTT over WebSocket without a network: frames in pieces, and what a hostile server may send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import RemoteError
from hanse.mqtt.websocket import BINARY, CLOSE, PING, PONG
from hanse.mqtt.websocket_stream import CONTINUATION, Unframer, masked


def frame(kind: int, payload: bytes, *, is_final: bool = True) -> bytes:
    return bytes((kind | (0x80 if is_final else 0),)) + length_field(len(payload)) + payload


def length_field(size: int) -> bytes:
    if size < 126:
        return bytes((size,))
    return b"\x7e" + size.to_bytes(2) if size < 65_536 else b"\x7f" + size.to_bytes(8)


def unmasked(data: bytes) -> tuple[int, bytes]:
    length, begin = data[1] & 0x7F, 2
    if length >= 126:
        more = 2 if length == 126 else 8
        length, begin = int.from_bytes(data[2 : 2 + more]), 2 + more
    key, payload = data[begin : begin + 4], data[begin + 4 :]
    assert len(payload) == length
    return data[0], bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))


Message = list[bytes]


@given(
    st.lists(
        st.one_of(
            st.lists(st.binary(max_size=300), min_size=1, max_size=3),
            st.tuples(st.sampled_from([PING, PONG, CLOSE]), st.binary(max_size=125)),
        ),
        max_size=6,
    ),
    st.integers(1, 60),
)
def test_data_comes_out_however_the_bytes_are_cut(items: list[Message | tuple[int, bytes]], step: int) -> None:
    sent, data, control = b"", b"", []
    for item in items:
        if isinstance(item, tuple):
            sent += frame(*item)
            control.append(item)
            continue
        data += b"".join(item)
        for at, piece in enumerate(item):
            # A control frame may stand between the fragments of a message.
            kind = BINARY if at == 0 else CONTINUATION
            sent += frame(kind, piece, is_final=at == len(item) - 1)
            if at < len(item) - 1:
                sent += frame(PING, b"?")
                control.append((PING, b"?"))
    found: list[tuple[int, bytes]] = []
    one = Unframer(lambda kind, payload: found.append((kind, payload)))
    got = b"".join(one.feed(sent[at : at + step]) for at in range(0, len(sent), step))
    assert (got, found) == (data, control)


def test_a_long_frame_is_passed_on_as_it_comes() -> None:
    one = Unframer(lambda *_: None)
    sent = frame(BINARY, bytes(1_000_000))
    assert len(one.feed(sent[:300_000])) == 300_000 - 10
    assert len(one.feed(sent[300_000:])) == 1_000_000 - (300_000 - 10)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(frame(1, b"text"), id="text"),
        pytest.param(b"\xc2\x01x", id="a reserved bit"),
        pytest.param(b"\x82\x81\0\0\0\0x", id="masked"),
        pytest.param(b"\x83\x01x", id="an unknown kind"),
        pytest.param(frame(CONTINUATION, b"x"), id="a continuation of nothing"),
        pytest.param(frame(BINARY, b"x", is_final=False) + frame(BINARY, b"y"), id="a message inside a message"),
        pytest.param(frame(PING, b"x" * 126), id="a long ping"),
        pytest.param(frame(CLOSE, b"", is_final=False), id="a fragmented close"),
    ],
)
def test_attack_frame_that_no_broker_sends_is_an_error(sent: bytes) -> None:
    with pytest.raises(RemoteError, match="frame that begins"):
        Unframer(lambda *_: None).feed(sent)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 125, 126, 65_535, 65_536])
def test_what_is_masked_is_the_payload_again_after_unmasking(size: int) -> None:
    payload = bytes(at % 251 for at in range(size))
    assert unmasked(masked(payload)) == (0x82, payload)
    assert size < 8 or payload not in masked(payload)
