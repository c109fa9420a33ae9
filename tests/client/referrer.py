"""A server that sends its clients elsewhere, as the gateway does: at CONNECT, or after their first SUBSCRIBE."""

import asyncio
import ssl
from typing import Literal, Self

import mqtt5

from hanse.mqtt import codec
from hanse.mqtt.framing import Splitter

When = Literal["connect", "subscribe"]


class Referrer:
    """`async with Referrer(0x9C, "127.0.0.1:1884", when="subscribe") as server`; `server.url` is its address.

    Attributes:
        connects: the CONNECT packets that came.
        packets: the names of all packets, in and out, in their order.
    """

    def __init__(
        self, reason_code: int, references: str | None, *, when: When = "connect", context: ssl.SSLContext | None = None
    ) -> None:
        self.reason_code = reason_code
        self.references = references
        self.when = when
        self.connects: list[mqtt5.ConnectPacket] = []
        self.packets: list[str] = []
        self._context = context
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"{'mqtts' if self._context else 'mqtt'}://localhost:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        splitter = Splitter(1_000_000, first_kind=codec.CONNECT)
        try:
            while data := await reader.read(65_536):
                found, offsets = splitter.feed(data)
                for start, end in offsets:
                    if not self._answer(codec.decode(found[start:end]), writer):
                        await writer.drain()
                        return
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, packet: mqtt5.Packet, writer: asyncio.StreamWriter) -> bool:
        """Answer one packet; return whether the connection goes on."""
        self.packets.append(type(packet).__name__.removesuffix("Packet").upper())
        if isinstance(packet, mqtt5.ConnectPacket):
            self.connects.append(packet)
            if self.when == "connect":
                code = mqtt5.ConnAckReasonCode(self.reason_code)
                self._send(writer, mqtt5.ConnAckPacket(reason_code=code, server_reference=self.references))
                return False
            self._send(writer, mqtt5.ConnAckPacket())
        elif isinstance(packet, mqtt5.SubscribePacket):
            granted = [mqtt5.SubAckReasonCode(int(item.max_qos)) for item in packet.topic_filters]
            self._send(writer, mqtt5.SubAckPacket(packet.packet_id, granted))
            farewell = mqtt5.DisconnectReasonCode(self.reason_code)
            self._send(writer, mqtt5.DisconnectPacket(reason_code=farewell, server_reference=self.references))
            return False
        elif isinstance(packet, mqtt5.PingReqPacket):
            self._send(writer, mqtt5.PingRespPacket())
        return not isinstance(packet, mqtt5.DisconnectPacket)

    def _send(self, writer: asyncio.StreamWriter, packet: mqtt5.Packet) -> None:
        self.packets.append(type(packet).__name__.removesuffix("Packet").upper())
        writer.write(packet.write())
