"""MQTT connection over WebSocket that publishes at QoS 0 and receives only the replies to its pings.

Packets leave unchanged, many per frame. When a broker replies to a ping, it has accepted everything sent before.
"""

import asyncio
import base64
import os
from collections.abc import Callable
from typing import cast

from mqtt5 import ConnAckPacket, ConnectPacket

from hanse.errors import HanseError, RemoteError, Unavailable
from hanse.mqtt import codec, websocket
from hanse.mqtt.urls import Address

# Timeout for a reply of the broker, to the handshake or to a ping.
ANSWER_S = 5.0
KEEP_ALIVE_S = 60


class WebSocketPublisher(asyncio.Protocol):
    """One connection, from dialling to its end.

    Args:
        address: WebSocket listener of the broker.
        connect: the CONNECT packet.
        on_answer: called with the number of each ping that the broker has answered.
    """

    def __init__(self, address: Address, connect: bytes, on_answer: Callable[[int], None]) -> None:
        self.closed = asyncio.Event()
        self._address = address
        self._connect = connect
        self._on_answer = on_answer
        self._key = base64.b64encode(os.urandom(16)).decode()
        self._transport: asyncio.Transport | None = None
        self._reader = websocket.Reader()
        self._head: bytes | None = b""
        self._is_let_in = asyncio.get_running_loop().create_future()
        self._pinging: asyncio.TimerHandle | None = None
        self._pings = self._answers = 0

    async def open(self) -> None:
        """Dial, perform the handshake, and wait until the broker accepts the connection.

        Raises:
            RemoteError: The other side is not a WebSocket listener of a broker, or the broker accepts only with limits.
            Unavailable: The other side does not answer.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_S):
                await loop.create_connection(lambda: self, self._address.host, self._address.port)
                await self._is_let_in
        except TimeoutError:
            raise Unavailable(f"no answer came within {ANSWER_S:g} s.") from None
        self._keep_alive()

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    def waiting_bytes(self) -> int:
        """Return the bytes written that have not reached the kernel."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def write(self, packets: bytes) -> None:
        """Send MQTT packets as one frame."""
        if self._transport is not None:
            self._transport.write(websocket.header(len(packets)) + packets)

    def ping(self) -> int:
        """Send a ping, and return its number, from 1 on."""
        self.write(codec.PING)
        self._pings += 1
        return self._pings

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        # uvloop's transports are not subclasses of asyncio's. They only have the same methods.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(websocket.request(self._address.host, self._address.port, self._key))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail with the reason for the end."""
        self._transport = None
        if self._pinging is not None:
            self._pinging.cancel()
        self._fail(Unavailable(f"the broker closed the connection{f': {error}' if error else ''}."))
        self.closed.set()

    def data_received(self, data: bytes) -> None:
        """Handle the handshake response, CONNACK, and replies to pings."""
        try:
            if self._head is not None:
                data = self._read_head(data)
            for frame in self._reader.feed(data):
                self._take(frame)
        except HanseError as error:
            self._fail(error)
            self.abort()

    def _read_head(self, data: bytes) -> bytes:
        assert self._head is not None
        head, mark, rest = (self._head + data).partition(b"\r\n\r\n")
        if not mark:
            if len(head) > websocket.HEAD_BYTES_MAX:
                raise RemoteError(f"the answer to a WebSocket handshake has more than {len(head)} bytes.")
            self._head = head
            return b""
        websocket.check_answer(head, self._key)
        self._head = None
        self.write(self._connect)
        return rest

    def _take(self, frame: websocket.Frame) -> None:
        if frame.kind == websocket.PING:
            assert self._transport is not None
            self._transport.write(websocket.header(len(frame.payload), websocket.PONG) + frame.payload)
        elif frame.kind == websocket.CLOSE:
            raise Unavailable("the broker closed the WebSocket.")
        elif frame.kind == websocket.BINARY:
            if frame.payload == codec.PONG:
                self._answers += 1
                self._on_answer(self._answers)
            elif not self._is_let_in.done():
                check_connack(frame.payload)
                self._is_let_in.set_result(None)
            else:
                raise RemoteError(f"the broker sent {frame.payload[:8].hex()}, which a publisher does not expect.")

    def _fail(self, error: HanseError) -> None:
        if not self._is_let_in.done():
            self._is_let_in.set_exception(error)

    def _keep_alive(self) -> None:
        self.ping()
        self._pinging = asyncio.get_running_loop().call_later(KEEP_ALIVE_S / 2, self._keep_alive)


def check_connack(data: bytes) -> None:
    """Raise RemoteError unless this is a CONNACK that accepts the connection without limits on the session."""
    packet = codec.decode(data) if len(data) > 1 else None
    if not isinstance(packet, ConnAckPacket) or int(packet.reason_code):
        raise RemoteError(f"the broker refused the bulk connection; its answer is {data[:8].hex()}.")
    if packet.max_packet_size is not None or not packet.retain_available:
        raise RemoteError(
            "the broker limits packet size or retained messages, so the WebSocket connection is not used."
        )


def connect_packet(client_id: str, username: str | None, password: str | None) -> bytes:
    """Return the CONNECT of a bulk connection, which has no session and receives nothing."""
    return ConnectPacket(
        client_id,
        username=username,
        password=None if password is None else password.encode(),
        clean_start=True,
        keep_alive=KEEP_ALIVE_S,
    ).write()
