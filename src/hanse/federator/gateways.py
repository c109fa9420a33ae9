"""The federator's listener for gateways: each gateway connects here to report interest and to ask for replays.

A part of the federator offers a request by its kind:

    gateways = Gateways(identity, tls=..., token=...)
    gateways.offer("replay", handle)

    async def handle(gateway: GatewayPeer, request: Request) -> Answer | None: ...

The gateway's side is `hanse.gateway.federators`; the frames are those of `hanse.request_channel`.

Rules:

1. A gateway must say hello first, within `HELLO_S`, in a small frame. Without the right token, if there is one, it is
   refused and its connection ends. A listener with TLS and a CA also demands a certificate of that CA.
2. A connection has a name: the gateway's id, its incarnation (a random number of its process), and a number of its own
   there. A new connection of the same name replaces the older one.
3. `watch` tells a part of the federator of the beginning and the end of connections. What a gateway has reported
   outlives its connection; that is up to those who keep it.
"""

import asyncio
import hmac
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from hanse.errors import LocalError, RemoteError
from hanse.mqtt.tls import TlsSettings, server_context
from hanse.request_channel import FRAME_BYTES_MAX, Answer, Endpoint, Handler, Request, RequestChannel

VERSION: Final = 1
HELLO_S: Final = 5.0
HELLO_BYTES_MAX: Final = 4_096
# Connections at once. A gateway has one for each of its workers.
CONNECTIONS_MAX: Final = 1_024
NAME_CHARACTERS_MAX: Final = 200
HELLO: Final = "hello"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayName:
    """Name of one connection, and the owner of what it reports."""

    gateway: str
    incarnation: str
    connection: int

    def __str__(self) -> str:
        return f"{self.gateway}/{self.incarnation}/{self.connection}"


class GatewayPeer:
    """A gateway's connection that has said hello."""

    def __init__(self, name: GatewayName, channel: RequestChannel) -> None:
        self.name = name
        self.channel = channel


GatewayHandler = Callable[[GatewayPeer, Request], Awaitable[Answer | None]]
PeerWatcher = Callable[[GatewayPeer], None]


class Gateways:
    """The listener, and the gateways that are connected.

    Args:
        identity: This federator's id, which gateways get.
        tls: Certificate and CA for a `tls://` listener.
        token: What a gateway must show; None if its certificate is enough.

    Attributes:
        counters: `hello_refused`, `hello_late`, `connections_refused`.
    """

    def __init__(
        self,
        identity: int,
        *,
        tls: TlsSettings | None = None,
        token: str | None = None,
    ) -> None:
        self.identity = identity
        self.peers: dict[GatewayName, GatewayPeer] = {}
        self.counters: Counter[str] = Counter()
        self._tls = tls
        self._token = token
        self._watchers: list[tuple[PeerWatcher, PeerWatcher]] = []
        self._offers: dict[str, GatewayHandler] = {}
        self._server: asyncio.Server | None = None
        self._channels: set[RequestChannel] = set()

    def offer(self, kind: str, handler: GatewayHandler) -> None:
        """Answer requests of this kind."""
        assert kind not in self._offers, f"{kind} is offered twice"
        self._offers[kind] = handler

    def watch(self, come: PeerWatcher, gone: PeerWatcher) -> None:
        """Call `come` for each connection that has said hello, and `gone` at its end."""
        self._watchers.append((come, gone))

    async def listen(self, endpoint: Endpoint) -> Endpoint:
        """Listen; return where, with the port that it got.

        Raises:
            LocalError: The address or the certificate cannot be used.
        """
        context = server_context(self._tls or TlsSettings()) if endpoint.is_tls else None
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, endpoint.host, endpoint.port, ssl=context)
        except OSError as error:
            raise LocalError(
                f"Cannot listen for gateways on {endpoint}: {error.strerror or error}; choose another address."
            ) from error
        port: int = self._server.sockets[0].getsockname()[1]
        return Endpoint(endpoint.host, port, endpoint.is_tls)

    async def stop(self) -> None:
        """Close the listener and all connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for channel in list(self._channels):
            channel.abort("The federator stops.")
        if server is not None:
            await server.wait_closed()

    def _accept(self) -> RequestChannel:
        greeting = _Greeting(self)
        channel = RequestChannel({HELLO: greeting.hello}, greeting.closed, frame_bytes_max=HELLO_BYTES_MAX)
        greeting.channel = channel
        self._channels.add(channel)
        asyncio.get_running_loop().call_later(HELLO_S, greeting.check)
        return channel

    def admit(self, channel: RequestChannel, request: Request) -> GatewayPeer:
        """Take a gateway in.

        Raises:
            RemoteError: It may not connect, or cannot be understood.
        """
        fields = request.fields
        if len(self._channels) > CONNECTIONS_MAX:
            self.counters["connections_refused"] += 1
            raise RemoteError(f"Federator {self.identity} has {CONNECTIONS_MAX} connections of gateways already.")
        shown = str(fields.get("token") or "").encode()
        if self._token is not None and not hmac.compare_digest(shown, self._token.encode()):
            self.counters["hello_refused"] += 1
            raise RemoteError(
                f"Federator {self.identity} does not take this gateway's token; give both the same gateway_token."
            )
        if fields.get("version") != VERSION:
            self.counters["hello_refused"] += 1
            raise RemoteError(
                f"Federator {self.identity} speaks version {VERSION} with gateways, this one {fields.get('version')!r}."
            )
        gateway, incarnation, number = (fields.get(word) for word in ("gateway", "incarnation", "connection"))
        is_good = type(number) is int and all(
            isinstance(text, str) and 0 < len(text) <= NAME_CHARACTERS_MAX and text.isprintable()
            for text in (gateway, incarnation)
        )
        if not is_good:
            self.counters["hello_refused"] += 1
            raise RemoteError("A gateway's hello has no valid gateway, incarnation and connection.")
        assert isinstance(number, int), "checked above"
        name = GatewayName(str(gateway), str(incarnation), number)
        older = self.peers.get(name)
        if older is not None:
            older.channel.abort("The gateway has connected again.")
        peer = self.peers[name] = GatewayPeer(name, channel)
        channel.frame_bytes_max = FRAME_BYTES_MAX
        channel.handlers = {kind: _bound(handler, peer) for kind, handler in self._offers.items()}
        _log.info("gateway %s connected from %s", name, channel.peer)
        for come, _ in self._watchers:
            come(peer)
        return peer

    def forget(self, channel: RequestChannel, peer: GatewayPeer | None, reason: str) -> None:
        """Take note of the end of a connection."""
        self._channels.discard(channel)
        if peer is None or self.peers.get(peer.name) is not peer:
            # It has not said hello, or a newer connection has its name.
            return
        del self.peers[peer.name]
        _log.info("gateway %s is gone: %s", peer.name, reason)
        for _, gone in self._watchers:
            gone(peer)


class _Greeting:
    """A connection until it has said hello, and what is known of it then."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways
        self._peer: GatewayPeer | None = None
        self.channel: RequestChannel | None = None

    async def hello(self, request: Request) -> Answer:
        """Admit the gateway, or refuse it and close the connection."""
        try:
            self._peer = self._gateways.admit(request.channel, request)
        except RemoteError:
            asyncio.get_running_loop().call_soon(request.channel.close)
            raise
        return Answer({"federator": self._gateways.identity, "version": VERSION})

    def check(self) -> None:
        """End a connection that has not said hello in time."""
        if self._peer is None and self.channel is not None and self.channel.is_open:
            self._gateways.counters["hello_late"] += 1
            self.channel.abort("No hello came in time.")

    def closed(self, reason: str) -> None:
        """Take note of the end."""
        assert self.channel is not None
        self._gateways.forget(self.channel, self._peer, reason)


def _bound(handler: GatewayHandler, peer: GatewayPeer) -> Handler:
    async def bound(request: Request) -> Answer | None:
        return await handler(peer, request)

    return bound
