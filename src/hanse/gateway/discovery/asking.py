"""One connection of discovery to a broker: it sends CONNECT, and hands packets to its owner.

Rules: nothing a broker sends is trusted or kept beyond what `packets.Reader` keeps. A reference to another server in
CONNACK or DISCONNECT is never followed: discovery learns about brokers from nobody but its own settings.
"""

import asyncio
from typing import Protocol, cast

from hanse.gateway.discovery.packets import DISCONNECT, Packet, Reader
from hanse.mqtt.refusal import Refusal


class Asker(Protocol):
    """Owner of a connection."""

    def hello(self) -> bytes:
        """Return the CONNECT."""

    def on_packets(self, connection: "Connection", packets: list[Packet]) -> None:
        """Take the packets of one read."""


class Connection(asyncio.Protocol):
    """One connection.

    Args:
        wanted_bytes_max: publications of at most this are handed out whole.

    Attributes:
        ended: set when the connection is closed.
        failure: reason of the end, if the broker broke a rule.
        received_bytes: number of received bytes.
    """

    def __init__(self, asker: Asker, wanted_bytes_max: int = 0) -> None:
        self._asker = asker
        self._reader = Reader(wanted_bytes_max=wanted_bytes_max)
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()
        self.failure = ""
        self.received_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._asker.hello())

    def data_received(self, data: bytes) -> None:
        """Hand the packets on."""
        self.received_bytes += len(data)
        reader = self._reader
        refusal = None
        try:
            packets = reader.feed(data)
            if packets:
                self._asker.on_packets(self, packets)
            refusal = reader.refusal
        except Refusal as found:
            refusal = found
        if refusal is not None:
            self.failure = str(refusal)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        if exc is not None and not self.failure:
            self.failure = str(exc) or type(exc).__name__
        self._transport = None
        self.ended.set()

    @property
    def is_open(self) -> bool:
        """Return whether anything can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, data: bytes) -> None:
        """Send packets."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Send DISCONNECT, and close."""
        if self._transport is not None:
            self._transport.write(DISCONNECT)
            self._transport.close()

    def abort(self) -> None:
        """Close without DISCONNECT."""
        if self._transport is not None:
            self._transport.abort()


class Greeter:
    """An asker that needs only the CONNACK.

    Attributes:
        connack: its bytes behind the fixed header; None until it came.
        answered: set when it came, or another packet did.
    """

    def __init__(self, hello: bytes) -> None:
        self._hello = hello
        self.connack: bytes | None = None
        self.is_stranger = False
        self.answered = asyncio.Event()

    def hello(self) -> bytes:
        """Return the CONNECT."""
        return self._hello

    def on_packets(self, connection: Connection, packets: list[Packet]) -> None:  # noqa: ARG002 - one packet is enough
        """Take the CONNACK."""
        if self.connack is None and not self.is_stranger:
            if packets[0].kind == 2 and len(packets[0].body) >= 2:
                self.connack = packets[0].body
            else:
                self.is_stranger = True
        self.answered.set()


async def connack_of(connection: Connection, greeter: Greeter) -> None:
    """Wait until the broker has answered CONNECT or closed the connection."""
    waits = [asyncio.ensure_future(greeter.answered.wait()), asyncio.ensure_future(connection.ended.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
