"""The part of WebSocket (RFC 6455) that an MQTT client needs: handshake, binary frames out, the server's frames in.

No IO. Rules:

- A frame goes out masked, as a client's must be, with a key of zeros, which changes nothing. The mask protects a proxy
  against a script that chooses the bytes. There is none between a federator and its own broker.
- Frames of the server are bounded before they are kept, and need not arrive whole. Text, fragments and masked frames,
  which no broker sends to such a client, are refused.
"""

import base64
import hashlib
from typing import Final, NamedTuple

from hanse.errors import RemoteError

BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10

# Sizes of the server's handshake response, and of its frames: a publisher gets only CONNACK and PINGRESP.
HEAD_BYTES_MAX: Final = 8_192
FRAME_BYTES_MAX: Final = 4_096

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_NO_MASK = bytes(4)


class Frame(NamedTuple):
    """Frame that a server sent."""

    kind: int
    payload: bytes


def request(host: str, port: int, key: str, path: str = "/mqtt") -> bytes:
    """Return the request for the handshake. `key` is 16 random bytes in base64, `path` may hold a query."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = (
        f"GET {path} HTTP/1.1",
        f"Host: {place}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: mqtt",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def check_answer(head: bytes, key: str) -> None:
    """Raise RemoteError unless `head`, up to its empty line, accepts the request."""
    status, *lines = head.decode("latin-1").split("\r\n")
    if status.split(" ")[1:2] != ["101"]:
        raise RemoteError(f"A WebSocket was requested, and the answer is {status[:100]!r}; is it a WebSocket listener?")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    proof = base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()  # noqa: S324 - RFC 6455 says SHA-1
    if fields.get("sec-websocket-accept") != proof:
        raise RemoteError("The answer to a WebSocket handshake does not match the request; is there a proxy between?")


def header(size: int, kind: int = BINARY) -> bytes:
    """Return the header of a frame of `size` bytes."""
    first = bytes((0x80 | kind,))
    if size < 126:
        return first + bytes((0x80 | size,)) + _NO_MASK
    if size < 65_536:
        return first + b"\xfe" + size.to_bytes(2) + _NO_MASK
    return first + b"\xff" + size.to_bytes(8) + _NO_MASK


class Reader:
    """Assembles a server's frames from received bytes."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Return the complete frames.

        Raises:
            RemoteError: A frame has an unacceptable kind or size.
        """
        data = self._rest + data
        found: list[Frame] = []
        start = 0
        while len(data) - start >= 2:
            first, length = data[start], data[start + 1]
            kind = first & 0x0F
            begin = start + 2
            if length == 126:
                if len(data) < begin + 2:
                    break
                length = int.from_bytes(data[begin : begin + 2])
                begin += 2
            elif length > 126:  # masked, or larger still
                length = FRAME_BYTES_MAX + 1
            if first & 0xF0 != 0x80 or kind not in (BINARY, CLOSE, PING, PONG) or length > FRAME_BYTES_MAX:
                raise RemoteError(
                    f"A WebSocket server sent a frame that begins {data[start : start + 4].hex()}; expected a whole "
                    f"binary one of at most {FRAME_BYTES_MAX} bytes, unmasked."
                )
            if len(data) < begin + length:
                break
            found.append(Frame(kind, data[begin : begin + length]))
            start = begin + length
        self._rest = data[start:]
        return found
