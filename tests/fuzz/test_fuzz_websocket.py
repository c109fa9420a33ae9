"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is the broker's data on the bulk connection's WebSocket: the answer to the handshake, and frames.
"""

import pytest
from hypothesis import strategies as st
from tests.fuzz.fuzzing import assert_linear, fuzz

from hanse.mqtt import websocket
from hanse.mqtt.websocket_publisher import check_connack

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
HEAD = b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
LET_IN = b"\x82\x05\x20\x03\x00\x00\x00"
ANSWERS = st.lists(st.sampled_from([LET_IN, b"\x89\x02hi", b"\x8a\x00", b"\x88\x02\x03\xe8"]), max_size=4)


def take(data: bytes) -> None:
    head, _, rest = data.partition(b"\r\n\r\n")
    websocket.check_answer(head, KEY)
    for frame in websocket.Reader().feed(rest):
        if frame.kind == websocket.BINARY:
            check_connack(frame.payload)


def test_the_bulk_connection_survives_any_answer_of_a_broker() -> None:
    fuzz("websocket", ANSWERS.map(lambda frames: HEAD + b"".join(frames)), take)


@pytest.mark.slow
def test_a_megabyte_is_read_in_linear_time() -> None:
    assert_linear(lambda size: HEAD + LET_IN * (size // 7), take)
    assert_linear(lambda size: HEAD[:-2] + b"X: y\r\n" * (size // 6) + b"\r\n", take)
