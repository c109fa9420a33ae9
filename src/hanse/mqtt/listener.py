"""The server side up to CONNACK: accept, read CONNECT within a deadline, wait for a decision, hand over.

Rules:

1. The first packet must be a CONNECT of bounded size, in time. Otherwise the connection ends silently (MQTT 5, 4.13.1
   allows it, and a stranger learns nothing). Bytes behind the CONNECT wait, bounded, for the decision. A refused
   CONNECT gets a CONNACK with its reason code.
2. At most `connections_max` connections are open at once. One more takes the place of the oldest that was not accepted
   yet, so that a crowd of silent connections does not keep others out. Those of known hosts lose their place last, and
   never to a stranger. Without any such place the new connection ends.
3. TLS handshakes under way have places of their own, as many, with the same rule (`tls_accepting`).
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
from hanse.mqtt.tls_accepting import BACKLOG, TlsAcceptor


class Greeting:
    """Connection whose CONNECT waits for a decision. Call exactly one of `accept` and `refuse`."""

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._connection: Connection | None = None
        self._early: list[tuple[bytes, Sequence[tuple[int, int]]]] = []
        self._early_bytes = 0
        self._is_decided = False
        self.connect: ConnectPacket | None = None

    @property
    def connection(self) -> Connection:
        """The connection below."""
        assert self._connection is not None, "there is no connection yet"
        return self._connection

    @property
    def is_open(self) -> bool:
        """Return whether the peer is still connected."""
        return self._connection is not None and self._connection.is_open

    def accept(self, connack: ConnAckPacket, owner: Owner) -> None:
        """Accept the peer. From here on, `owner` gets its packets, first those that have already arrived."""
        assert not self._is_decided, "a CONNECT is decided once"
        self._is_decided = True
        connection = self.connection
        if not connection.is_open:
            return
        connection.write(connack.write())
        self._listener.accepted(connection)
        connection.says_disconnect = True
        connection.owner = _Counted(owner, self._listener, connection)
        owner.on_open(connection)
        try:
            for data, offsets in self._early:
                owner.on_packets(data, offsets)
        except Refusal as refusal:
            connection.refuse(refusal)

    def refuse(self, connack: ConnAckPacket) -> None:
        """Refuse the peer, with a reason code and perhaps a server reference in the CONNACK."""
        assert not self._is_decided, "a CONNECT is decided once"
        self._is_decided = True
        self._listener.counters.refuse("connect")
        self.connection.end(None, connack.write())

    def on_open(self, connection: Connection) -> None:
        """Start the deadline for CONNECT, unless there are too many connections already."""
        self._connection = connection
        if self._listener.admit(connection):
            connection.after(self._listener.connect_deadline_s, self._on_deadline)

    def on_packets(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        """Handle CONNECT, and keep any packets that its sender sent without waiting for the reply."""
        if self.connect is None:
            start, end = offsets[0]
            try:
                packet = codec.decode(data[start:end])
            except Refusal as refusal:
                self._turn_away(refusal)
                return
            assert isinstance(packet, ConnectPacket), "the splitter allows no other first packet"
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
            # A 3.1.1 client reads a return code in the place of MQTT 5's reason code: 1 is "unacceptable version".
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
        """Note that the connection ended before it was accepted."""
        self._is_decided = True
        self._listener.forget(self.connection)
        self._listener.on_turned_away(self, error)

    def on_writable(self) -> None:
        """Do nothing: nothing waits here."""


class _Counted:
    """Owner together with the listener that must also learn of the end."""

    def __init__(self, owner: Owner, listener: "Listener", connection: Connection) -> None:
        self._owner = owner
        self._listener = listener
        self._connection = connection
        self.on_packets = owner.on_packets  # saves one call per read
        self.on_writable = owner.on_writable

    def on_open(self, connection: Connection) -> None:
        self._owner.on_open(connection)

    def on_lost(self, error: HanseError | None) -> None:
        self._listener.forget(self._connection)
        self._owner.on_lost(error)


class Listener:
    """Listening socket and its connections.

    Args:
        on_connect: decides about a CONNECT, now or later, with `accept` or `refuse` of the greeting.
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
        # Those that were not accepted yet, the oldest first, and their hosts.
        self._waiting: dict[Connection, str] = {}
        # Rule 2: whether a host has a place before others. Set it before `start`.
        self.is_known_host: Callable[[str], bool] = _is_nobody_known
        # Called with address, event and reason of each failed TLS handshake. Set it before `start`.
        self.on_refused_tls: Callable[[str, str, str], None] = _tell_nobody
        self._server: asyncio.Server | TlsAcceptor | None = None
        self._is_empty = asyncio.Event()

    @property
    def connections(self) -> int:
        """Number of connections, greeted or not."""
        return len(self._connections)

    @property
    def waiting(self) -> int:
        """Number of connections that were not accepted yet, handshakes included."""
        return len(self._waiting) + (self._server.handshakes if isinstance(self._server, TlsAcceptor) else 0)

    @property
    def port(self) -> int:
        """Port of the listening socket."""
        assert self._server is not None, "the listener was not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def make(self) -> Connection:
        """Return the protocol for one accepted transport."""
        splitter = Splitter(self._packet_bytes_max, first_kind=codec.CONNECT)
        return Connection(
            Greeting(self), splitter, self.counters, transport_bytes=self._transport_bytes, says_disconnect=False
        )

    async def start(self, host: str, port: int, tls: TlsSettings | None = None) -> None:
        """Start to listen.

        Raises:
            LocalError: the address is not available, or the TLS files are not usable.
        """
        try:
            if tls is not None:
                acceptor = self._acceptor(tls)
                await acceptor.start(host, port)
                self._server = acceptor
            else:
                loop = asyncio.get_running_loop()
                self._server = await loop.create_server(self.make, host, port, backlog=BACKLOG)
        except OSError as error:
            raise LocalError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address."
            ) from error

    def _acceptor(self, tls: TlsSettings) -> TlsAcceptor:
        return TlsAcceptor(
            self.make,
            server_context(tls),
            handshakes_max=self._connections_max,
            # A TLS handshake comes before the deadline of CONNECT starts, so it has its own.
            deadline_s=self.connect_deadline_s,
            is_known=lambda host: self.is_known_host(host),  # noqa: PLW0108 - it may be set later
            on_full=lambda: self.counters.refuse("connections"),
            on_refused=lambda address, event, reason: self.on_refused_tls(address, event, reason),  # noqa: PLW0108
        )

    async def stop(self) -> None:
        """Stop listening, and send every peer a DISCONNECT."""
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
        """Return whether there is a place for one more connection (rule 2). If not, cut it at once."""
        host = connection.peer_address.rpartition(":")[0]
        if len(self._connections) >= self._connections_max:
            self.counters.refuse("connections")
            former = self._oldest_waiting(is_known=self.is_known_host(host))
            if former is None:
                self._connections.add(connection)
                connection.abort()
                return False
            self.forget(former)
            former.abort()
        self._connections.add(connection)
        self._waiting[connection] = host
        self.counters.connects += 1
        return True

    def _oldest_waiting(self, *, is_known: bool) -> Connection | None:
        """Return the connection that loses its place: the oldest of a stranger, or of anyone for a known host."""
        for connection, host in self._waiting.items():
            if not self.is_known_host(host):
                return connection
        return next(iter(self._waiting), None) if is_known else None

    def accepted(self, connection: Connection) -> None:
        """Note that a connection was accepted, and keeps its place."""
        self._waiting.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self._waiting.pop(connection, None)
        if connection in self._connections:
            self._connections.remove(connection)
            self.counters.disconnects += 1
        if not self._connections:
            self._is_empty.set()

    def on_turned_away(self, greeting: Greeting, error: HanseError | None) -> None:
        """Note a peer that left or was refused before it was accepted. Override to observe."""


def _is_nobody_known(_host: str) -> bool:
    return False


def _tell_nobody(_address: str, _event: str, _reason: str) -> None:
    """Report nothing."""
