import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import RemoteError
from hanse.mqtt import websocket
from hanse.mqtt.websocket import BINARY, CLOSE, PING, PONG, Frame, Reader

# The example of RFC 6455, 1.3.
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ANSWER = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
)


def test_the_handshake_asks_for_mqtt() -> None:
    lines = websocket.request("127.0.0.1", 9001, KEY).decode().split("\r\n")
    assert lines[0] == "GET /mqtt HTTP/1.1"
    assert "Host: 127.0.0.1:9001" in lines
    assert f"Sec-WebSocket-Key: {KEY}" in lines
    assert "Sec-WebSocket-Protocol: mqtt" in lines
    assert lines[-2:] == ["", ""]
    assert b"Host: [::1]:9001\r\n" in websocket.request("::1", 9001, KEY)


def test_the_answer_of_the_rfc_is_accepted() -> None:
    websocket.check_answer(ANSWER, KEY)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 404 Not Found\r\n", "is it a WebSocket listener"),
        (b"", "is it a WebSocket listener"),
        (b"\x20\x02\x00\x87", "is it a WebSocket listener"),
        (ANSWER[:-4], "is there a proxy"),
        (b"HTTP/1.1 101 Switching Protocols\r\n", "is there a proxy"),
    ],
)
def test_another_answer_is_refused(answer: bytes, why: str) -> None:
    with pytest.raises(RemoteError, match=why):
        websocket.check_answer(answer, KEY)


@pytest.mark.parametrize(
    ("size", "length"), [(0, "80"), (125, "fd"), (126, "fe007e"), (65_535, "feffff"), (65_536, "ff0000000000010000")]
)
def test_headers_are_as_the_rfc_says(size: int, length: str) -> None:
    assert websocket.header(size).hex() == "82" + length + "00000000"


def of_server(kind: int, payload: bytes) -> bytes:
    size = len(payload)
    return bytes((0x80 | kind,)) + (bytes((size,)) if size < 126 else b"\x7e" + size.to_bytes(2)) + payload


@given(
    st.lists(st.tuples(st.sampled_from([BINARY, CLOSE, PING, PONG]), st.binary(max_size=300)), max_size=5),
    st.integers(1, 50),
)
def test_frames_are_reassembled_for_any_chunk_size(sent: list[tuple[int, bytes]], piece: int) -> None:
    data = b"".join(of_server(kind, payload) for kind, payload in sent)
    reader = Reader()
    found = [frame for at in range(0, len(data), piece) for frame in reader.feed(data[at : at + piece])]
    assert found == [Frame(kind, payload) for kind, payload in sent]


@pytest.mark.parametrize(
    "bad",
    [
        b"\x81\x02hi",  # text
        b"\x02\x02hi",  # a fragment
        b"\xc2\x02hi",  # a reserved bit
        b"\x82\x82\x00\x00\x00\x00hi",  # masked
        b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00",  # too large
        b"\x82\x7e\x10\x01",  # too large by one
        b"\x83\x00",  # an unknown kind
    ],
)
def test_frames_that_no_broker_sends_are_refused(bad: bytes) -> None:
    with pytest.raises(RemoteError, match="expected a whole binary one"):
        Reader().feed(bad)
