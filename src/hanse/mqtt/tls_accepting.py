"""Accepting connections over TLS, with a bounded number of handshakes at once.

asyncio's own TLS server has no limit on handshakes, and reports a failed one to nobody.

Rules:

1. At most `handshakes_max` handshakes run at once, each for at most `deadline_s`. One more ends the oldest of a host
   that is not known. If only known hosts are left, a stranger gets no place.
2. A failed handshake is reported with the peer's address and its event: `tls_unknown_authority` if the certificate is
   of another authority, expired or otherwise not valid, `tls_wrong_purpose` if it is not for clients, else
   `tls_refused`. A peer that only leaves is not reported.
3. Without file descriptors the acceptor ends the oldest handshake, and waits.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from hanse.errors import LocalError
from hanse.mqtt.tls_failures import refused_handshake

# Connections that the kernel keeps before they are accepted. With fewer, a crowd makes it drop the first packet of a
# neighbour, which comes again after one second and then after two.
BACKLOG = 4_096
_PAUSE_S = 0.1


class TlsAcceptor:
    """Listening sockets and the handshakes of their connections.

    Args:
        make: returns the protocol of one connection.
        is_known: returns whether a host has a place before others.
        on_full: called for each connection that loses its place.
        on_refused: called with address, event and reason of each failed handshake.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        *,
        handshakes_max: int,
        deadline_s: float,
        is_known: Callable[[str], bool],
        on_full: Callable[[], None],
        on_refused: Callable[[str, str, str], None],
    ) -> None:
        self._make = make
        self._context = context
        self._handshakes_max = handshakes_max
        self._deadline_s = deadline_s
        self._is_known = is_known
        self._on_full = on_full
        self._on_refused = on_refused
        self.sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        # Handshakes in the order of their begin, and their hosts.
        self._handshakes: dict[asyncio.Task[None], str] = {}

    @property
    def handshakes(self) -> int:
        """Number of handshakes under way."""
        return len(self._handshakes)

    async def start(self, host: str, port: int) -> None:
        """Start to listen on all addresses of a host.

        Raises:
            OSError: An address cannot be used.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                one = socket.socket(family, kind, protocol)
                self.sockets.append(one)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind(address)
                one.listen(BACKLOG)
                one.setblocking(False)
        except OSError:
            self.close()
            raise
        if not self.sockets:
            raise LocalError(f"{host} has no address to listen on; give another.")
        self._accepting = [loop.create_task(self._accept(one)) for one in self.sockets]

    def close(self) -> None:
        """Stop listening, and end the handshakes."""
        for task in (*self._accepting, *self._handshakes):
            task.cancel()
        for one in self.sockets:
            one.close()

    async def wait_closed(self) -> None:
        """Return when everything has ended."""
        await asyncio.gather(*self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                one, address = await loop.sock_accept(listening)
            except ConnectionError:
                continue
            except OSError:  # rule 3
                self._end_oldest(is_known=True)
                await asyncio.sleep(_PAUSE_S)
                continue
            host = str(address[0])
            if len(self._handshakes) >= self._handshakes_max:
                self._on_full()
                if not self._end_oldest(is_known=self._is_known(host)):
                    one.close()
                    continue
            task = loop.create_task(self._shake_hands(one, f"{host}:{address[1]}"))
            self._handshakes[task] = host
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    def _end_oldest(self, *, is_known: bool) -> bool:
        """End the oldest handshake, that of a stranger first, and return True; leave known hosts to known hosts."""
        strangers = (task for task, host in self._handshakes.items() if not self._is_known(host))
        task = next(strangers, None) or (next(iter(self._handshakes), None) if is_known else None)
        if task is None:
            return False
        del self._handshakes[task]
        task.cancel()
        return True

    async def _shake_hands(self, one: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._make, one, ssl=self._context, ssl_handshake_timeout=self._deadline_s
            )
        except ssl.SSLError as error:
            self._on_refused(address, *refused_handshake(error))
        except OSError:
            pass  # the peer left, or said nothing in time
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                one.close()
            raise
