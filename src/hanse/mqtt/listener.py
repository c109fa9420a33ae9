"""The server side up to CONNACK: accept, read CONNECT within a deadline, let somebody decide, hand over.

Rules: no more than `connections_max` at once; the first packet is CONNECT, of bounded size, in time, or the
connection ends without a word (MQTT 5, 4.13.1 leaves the choice, and a stranger learns nothing); what came behind
the CONNECT waits, bounded, for the decision; a refused CONNECT gets a CONNACK with its reason code.
"""

import asyncio
from collections.abc import Callable, Sequence

from mqtt5 import ConnAckPacket, ConnAckReasonCode, ConnectPacket

from hanse.errors import HanseError, LocalError
from hanse.mqtt import codec
from hanse.mqtt.connection import Connection, Owner
from hanse.mqtt.counters import Counters
from hanse.mqtt.framing import Splitter
from hanse.mqtt.limits import CONNECT_BYTES_MAX, CONNECT_DEADLINE_S, CONNECTIONS_MAX, PACKET_BYTES_MAX
from hanse.mqtt.refusal import (
    CONNECT_TIMEOUT,
    MALFORMED_PACKET,
    QUOTA_EXCEEDED,
    SHUTTING_DOWN,
    UNSUPPORTED_VERSION,
    Refusal,
)
from hanse.mqtt.tls import TlsSettings, server_context


class Greeting:
    """A connection whose CONNECT is being decided: exactly one of `accept` and `refuse` must be called."""

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._connection: Connection | None = None
        self._early: list[tuple[bytes, Sequence[tuple[int, int]]]] = []
        self._early_bytes = 0
        self._is_decided = False
        self.connect: ConnectPacket | None = None

    @property
    def connection(self) -> Connection:
        """The connection under it."""
        assert self._connection is not None, "there is no connection yet"
        return self._connection

    @property
    def is_open(self) -> bool:
        """Whether the peer is still there to hear a decision."""
        return self._connection is not None and self._connection.is_open

    def accept(self, connack: ConnAckPacket, owner: Owner) -> None:
        """Let the peer in; `owner` gets its packets from here on, first those that came already."""
        assert not self._is_decided, "a CONNECT is decided once"
        self._is_decided = True
        connection = self.connection
        if not connection.is_open:
            return
        connection.write(connack.write())
        connection.says_disconnect = True
        connection.owner = _Counted(owner, self._listener, connection)
        owner.on_open(connection)
        try:
            for data, offsets in self._early:
                owner.on_packets(data, offsets)
        except Refusal as refusal:
            connection.refuse(refusal)

    def refuse(self, connack: ConnAckPacket) -> None:
        """Turn the peer away, with a reason code and perhaps a server reference in the CONNACK."""
        assert not self._is_decided, "a CONNECT is decided once"
        self._is_decided = True
        self._listener.counters.refuse("connect")
        self.connection.end(None, connack.write())

    def on_open(self, connection: Connection) -> None:
        """The clock for CONNECT starts, unless there are too many already."""
        self._connection = connection
        if self._listener.admit(connection):
            connection.after(self._listener.connect_deadline_s, self._on_deadline)

    def on_packets(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        """CONNECT, and whatever its sender did not wait with."""
        if self.connect is None:
            start, end = offsets[0]
            try:
                packet = codec.decode(data[start:end])
            except Refusal as refusal:
                self._turn_away(refusal)
                return
            assert isinstance(packet, ConnectPacket), "the splitter lets nothing else come first"
            self.connect = packet
            if len(offsets) > 1:
                self._keep(data, offsets[1:])
            self._listener.on_connect(self, packet)
        else:
            self._keep(data, offsets)

    def _keep(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        if self._is_decided:
            return
        self._early.append((data, offsets))
        self._early_bytes += len(data)
        if self._early_bytes > CONNECT_BYTES_MAX:
            raise Refusal(QUOTA_EXCEEDED, f"more than {CONNECT_BYTES_MAX} bytes came before CONNACK")

    def _turn_away(self, refusal: Refusal) -> None:
        self._is_decided = True
        connection = self.connection
        connection.counters.refuse(refusal.counted_as)
        if refusal.reason_code == UNSUPPORTED_VERSION:
            # A client of 3.1.1 reads the return code where MQTT 5 has the reason code: 1 is "unacceptable version".
            answer = b"\x20\x02\x00\x01"
        else:
            try:
                code = ConnAckReasonCode(refusal.reason_code)
            except ValueError:
                code = ConnAckReasonCode(MALFORMED_PACKET)
            answer = ConnAckPacket(reason_code=code).write()
        connection.end(refusal, answer)

    def _on_deadline(self) -> None:
        if not self._is_decided:
            self._is_decided = True
            deadline_s = self._listener.connect_deadline_s
            self.connection.refuse(Refusal(CONNECT_TIMEOUT, f"no CONNECT was answered within {deadline_s} s"))

    def on_lost(self, error: HanseError | None) -> None:
        """It ended before it was let in."""
        self._is_decided = True
        self._listener.forget(self.connection)
        self._listener.on_turned_away(self, error)

    def on_writable(self) -> None:
        """Nothing waits here."""


class _Counted:
    """An owner, and the listener that must hear of the end too."""

    def __init__(self, owner: Owner, listener: "Listener", connection: Connection) -> None:
        self._owner = owner
        self._listener = listener
        self._connection = connection
        self.on_packets = owner.on_packets  # one call less a read
        self.on_writable = owner.on_writable

    def on_open(self, connection: Connection) -> None:
        self._owner.on_open(connection)

    def on_lost(self, error: HanseError | None) -> None:
        self._listener.forget(self._connection)
        self._owner.on_lost(error)


class Listener:
    """A listening socket and its connections.

    Args:
        on_connect: decides a CONNECT, now or later, by `accept` or `refuse` of the greeting.
        transport_bytes: see `Connection`.
    """

    def __init__(
        self,
        on_connect: Callable[[Greeting, ConnectPacket], None],
        *,
        counters: Counters | None = None,
        connections_max: int = CONNECTIONS_MAX,
        connect_deadline_s: float = CONNECT_DEADLINE_S,
        packet_bytes_max: int = PACKET_BYTES_MAX,
        transport_bytes: int | None = None,
    ) -> None:
        self.on_connect = on_connect
        self.counters = counters or Counters()
        self.connect_deadline_s = connect_deadline_s
        self._connections_max = connections_max
        self._packet_bytes_max = packet_bytes_max
        self._transport_bytes = transport_bytes
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._is_empty = asyncio.Event()

    @property
    def connections(self) -> int:
        """How many there are, greeted or not."""
        return len(self._connections)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None, "the listener was not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def make(self) -> Connection:
        """The protocol for one accepted transport."""
        splitter = Splitter(self._packet_bytes_max, first_kind=codec.CONNECT)
        return Connection(
            Greeting(self), splitter, self.counters, transport_bytes=self._transport_bytes, says_disconnect=False
        )

    async def start(self, host: str, port: int, tls: TlsSettings | None = None) -> None:
        """Listen.

        Raises:
            LocalError: the address cannot be had, or the TLS files cannot be used.
        """
        context = server_context(tls) if tls is not None else None
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self.make,
                host,
                port,
                ssl=context,
                # A TLS handshake comes before CONNECT's clock starts, so it gets one of its own.
                ssl_handshake_timeout=self.connect_deadline_s if context is not None else None,
            )
        except OSError as error:
            raise LocalError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address."
            ) from error

    async def stop(self) -> None:
        """Listen no more, and tell every peer that it is over."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close(SHUTTING_DOWN)
        if self._connections:
            self._is_empty.clear()
            await self._is_empty.wait()  # each has CLOSE_DEADLINE_S at most
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for one more; if not, it is cut at once."""
        self._connections.add(connection)
        if len(self._connections) > self._connections_max:
            self.counters.refuse("connections")
            connection.abort()
            return False
        self.counters.connects += 1
        return True

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        if connection in self._connections:
            self._connections.remove(connection)
            self.counters.disconnects += 1
        if not self._connections:
            self._is_empty.set()

    def on_turned_away(self, greeting: Greeting, error: HanseError | None) -> None:
        """A peer left, or was sent away, before it was let in. Override to look."""
