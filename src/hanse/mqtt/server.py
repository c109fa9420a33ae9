"""The server side of MQTT 5 connections, for the gateway, and for tests in the place of a broker.

Rules: a handler decides about every CONNECT. Then both sides PUBLISH, with the same guarantees as a client's (withheld
acknowledgements, credit, limits). A server's connection keeps no session beyond its end: the fate of unacknowledged
publications is then unknown, and the handler gets their numbers.
"""

import asyncio
from collections.abc import Iterable, Sequence

from mqtt5 import ConnAckPacket, ConnectPacket, DisconnectPacket, Packet

from hanse.errors import HanseError
from hanse.mqtt.connection import Connection
from hanse.mqtt.counters import Counters
from hanse.mqtt.exchange import BY_SERVER, Exchange
from hanse.mqtt.limits import (
    CONNECT_DEADLINE_S,
    CONNECTIONS_MAX,
    HELD_BYTES_MAX,
    HELD_PACKETS_MAX,
    PACKET_BYTES_MAX,
    WRITE_BYTES_MAX,
)
from hanse.mqtt.listener import Greeting, Listener
from hanse.mqtt.publication import Publication
from hanse.mqtt.receiving import Receiving
from hanse.mqtt.sending import Sending
from hanse.mqtt.tls import TlsSettings


class ServerHandler:
    """Callbacks of a server. Override the ones of interest. None may block."""

    def on_connect(self, greeting: "ServerGreeting", connect: ConnectPacket) -> None:
        """Decide about a peer: call `greeting.accept` or `greeting.refuse`, now or later."""
        raise NotImplementedError

    def on_publications(self, connection: "ServerConnection", publications: list[Publication]) -> None:
        """Handle the publications of one read. Acknowledge them with `connection.ack`."""

    def on_acknowledged(self, connection: "ServerConnection", numbers: list[int]) -> None:
        """Handle publications that the peer has acknowledged."""

    def on_refused(self, connection: "ServerConnection", refused: list[tuple[int, int]]) -> None:
        """Handle publications that the peer refused, with its reason code."""

    def on_credit(self, connection: "ServerConnection") -> None:
        """Continue sending: half of the capacity for QoS 1 and 2 is free again."""

    def on_packet(self, connection: "ServerConnection", packet: Packet) -> None:
        """Handle SUBSCRIBE, UNSUBSCRIBE or AUTH. Reply with `connection.write`."""

    def on_disconnected(self, connection: "ServerConnection", error: HanseError | None) -> None:
        """Handle the end: None if either side ended it in order (`connection.goodbye` is the peer's DISCONNECT)."""


class ServerGreeting:
    """CONNECT that waits for a decision."""

    def __init__(self, greeting: Greeting, server: "Server") -> None:
        self._greeting = greeting
        self._server = server

    @property
    def is_open(self) -> bool:
        """Return whether the peer is still connected."""
        return self._greeting.is_open

    @property
    def peer_certificate(self) -> dict[str, object] | None:
        """The peer's certificate, if TLS requested one."""
        return self._greeting.connection.peer_certificate

    def accept(self, connack: ConnAckPacket | None = None, *, auto_ack: bool = False) -> "ServerConnection":
        """Accept the peer, with a CONNACK that the caller made."""
        connect = self._greeting.connect
        assert connect is not None, "CONNECT has been read"
        answer = connack or ConnAckPacket()
        connection = ServerConnection(self._server, connect, answer, auto_ack=auto_ack)
        self._greeting.accept(answer, connection)
        return connection

    def refuse(self, connack: ConnAckPacket) -> None:
        """Refuse the peer. The CONNACK holds the reason code and, for 0x9C and 0x9D, the server reference."""
        self._greeting.refuse(connack)


class ServerConnection:
    """Peer that was accepted."""

    def __init__(self, server: "Server", connect: ConnectPacket, connack: ConnAckPacket, *, auto_ack: bool) -> None:
        self.connect = connect
        self.client_id = connack.assigned_client_id or connect.client_id
        self.goodbye: DisconnectPacket | None = None
        self._server = server
        self._connack = connack
        self._connection: Connection | None = None
        handler = server.handler
        self._sending = Sending(
            server.counters,
            packets_max=server.held_packets_max,
            bytes_max=server.held_bytes_max,
            write_bytes_max=server.write_bytes_max,
            on_credit=lambda: handler.on_credit(self),
            on_outcomes=self._settle_soon,
        )
        self._exchange = Exchange(
            server.counters,
            self._sending,
            Receiving(server.counters, receive_max=connack.receive_max),
            others=BY_SERVER,
            on_publications=lambda publications: handler.on_publications(self, publications),
            on_acknowledged=lambda numbers: handler.on_acknowledged(self, numbers),
            on_refused=lambda refused: handler.on_refused(self, refused),
            on_other=self._on_other,
            auto_ack=auto_ack,
        )

    @property
    def is_open(self) -> bool:
        """Return whether a write can still reach the peer."""
        return self._connection is not None and self._connection.is_open

    @property
    def credit(self) -> int:
        """Number of QoS 1 and 2 publications that may be handed over now."""
        return self._sending.credit

    @property
    def unacknowledged(self) -> int:
        """Number of QoS 1 and 2 publications that the peer has not acknowledged."""
        return self._sending.held

    def publish_run(self, run: bytes, *, qos: int | None = None, count: int | None = None) -> int:
        """Send a run of canonical packets; see `Sending.publish_run`."""
        return self._sending.publish_run(run, qos=qos, count=count)

    def ack(self, receipts: Iterable[int]) -> None:
        """Acknowledge publications."""
        self._exchange.ack(receipts)

    def write(self, packet: bytes) -> None:
        """Send another packet: SUBACK, UNSUBACK, AUTH."""
        if self._connection is not None:
            self._connection.write(packet)

    def disconnect(
        self, reason_code: int = 0, *, reason: str | None = None, server_reference: str | None = None
    ) -> None:
        """Send DISCONNECT and end the connection."""
        if self._connection is not None:
            self._connection.close(reason_code, reason, server_reference)

    def on_open(self, connection: Connection) -> None:
        """Begin, once the peer is accepted."""
        self._connection = connection
        keep_alive_s = self._connack.server_keep_alive
        connection.keep_alive(self.connect.keep_alive if keep_alive_s is None else keep_alive_s, pings=False)
        self._exchange.attach(
            connection.write,
            connection.waiting_bytes,
            session_present=False,
            receive_max=self.connect.receive_max,
            packet_bytes_max=self.connect.max_packet_size,
        )

    def on_packets(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        """Handle the packets of one read."""
        self._exchange.receive(data, offsets)

    def on_lost(self, error: HanseError | None) -> None:
        """Report the end to the handler."""
        self._exchange.detach()
        self._connection = None
        self._server.handler.on_disconnected(self, error)

    def on_writable(self) -> None:
        """Do nothing: `Sending` checks by itself how much waits."""

    def _settle_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._exchange.settle)

    def _on_other(self, packet: Packet) -> None:
        if isinstance(packet, DisconnectPacket):
            self.goodbye = packet
            if self._connection is not None:
                self._connection.end(None, b"")
        else:
            self._server.handler.on_packet(self, packet)


class Server:
    """Listener for MQTT 5 clients.

    Args:
        held_packets_max, held_bytes_max, write_bytes_max: for each connection, as in `ClientSettings`.
    """

    def __init__(
        self,
        handler: ServerHandler,
        *,
        counters: Counters | None = None,
        connections_max: int = CONNECTIONS_MAX,
        connect_deadline_s: float = CONNECT_DEADLINE_S,
        packet_bytes_max: int = PACKET_BYTES_MAX,
        held_packets_max: int = HELD_PACKETS_MAX,
        held_bytes_max: int = HELD_BYTES_MAX,
        write_bytes_max: int = WRITE_BYTES_MAX,
    ) -> None:
        self.handler = handler
        self.counters = counters or Counters()
        self.held_packets_max = held_packets_max
        self.held_bytes_max = held_bytes_max
        self.write_bytes_max = write_bytes_max
        self.listener = Listener(
            self._on_connect,
            counters=self.counters,
            connections_max=connections_max,
            connect_deadline_s=connect_deadline_s,
            packet_bytes_max=packet_bytes_max,
        )

    async def start(self, host: str, port: int, tls: TlsSettings | None = None) -> None:
        """Listen; see `Listener.start`."""
        await self.listener.start(host, port, tls)

    async def stop(self) -> None:
        """Stop listening, and send every peer a DISCONNECT."""
        await self.listener.stop()

    @property
    def port(self) -> int:
        """Port of the listening socket."""
        return self.listener.port

    def _on_connect(self, greeting: Greeting, connect: ConnectPacket) -> None:
        self.handler.on_connect(ServerGreeting(greeting, self), connect)
