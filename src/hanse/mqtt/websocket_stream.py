"""A byte stream over a WebSocket, client side: it stands between a transport and the protocol that speaks MQTT over it.

Rules:

- Each write is one masked binary frame with a random key (RFC 6455, 5.3): the payload may be chosen by somebody else,
  and a proxy in between must not see it as HTTP.
- What arrives is passed on as it comes. An MQTT packet may span frames and a frame may hold several (MQTT 5, 6), so no
  frame is ever kept whole, whatever its length.
- Text frames, masked frames and reserved bits end the connection. A ping is answered, and a close frame is returned.
"""

import asyncio
import base64
import os
import socket
from collections.abc import Callable, Iterable
from typing import Final, cast

from hanse.errors import HanseError, RemoteError, Unavailable
from hanse.mqtt import websocket
from hanse.mqtt.websocket import BINARY, CLOSE, HEAD_BYTES_MAX, PING, PONG

CONTINUATION: Final = 0
# Payload of a control frame (RFC 6455, 5.5).
CONTROL_BYTES_MAX: Final = 125
# A server that pings and does not read gets no pongs beyond this many unsent bytes.
PONG_BUFFER_MAX: Final = 65_536
# The close code for an ordinary end (RFC 6455, 7.4.1).
_NORMAL: Final = b"\x03\xe8"


class Unframer:
    """Takes a server's frames apart: `feed` returns the bytes of data frames; control frames go to `on_control`."""

    __slots__ = ("_control", "_head", "_is_message_open", "_kind", "_left", "_on_control")

    def __init__(self, on_control: Callable[[int, bytes], None]) -> None:
        self._on_control = on_control
        self._head = b""
        self._kind = BINARY
        # Bytes of the current frame that have not arrived.
        self._left = 0
        self._control = b""
        # Whether the last data frame said that more of its message follows.
        self._is_message_open = False

    def feed(self, data: bytes) -> bytes:
        """Return the data that `data` carries.

        Raises:
            RemoteError: A frame is of a kind that no MQTT broker may send.
        """
        data = self._head + data
        self._head = b""
        found: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                if self._kind in {BINARY, CONTINUATION}:
                    found.append(piece)
                else:
                    self._control += piece
            else:
                begin = self._begin(data, at)
                if begin == 0:
                    self._head = data[at:]
                    break
                at = begin
            if not self._left and self._kind not in {BINARY, CONTINUATION}:
                payload, self._control = self._control, b""
                kind, self._kind = self._kind, BINARY
                self._on_control(kind, payload)
        return found[0] if len(found) == 1 else b"".join(found)

    def _begin(self, data: bytes, at: int) -> int:
        """Read a frame's header; return where its payload begins, or 0 if the header is not whole."""
        if len(data) < at + 2:
            return 0
        first, length = data[at], data[at + 1]
        kind = first & 0x0F
        is_final = bool(first & 0x80)
        begin = at + 2
        is_control = kind in {CLOSE, PING, PONG}
        if (
            first & 0x70
            or length & 0x80
            or not (is_control or kind == (CONTINUATION if self._is_message_open else BINARY))
            or (is_control and (not is_final or length > CONTROL_BYTES_MAX))
        ):
            raise RemoteError(
                f"The WebSocket's server sent a frame that begins {data[at : at + 2].hex()}; expected an unmasked "
                "binary or control frame."
            )
        if length >= 126:
            more = 2 if length == 126 else 8
            if len(data) < begin + more:
                return 0
            length = int.from_bytes(data[begin : begin + more])
            begin += more
        if not is_control:
            self._is_message_open = not is_final
        self._kind = kind
        self._left = length
        return begin


def masked(payload: bytes | bytearray | memoryview, kind: int = BINARY) -> bytes:
    """Return a whole frame with this payload, masked with a random key."""
    key = os.urandom(4)
    size = len(payload)
    repeated = key * (size // 4 + 1)
    mixed = int.from_bytes(payload, "little") ^ int.from_bytes(repeated[:size], "little")
    return websocket.header(size, kind)[:-4] + key + mixed.to_bytes(size, "little")


class WebSocketStream(asyncio.Protocol):
    """The protocol of the real transport, and the transport of the MQTT connection above it.

    Args:
        make: Returns the protocol above; called when the server has accepted the WebSocket.
        host: The host of the request.
        port: The port of the request.
        path: The path, and a query where there is one.
    """

    def __init__(self, make: Callable[[], asyncio.BaseProtocol], host: str, port: int, path: str) -> None:
        self._make = make
        self._request = (host, port, path)
        self._key = base64.b64encode(os.urandom(16)).decode()
        self._head: bytes | None = b""
        self._transport: asyncio.Transport | None = None
        self._above: asyncio.Protocol | None = None
        self._unframer = Unframer(self._on_control)
        self._is_closing = False
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait_open(self) -> None:
        """Return when the server has accepted the WebSocket.

        Raises:
            RemoteError: The server is no MQTT broker's WebSocket listener.
            Unavailable: It closed the connection.
        """
        try:
            await self._opened
        except BaseException:
            if self._transport is not None:
                self._transport.abort()
            raise

    # The protocol of the real transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast("asyncio.Transport", transport)
        wire = transport.get_extra_info("socket")
        if wire is not None and wire.family != socket.AF_UNIX:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host, port, path = self._request
        self._transport.write(websocket.request(host, port, self._key, path))

    def data_received(self, data: bytes) -> None:
        """Pass on what the frames carry."""
        if self._is_closing:
            return
        try:
            if self._head is not None:
                data = self._shake_hands(self._head + data)
            payload = self._unframer.feed(data) if data else b""
        except HanseError as error:
            self._fail(error)
            return
        if payload and self._above is not None:
            self._above.data_received(payload)

    def eof_received(self) -> bool:
        """Close: a half-open WebSocket is of no use."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Pass the end on."""
        self._is_closing = True
        if self._above is not None:
            self._above.connection_lost(error)
        elif not self._opened.done():
            self._opened.set_exception(
                Unavailable("The connection was closed before the WebSocket was open; is it a WebSocket listener?")
            )

    def pause_writing(self) -> None:
        """Pass the back-pressure on."""
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        """Pass its end on."""
        if self._above is not None:
            self._above.resume_writing()

    def _shake_hands(self, head: bytes) -> bytes:
        """Read the answer to the request; return what follows it."""
        head, mark, rest = head.partition(b"\r\n\r\n")
        if not mark:
            if len(head) > HEAD_BYTES_MAX:
                raise RemoteError(f"The answer to a WebSocket's request is longer than {HEAD_BYTES_MAX} bytes.")
            self._head = head
            return b""
        websocket.check_answer(head, self._key)
        self._head = None
        if not self._opened.done():
            self._opened.set_result(None)
        self._above = cast("asyncio.Protocol", self._make())
        self._above.connection_made(cast("asyncio.Transport", self))
        return rest

    def _on_control(self, kind: int, payload: bytes) -> None:
        assert self._transport is not None, "a frame came over it"
        if kind == PING:
            if self._transport.get_write_buffer_size() < PONG_BUFFER_MAX:
                self._transport.write(masked(payload, PONG))
        elif kind == CLOSE:
            self.close()

    def _fail(self, error: HanseError) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)
        self.abort()

    # The transport of the protocol above.

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return what is known of the connection. The socket stays hidden: bytes written to it would have no frame."""
        if name == "socket" or self._transport is None:
            return default
        return self._transport.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a frame."""
        if data and self._transport is not None and not self._is_closing:
            self._transport.write(masked(data))

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send a frame of all pieces."""
        self.write(b"".join(pieces))

    def close(self) -> None:
        """Send a close frame, and close when all is written."""
        if not self._is_closing and self._transport is not None:
            self._is_closing = True
            self._transport.write(masked(_NORMAL, CLOSE))
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether the end has begun."""
        return self._is_closing or self._transport is None or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that wait for the kernel."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when `pause_writing` is called."""
        assert self._transport is not None, "the stream above is made when it is open"
        self._transport.set_write_buffer_limits(high=high, low=low)

    def pause_reading(self) -> None:
        """Stop the flow."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Let it flow."""
        if self._transport is not None:
            self._transport.resume_reading()
