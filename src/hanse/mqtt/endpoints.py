"""The two ends of links: a dialler of one neighbour, and a listener for neighbours.

The handshake is CONNECT and CONNACK. Both sides send their parameters (federation, epoch, settings) as user properties.
One of the listener's properties, `ID_PROPERTY`, is its id.

Rules: the listener decides whether a link begins (`on_greeting`). The dialler may close it again. A dialler never gives
up, backs off with jitter, which comes in as an argument, and has one link at a time.
"""

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from mqtt5 import ConnAckPacket, ConnAckReasonCode, ConnectPacket

from hanse.errors import HanseError, LocalError, RemoteError, Unavailable
from hanse.mqtt import codec
from hanse.mqtt.backoff import Backoff, BackoffSettings
from hanse.mqtt.connection import Connection
from hanse.mqtt.counters import Counters
from hanse.mqtt.framing import Splitter
from hanse.mqtt.limits import (
    CONNECT_DEADLINE_S,
    CONNECTIONS_MAX,
    LINK_TRANSPORT_BYTES,
    LINK_WINDOW,
    PACKET_BYTES_MAX,
)
from hanse.mqtt.link import Link, LinkHandler
from hanse.mqtt.listener import Greeting, Listener
from hanse.mqtt.refusal import Refusal
from hanse.mqtt.tls import TlsSettings, client_context
from hanse.mqtt.tls_failures import cannot_connect, what_to_check
from hanse.mqtt.urls import Address, parse

ID_PROPERTY: Final = "hanse-id"
KEEP_ALIVE_S: Final = 5

Dial = Callable[[Callable[[], Connection]], Awaitable[object]]


class LinkGreeting:
    """Request of a federator for a link. Call exactly one of `accept` and `refuse`, now or later."""

    def __init__(self, greeting: Greeting, connect: ConnectPacket, listener: "LinkListener") -> None:
        self._greeting = greeting
        self._connect = connect
        self._listener = listener
        self.peer_id = connect.client_id
        self.peer = dict(connect.user_properties)
        self.username = connect.username
        self.password = connect.password

    @property
    def peer_certificate(self) -> dict[str, object] | None:
        """The peer's certificate, if TLS requested one."""
        return self._greeting.connection.peer_certificate

    @property
    def peer_address(self) -> str:
        """Host and port of the peer, for logs."""
        return self._greeting.connection.peer_address

    @property
    def is_open(self) -> bool:
        """Return whether the request still waits for an answer."""
        return self._greeting.is_open

    def accept(self, properties: Mapping[str, str]) -> Link:
        """Accept the link, and send `properties` to the peer."""
        listener = self._listener
        connack = ConnAckPacket(
            receive_max=LINK_WINDOW,
            max_packet_size=listener.packet_bytes_max,
            user_properties=[(ID_PROPERTY, listener.own_id), *properties.items()],
        )
        link = Link(
            listener.handler,
            self.peer_id,
            self.peer,
            is_dialled=False,
            keep_alive_s=self._connect.keep_alive,
            receive_max=self._connect.receive_max,
            packet_bytes_max=self._connect.max_packet_size,
        )
        self._greeting.accept(connack, link)
        return link

    def refuse(self, reason_code: int, reason: str) -> None:
        """Refuse the link, with a reason code of CONNACK (0x87 not authorised, 0x85 id not valid, 0x89 busy, ...)."""
        self._greeting.refuse(
            ConnAckPacket(
                reason_code=ConnAckReasonCode(reason_code),
                reason_str=reason[:1000],
                user_properties=[(ID_PROPERTY, self._listener.own_id)],
            )
        )


class LinkListenerHandler(LinkHandler):
    """Callbacks for the owner of a listener, in addition to those of its links."""

    def on_greeting(self, greeting: LinkGreeting) -> None:
        """Answer the request of a federator for a link."""
        raise NotImplementedError


class LinkListener:
    """Listener for neighbours.

    Args:
        own_id: id of this federator, sent to every neighbour.
    """

    def __init__(
        self,
        own_id: str,
        handler: LinkListenerHandler,
        *,
        counters: Counters | None = None,
        connections_max: int = CONNECTIONS_MAX,
        connect_deadline_s: float = CONNECT_DEADLINE_S,
        packet_bytes_max: int = PACKET_BYTES_MAX,
    ) -> None:
        self.own_id = own_id
        self.handler = handler
        self.counters = counters or Counters()
        self.packet_bytes_max = packet_bytes_max
        self.listener = Listener(
            self._on_connect,
            counters=self.counters,
            connections_max=connections_max,
            connect_deadline_s=connect_deadline_s,
            packet_bytes_max=packet_bytes_max,
            transport_bytes=LINK_TRANSPORT_BYTES,
        )

    async def start(self, host: str, port: int, tls: TlsSettings | None = None) -> None:
        """Start to listen; see `Listener.start`."""
        await self.listener.start(host, port, tls)

    async def stop(self) -> None:
        """Stop listening, and end every accepted link."""
        await self.listener.stop()

    @property
    def port(self) -> int:
        """Port of the listening socket."""
        return self.listener.port

    def _on_connect(self, greeting: Greeting, connect: ConnectPacket) -> None:
        if not connect.client_id or len(dict(connect.user_properties)) != len(connect.user_properties):
            greeting.refuse(
                ConnAckPacket(
                    reason_code=ConnAckReasonCode.CLIENT_ID_NOT_VALID,
                    reason_str="a federator must give its id, and each of its properties once",
                )
            )
            return
        self.handler.on_greeting(LinkGreeting(greeting, connect, self))


class LinkDialler:
    """Dialler that keeps one link to one neighbour.

    Args:
        url: link address of the neighbour.
        properties: called before each attempt; returns the properties for the peer (the epoch may have changed).
        on_failed: called after every failed attempt, with the reason.
        dial: function that makes the transport; by default TCP or TLS.
    """

    def __init__(
        self,
        url: str,
        own_id: str,
        handler: LinkHandler,
        *,
        properties: Callable[[], Mapping[str, str]] = dict,
        on_failed: Callable[[HanseError], None] | None = None,
        username: str | None = None,
        password: str | None = None,
        tls: TlsSettings | None = None,
        keep_alive_s: int = KEEP_ALIVE_S,
        connect_timeout_s: float = CONNECT_DEADLINE_S,
        packet_bytes_max: int = PACKET_BYTES_MAX,
        backoff: BackoffSettings | None = None,
        jitter: Callable[[], float] = random.random,
        counters: Counters | None = None,
        dial: Dial | None = None,
    ) -> None:
        self.address: Address = parse(url)
        self.own_id = own_id
        self.handler = handler
        self.properties = properties
        self.counters = counters or Counters()
        self.keep_alive_s = keep_alive_s
        self.packet_bytes_max = packet_bytes_max
        self.link: Link | None = None
        # The peer's id in its last answer, also if that was a refusal; empty before the first one.
        self.peer_id = ""
        self._username = username if username is not None else self.address.username
        self._password = password if password is not None else self.address.password
        self._on_failed = on_failed
        self._connect_timeout_s = connect_timeout_s
        self._backoff = Backoff(backoff or BackoffSettings(), jitter)
        self._dial = dial or self._dial_network
        self._task: asyncio.Task[None] | None = None
        self._call: _Call | None = None
        self._server_name = tls.server_name if tls else None
        self._tls: ssl.SSLContext | None = None
        self.tls_settings: TlsSettings | None = None
        if self.address.is_tls:
            self.tls_settings = tls or TlsSettings()
            self._tls = client_context(self.tls_settings)
        elif tls is not None:
            raise LocalError(f"TLS files were given for {self.address}, which is plain; write mqtts:// to use them.")

    def start(self) -> None:
        """Start to dial, in the background."""
        assert self._task is None, "the dialler was started already"
        self._task = asyncio.get_running_loop().create_task(self._stay(), name=f"link to {self.address}")

    async def stop(self) -> None:
        """End the link, if there is one, and stop dialling."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        call, self._call = self._call, None
        if call is not None and call.link is not None:
            call.link.close()
            await call.closed.wait()

    def connect_packet(self) -> bytes:
        """Return a CONNECT with the properties of this moment."""
        return ConnectPacket(
            self.own_id,
            username=self._username,
            password=None if self._password is None else self._password.encode(),
            clean_start=True,
            keep_alive=self.keep_alive_s,
            receive_max=LINK_WINDOW,
            max_packet_size=self.packet_bytes_max,
            user_properties=list(self.properties().items()),
        ).write()

    async def _dial_network(self, make: Callable[[], Connection]) -> None:
        await asyncio.get_running_loop().create_connection(
            make,
            self.address.host,
            self.address.port,
            ssl=self._tls,
            server_hostname=(self._server_name or self.address.host) if self._tls else None,
        )

    async def _stay(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            call = self._call = _Call(self)
            try:
                await self._connect(call)
                since = loop.time()
                await call.closed.wait()
                self._backoff.held(loop.time() - since)
            except HanseError as error:
                if self._on_failed is not None:
                    self._on_failed(error)
            except asyncio.CancelledError:
                if call.link is None:
                    call.give_up()
                raise
            await asyncio.sleep(self._backoff.next_s())

    async def _connect(self, call: "_Call") -> None:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._dial(call.make)
                await call.answered.wait()
        except TimeoutError:
            call.give_up()
            raise Unavailable(f"{self.address} did not answer within {self._connect_timeout_s} s.") from None
        except OSError as error:  # ssl.SSLError is one
            raise cannot_connect(str(self.address), error, self.tls_settings) from error
        if call.failure is not None:
            raise call.failure


class _Call:
    """One attempt of a dialler: owner of the connection until CONNACK, and then an observer."""

    def __init__(self, dialler: LinkDialler) -> None:
        self._dialler = dialler
        self._connection: Connection | None = None
        self.link: Link | None = None
        self.on_packets = self._on_first
        self.answered = asyncio.Event()
        self.closed = asyncio.Event()
        self.failure: HanseError | None = None

    def make(self) -> Connection:
        dialler = self._dialler
        self._connection = Connection(
            self,
            Splitter(dialler.packet_bytes_max, first_kind=codec.CONNACK),
            dialler.counters,
            transport_bytes=LINK_TRANSPORT_BYTES,
            says_disconnect=False,
        )
        return self._connection

    def give_up(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    def on_open(self, connection: Connection) -> None:
        connection.write(self._dialler.connect_packet())
        connection.flush()

    def _on_first(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        """Handle CONNACK. Later packets belong to the link."""
        start, end = offsets[0]
        connack = codec.decode(data[start:end])
        assert isinstance(connack, ConnAckPacket), "the splitter allows no other first packet"
        peer = dict(connack.user_properties)
        peer_id = self._dialler.peer_id = peer.pop(ID_PROPERTY, "")
        assert self._connection is not None
        if int(connack.reason_code) or not peer_id:
            reason = connack.reason_str or connack.reason_code.name.lower().replace("_", " ")
            what = f"refused the link: {reason}" if int(connack.reason_code) else "is not a federator: it gave no id"
            self.failure = Unavailable(f"{self._dialler.address} {what}.")
            self._connection.end(self.failure, b"")
            return
        self._connection.says_disconnect = True
        dialler = self._dialler
        dialler.counters.connects += 1
        self.link = dialler.link = Link(
            dialler.handler,
            peer_id,
            peer,
            is_dialled=True,
            keep_alive_s=dialler.keep_alive_s if connack.server_keep_alive is None else connack.server_keep_alive,
            receive_max=connack.receive_max,
            packet_bytes_max=connack.max_packet_size,
        )
        self.on_packets = self.link.on_packets
        self.answered.set()
        self.link.on_open(self._connection)
        if len(offsets) > 1:
            self.link.on_packets(data, offsets[1:])

    def on_lost(self, error: HanseError | None) -> None:
        if self.link is not None:
            self._dialler.counters.disconnects += 1
            self._dialler.link = None
            self.link.on_lost(error)
        elif self.failure is None:
            address = self._dialler.address
            if isinstance(error, Refusal):
                self.failure = RemoteError(f"{address} does not answer as a federator: {error}.")
            else:
                self.failure = Unavailable(
                    f"{address} closed the connection before it answered; "
                    f"{what_to_check('a link port', self._dialler.tls_settings)}"
                )
        self.closed.set()
        self.answered.set()

    def on_writable(self) -> None:
        if self.link is not None:
            self.link.on_writable()
