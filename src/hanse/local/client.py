"""Small MQTT 5 client for short tasks on this machine: test whether a broker is up, publish, or print messages.

It uses one connection and does one thing at a time, over asyncio streams. Fast or long-lived clients use `hanse.mqtt`.
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

# MQTT's own limit of 256 MiB is too much for a helper; this holds the largest message, 16 MiB, with topic and
# properties.
PACKET_BYTES_MAX = 17 * 1024 * 1024
_CONNECT_S = 10.0
_RECEIVE_MAX = 1_000
_EARLY_MAX = 100_000


class Connection:
    """Connected client: `async with Connection(url) as connection`."""

    def __init__(self, url: str, *, client_id: str | None = None) -> None:
        """Parse `mqtt://[user:password@]host[:port]`, or `tcp://`, the form in the papers."""
        parts = urlsplit(url)
        if parts.scheme not in {"mqtt", "tcp"} or not parts.hostname:
            raise LocalError(f"The broker's URL begins with {parts.scheme!r}; expected mqtt://host:port.")
        self._host, self._port = parts.hostname, parts.port or 1883
        self._user = None if parts.username is None else unquote(parts.username)
        self._password = None if parts.password is None else unquote(parts.password).encode()
        # Not `hanse-…`: clients with that prefix belong to the federation, and their subscriptions are not counted as
        # interest.
        self._client_id = client_id or f"cli-{os.getpid()}-{os.urandom(4).hex()}"
        # The receive maximum bounds this, except for retained messages with QoS 0.
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
            pass  # it is closed already

    async def receive(self) -> mqtt5.Packet:
        """Return the next packet.

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
        """Publish; with QoS 1 and 2 return when the broker has acknowledged.

        Raises:
            LocalError: the topic is invalid.
            RemoteError: the broker refused the publication.
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
            raise LocalError(f"The topic {topic!r} is invalid: it must not be empty or contain `#` or `+`.") from error
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
        """Subscribe, and return when the broker has confirmed it.

        Raises:
            LocalError: a filter is invalid.
            RemoteError: the broker refused a filter.
        """
        try:
            wanted = [mqtt5.TopicFilter(text, max_qos=mqtt5.QoS(qos)) for text in filters]
        except ValueError as error:
            raise LocalError(
                f"One of the filters {list(filters)!r} is invalid; `#` and `+` must fill a level."
            ) from error
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
        """Yield messages as they arrive; each is acknowledged when the next one is requested."""
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
    """Return whether a broker accepts an MQTT connection at `url` now."""
    try:
        async with Connection(url):
            return True
    except (Unavailable, RemoteError):
        return False
