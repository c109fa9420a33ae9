"""MQTT over WebSocket (MQTT 5, section 6): the frames around a client's bytes.

`websockets` parses the handshake and the frames, about 3 us per frame. Rules:

1. The subprotocol is `mqtt`, or `mqttv3.1` for MQTT 3.1, and the path is the listener's. Origins are checked if some
   are listed; a client that is not a web page sends none and is admitted.
2. Frames are binary. A packet may span frames, and a frame may hold several packets.
3. Compression is not used, so no small frame can become a large one.
4. A message is bounded: by the largest CONNECT until a broker has accepted the client, and by the largest packet after.
"""

import logging
from collections.abc import Sequence
from typing import Final

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from hanse.gateway.addresses import ListenAddress
from hanse.gateway.front.client import Client, Front

SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")
# Browsers send cookies with the handshake.
HANDSHAKE_BYTES_MAX: Final = 16_384
# A message may hold several packets.
_MESSAGE_BYTES_BESIDE: Final = 1 << 20
_WRONG_TYPE: Final = 1003
_GOING_AWAY: Final = 1001

# Every parse error of a client would be a line otherwise.
_quiet = logging.getLogger("hanse.gateway.websocket")
_quiet.setLevel(logging.CRITICAL)


class WebSocketClient(Client):
    """A client over WebSocket.

    Args:
        origins: of web pages that may connect; empty for all.
        packet_bytes_max: the largest packet of a client that a broker has accepted.
    """

    __slots__ = ("_handshake_bytes", "_packet_bytes_max", "_protocol")

    def __init__(
        self,
        front: Front,
        listener: ListenAddress,
        address: str = "",
        *,
        origins: Sequence[str] = (),
        packet_bytes_max: int,
    ) -> None:
        super().__init__(front, listener, address)
        self._packet_bytes_max = packet_bytes_max
        self._handshake_bytes = 0
        self._protocol = ServerProtocol(
            origins=[*map(Origin, origins), None] if origins else None,
            subprotocols=[*map(Subprotocol, SUBPROTOCOLS)],
            # A client may send more behind its CONNECT, in the same frame.
            max_size=2 * front.connect_bytes_max,
            logger=_quiet,
        )

    def data_received(self, data: bytes) -> None:
        """Take one read: a part of the handshake, or of frames."""
        if self.is_lingering:
            self.take(data)
            return
        protocol = self._protocol
        if protocol.state is not OPEN:
            self._handshake_bytes += len(data)
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                self.front.refused(self, "websocket")
                self.abort()
                return
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._answer(event)
            elif isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT):
                found = event.data
                self.take(found if type(found) is bytes else bytes(found))
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                protocol.fail(_WRONG_TYPE, "MQTT frames are binary")
        if protocol.handshake_exc is not None or protocol.parser_exc is not None:
            self.front.refused(self, "websocket")
        self._flush()
        if protocol.close_expected():
            self.close()

    def _answer(self, request: Request) -> None:
        protocol = self._protocol
        if request.path.partition("?")[0] == self.listener.path:
            response = protocol.accept(request)
        else:
            response = protocol.reject(404, f"MQTT is served at {self.listener.path}.\n")
        protocol.send_response(response)

    def accepted(self) -> None:
        """Allow larger messages from now on."""
        self._protocol.max_message_size = self._packet_bytes_max + _MESSAGE_BYTES_BESIDE

    def write(self, out: list[bytes]) -> None:
        """Write to the client as one frame, and clear the list."""
        if self._protocol.state is OPEN and not self.is_lingering:
            self._protocol.send_binary(out[0] if len(out) == 1 else b"".join(out))
            self._flush()
        out.clear()

    def _flush(self) -> None:
        out = [piece for piece in self._protocol.data_to_send() if piece]
        if out:
            super().write(out)

    def close(self) -> None:
        """Send a close frame before the end."""
        if self._protocol.state is OPEN and not self.is_lingering:
            self._protocol.send_close(_GOING_AWAY if self.session is None else 1000)
            self._flush()
        super().close()
