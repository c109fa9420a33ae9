"""Accepts connections with TLS, and those from balancers, which begin with a PROXY header.

asyncio's own server bounds neither the number of TLS handshakes nor reads a header that comes before them. So
connections are accepted here, and headers are read from the bare socket.

Rules:

1. A peer outside `proxy_from` is served directly. Its first bytes must be TLS, HTTP or CONNECT.
2. Headers and handshakes that are not complete are bounded in number and in time.
"""

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from hanse.gateway.front.proxy_header import V2_BYTES_MAX, HeaderReader
from hanse.mqtt.refusal import Refusal

_log = logging.getLogger(__name__)

# About 1 kB each.
PENDING_MAX: Final = 4_096
# About 30 kB each. A core completes about 1,000 handshakes per second.
HANDSHAKES_MAX: Final = 2_048
# Connections taken per wake-up, so that a flood leaves time for those that are served.
_ACCEPTS: Final = 64
# If the process has no free descriptor, accepting again at once would only spin.
_PAUSE_S: Final = 0.1

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Acceptor:
    """Accepts on one listening socket.

    Args:
        make: makes the protocol of a connection, given the client's address; empty if the socket itself tells it.
        tls: None for a listener without TLS.
        trusted: who sends PROXY headers.
        refused: counts a connection that ended before it was served, by reason.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[str], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        trusted: Sequence[Network],
        timeout_s: float,
        refused: Callable[[str], None],
    ) -> None:
        self._listening = listening
        self._make = make
        self._tls = tls
        self._trusted = trusted
        self._timeout_s = timeout_s
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._pending: dict[socket.socket, asyncio.TimerHandle] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Stop accepting, and end connections without a header. The listening socket belongs to the supervisor."""
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._listening)
        for accepted in list(self._pending):
            self._drop(accepted)
        for task in list(self._serving):
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("connections cannot be accepted now", extra={"reason": str(error)})
                self._loop.remove_reader(self._listening)
                self._resume = self._loop.call_later(_PAUSE_S, self._loop.add_reader, self._listening, self._accept)
                return
            accepted.setblocking(False)
            with suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._is_trusted(str(peer[0])):
                self._serve(accepted, "")
            elif len(self._pending) >= PENDING_MAX:
                self._refused("proxy_headers")
                accepted.close()
            else:
                self._pending[accepted] = self._loop.call_later(self._timeout_s, self._expire, accepted)
                self._loop.add_reader(accepted, self._read_header, accepted, HeaderReader())

    def _is_trusted(self, address: str) -> bool:
        found = ipaddress.ip_address(address.partition("%")[0])
        return any(found in network for network in self._trusted)

    def _read_header(self, accepted: socket.socket, reader: HeaderReader) -> None:
        try:
            seen = accepted.recv(V2_BYTES_MAX, socket.MSG_PEEK)
            if not seen:
                self._drop(accepted)
                return
            taken = reader.feed(seen)
            accepted.recv(taken)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._drop(accepted)
            return
        except Refusal as refusal:
            _log.debug("PROXY header refused", extra={"reason": str(refusal)})
            self._refused("proxy_header")
            self._drop(accepted)
            return
        if reader.is_complete:
            self._loop.remove_reader(accepted)
            self._pending.pop(accepted).cancel()
            self._serve(accepted, reader.address)

    def _expire(self, accepted: socket.socket) -> None:
        self._refused("connect_timeout")
        self._drop(accepted)

    def _drop(self, accepted: socket.socket) -> None:
        self._loop.remove_reader(accepted)
        self._pending.pop(accepted).cancel()
        accepted.close()

    def _serve(self, accepted: socket.socket, address: str) -> None:
        if self._tls is not None and len(self._serving) >= HANDSHAKES_MAX:
            self._refused("tls_handshakes")
            accepted.close()
            return
        task = self._loop.create_task(self._connect(accepted, address))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _connect(self, accepted: socket.socket, address: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make(address),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._timeout_s if self._tls is not None else None,
            )
        except (OSError, ssl.SSLError) as error:
            _log.debug("no TLS came about", extra={"reason": str(error)})
            self._refused("tls")
            accepted.close()
