"""Connections from the gateway to brokers: TCP, TLS or a Unix socket, from one or several own addresses.

Rules:

1. One own address and one broker port give as many connections as there are ephemeral ports, some 28,000. Several
   source addresses are taken in turn. One that has no free port is passed over.
2. A host name is resolved once per `RESOLVED_S`, so that a flood of clients is not a flood of questions.
3. A protocol must not close its transport within `connection_made`: uvloop would close the socket twice, and the second
   time the descriptor may belong to another socket.
4. Every error is `Unavailable` and names the broker and the reason. A wrong certificate is such an error as well.
"""

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from hanse.errors import Unavailable
from hanse.gateway.addresses import DialAddress, parse_dial
from hanse.mqtt.tls import TlsSettings, client_context
from hanse.system_errors import reason

RESOLVED_S: Final = 30.0
# Linux: choose the port at connect and not at bind, so that one port serves several brokers (ip(7)).
_IP_BIND_ADDRESS_NO_PORT: Final = 24

ProtocolFactory = Callable[[], asyncio.Protocol]


class Dialler:
    """Dials brokers for one process.

    Args:
        tls: trusted authorities and own certificate, for brokers with TLS.
        source_addresses: own addresses, taken in turn.
        timeout_s: timeout of a whole attempt.
    """

    def __init__(self, tls: TlsSettings, source_addresses: Sequence[str] = (), timeout_s: float = 2.0) -> None:
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._sources = list(source_addresses)
        self._turn = 0
        self._timeout_s = timeout_s
        self._addresses: dict[str, DialAddress] = {}
        self._resolved: dict[tuple[str, int], tuple[float, list[tuple[int, str]]]] = {}

    async def dial(self, url: str, factory: ProtocolFactory, timeout_s: float | None = None) -> None:
        """Connect to a broker; `factory` makes the protocol of the connection.

        Raises:
            Unavailable: it cannot be reached now.
        """
        address = self._addresses.get(url)
        if address is None:
            address = self._addresses[url] = parse_dial(url)
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._dial(address, factory)
        except TimeoutError:
            raise Unavailable(f"{address} did not accept a connection within {limit_s:g} s.") from None
        except ssl.SSLError as error:
            raise Unavailable(
                f"TLS with {address} failed: {reason(error)}; check broker_ca_file and the address."
            ) from None
        except OSError as error:
            raise Unavailable(f"{address} cannot be reached: {reason(error)}.") from None

    async def _dial(self, address: DialAddress, factory: ProtocolFactory) -> None:
        loop = asyncio.get_running_loop()
        if address.socket_path:
            await loop.create_unix_connection(factory, address.socket_path)
            return
        context = self._tls_context() if address.is_tls else None
        name = (self._tls.server_name or address.host) if context else None
        failure: OSError = OSError(errno.EHOSTUNREACH, f"{address.host} has no address")
        for family, host in await self._resolve(address.host, address.port):
            try:
                connected = await self._connect(family, host, address.port)
            except OSError as error:
                failure = error
                continue
            try:
                await loop.create_connection(factory, sock=connected, ssl=context, server_hostname=name)
            except BaseException:
                connected.close()
                raise
            return
        raise failure

    async def _connect(self, family: int, host: str, port: int) -> socket.socket:
        """Return a connected socket, from the first source address that has a free port."""
        sources: list[str | None] = [one for one in self._sources if (":" in one) == (family == socket.AF_INET6)]
        if not sources:
            sources = [None]
        self._turn += 1
        failure: OSError | None = None
        for k in range(len(sources)):
            source = sources[(self._turn + k) % len(sources)]
            try:
                return await self._connect_from(source, family, host, port)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                failure = error
        assert failure is not None
        raise OSError(failure.errno, "no free port for another connection; give more source addresses (source_address)")

    async def _connect_from(self, source: str | None, family: int, host: str, port: int) -> socket.socket:
        made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if source is not None:
                with suppress(OSError):
                    made.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
                made.bind((source, 0))
            await asyncio.get_running_loop().sock_connect(made, (host, port))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            made.close()
            raise
        return made

    async def _resolve(self, host: str, port: int) -> list[tuple[int, str]]:
        try:
            found = ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            return [(socket.AF_INET6 if found.version == 6 else socket.AF_INET, host)]
        loop = asyncio.get_running_loop()
        known = self._resolved.get((host, port))
        if known is not None and loop.time() < known[0]:
            return known[1]
        rows = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [(int(family), str(place[0])) for family, _, _, _, place in rows]
        self._resolved[host, port] = (loop.time() + RESOLVED_S, addresses)
        return addresses

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = client_context(self._tls)
        return self._context
