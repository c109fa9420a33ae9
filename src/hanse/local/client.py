"""A small MQTT 5 client for one-off tasks on this machine: is the broker up, publish this, print what comes.

One connection, one thing at a time, over asyncio streams. What has to be fast or to last uses `hanse.mqtt`.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

import mqtt5

from hanse.errors import LocalError, RemoteError, Unavailable

# MQTT's own limit, 256 MiB, is no bound for a helper; the largest message, 16 MiB, with topic and properties is.
PACKET_BYTES_MAX = 17 * 1024 * 1024
_CONNECT_S = 10.0
_RECEIVE_MAX = 1_000
_EARLY_MAX = 100_000


class Connection:
    """A connected client. Use as `async with Connection(url) as connection`."""

    def __init__(self, url: str, *, client_id: str | None = None) -> None:
        """`url` is `mqtt://[user:password@]host[:port]`, or `tcp://`, as the papers' federators write it."""
        parts = urlsplit(url)
        if parts.scheme not in {"mqtt", "tcp"} or not parts.hostname:
            raise LocalError(f"The broker's URL begins with {parts.scheme!r}; expected mqtt://host:port.")
        self._host, self._port = parts.hostname, parts.port or 1883
        self._user = None if parts.username is None else unquote(parts.username)
        self._password = None if parts.password is None else unquote(parts.password).encode()
        self._client_id = client_id or f"hanse-cli-{os.getpid()}-{os.urandom(4).hex()}"
        # Bounded by the receive maximum, but for QoS 0 that is retained.
        self._early: deque[mqtt5.PublishPacket] = deque(maxlen=_EARLY_MAX)
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        where = f"{self._host}:{self._port}"
        try:
            async with asyncio.timeout(_CONNECT_S):
                self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
                self._writer.write(
                    mqtt5.ConnectPacket(
                        self._client_id,
                        username=self._user,
                        password=self._password,
                        clean_start=True,
                        receive_max=_RECEIVE_MAX,
                    ).write()
                )
                answer = await self.receive()
        except TimeoutError as error:
            raise Unavailable(f"No broker answered at {where} within {_CONNECT_S:g} s.") from error
        except OSError as error:
            raise Unavailable(f"No broker answers at {where} ({error.strerror or error}).") from error
        if not isinstance(answer, mqtt5.ConnAckPacket):
            raise RemoteError(f"The broker at {where} answered CONNECT with {type(answer).__name__}.")
        if answer.reason_code != mqtt5.ConnAckReasonCode.SUCCESS:
            raise RemoteError(f"The broker at {where} refused the connection: {answer.reason_code.name}.")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._writer.write(mqtt5.DisconnectPacket().write())
            self._writer.close()
            await self._writer.wait_closed()
        except OSError:
            pass  # it is closed, which is what was wanted

    async def receive(self) -> mqtt5.Packet:
        """The next packet.

        Raises:
            Unavailable: the broker closed the connection.
            RemoteError: the packet is longer than `PACKET_BYTES_MAX`, or malformed.
        """
        try:
            head = await self._reader.readexactly(2)
            while head[-1] & 0x80 and len(head) < 5:
                head += await self._reader.readexactly(1)
            length = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(head[1:]))
            if length > PACKET_BYTES_MAX:
                raise RemoteError(f"The broker sent a packet of {length} bytes; at most {PACKET_BYTES_MAX} are read.")
            packet, _ = mqtt5.read(memoryview(head + await self._reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Unavailable(f"The broker at {self._host}:{self._port} closed the connection.") from error
        except ValueError as error:
            raise RemoteError(f"The broker sent a packet that is not MQTT 5: {error}.") from error
        return packet

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        user_properties: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Publish; at QoS 1 and 2 return when the broker has acknowledged.

        Raises:
            LocalError: the topic is not one.
            RemoteError: the broker refused it.
        """
        try:
            packet = mqtt5.PublishPacket(
                topic,
                payload=payload,
                qos=mqtt5.QoS(qos),
                retain=retain,
                packet_id=1 if qos else None,
                user_properties=list(user_properties),
            )
            encoded = packet.write()
        except ValueError as error:
            raise LocalError(f"The topic {topic!r} is none to publish on: no `#`, no `+`, not empty.") from error
        self._writer.write(encoded)
        await self._writer.drain()
        while qos:
            match await self.receive():
                case mqtt5.PubAckPacket() | mqtt5.PubRecPacket() as answer if int(answer.reason_code) >= 0x80:
                    raise RemoteError(f"The broker refused the publication: {answer.reason_code.name}.")
                case mqtt5.PubAckPacket() | mqtt5.PubCompPacket():
                    return
                case mqtt5.PubRecPacket():
                    self._writer.write(mqtt5.PubRelPacket(1).write())
                case mqtt5.DisconnectPacket(reason_code=reason):
                    raise RemoteError(f"The broker ended the connection: {reason.name}.")
                case _:
                    pass

    async def subscribe(self, filters: Sequence[str], *, qos: int = 0) -> None:
        """Subscribe, and return when it counts.

        Raises:
            LocalError: one of them is not a filter.
            RemoteError: the broker refused one of them.
        """
        try:
            wanted = [mqtt5.TopicFilter(text, max_qos=mqtt5.QoS(qos)) for text in filters]
        except ValueError as error:
            raise LocalError(f"One of the filters {list(filters)!r} is none: `#` and `+` stand alone.") from error
        self._writer.write(mqtt5.SubscribePacket(1, wanted).write())
        while not isinstance(answer := await self.receive(), mqtt5.SubAckPacket):
            match answer:
                # Retained messages may come before the SUBACK (MQTT 5, section 3.8.4).
                case mqtt5.PublishPacket():
                    self._early.append(answer)
                case mqtt5.DisconnectPacket(reason_code=reason):
                    raise RemoteError(f"The broker ended the connection: {reason.name}.")
                case _:
                    pass
        for text, granted in zip(filters, answer.reason_codes, strict=True):
            if int(granted) >= 0x80:
                raise RemoteError(f"The broker refused the subscription to {text!r}: {granted.name}.")

    async def messages(self) -> AsyncIterator[mqtt5.PublishPacket]:
        """What arrives, each message acknowledged when the next one is asked for."""
        while True:
            match self._early.popleft() if self._early else await self.receive():
                case mqtt5.PublishPacket() as packet:
                    yield packet
                    if packet.qos == mqtt5.QoS.AT_LEAST_ONCE and packet.packet_id is not None:
                        self._writer.write(mqtt5.PubAckPacket(packet.packet_id).write())
                    elif packet.packet_id is not None:
                        self._writer.write(mqtt5.PubRecPacket(packet.packet_id).write())
                case mqtt5.PubRelPacket() as packet:
                    self._writer.write(mqtt5.PubCompPacket(packet.packet_id).write())
                case mqtt5.DisconnectPacket(reason_code=reason):
                    raise Unavailable(f"The broker ended the connection: {reason.name}.")
                case _:
                    pass


async def broker_answers(url: str) -> bool:
    """Whether a broker accepts an MQTT connection there now."""
    try:
        async with Connection(url):
            return True
    except (Unavailable, RemoteError):
        return False
