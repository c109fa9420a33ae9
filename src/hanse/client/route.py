"""Choice of the server to connect to: the client's own address, or one that a broker has named (MQTT 5, 4.11).

Pure: no sockets, no clock. Rules:

- A reference is followed only to hosts that the application has listed. It never changes the transport: a client that
  began with TLS stays with it, and the new server's certificate must hold the new server's name.
- Several references in one packet are tried in their order.
- 0x9C (use another server) holds for one connection: when that ends, for any reason, the client returns to its
  own address and asks again. 0x9D (server moved) is remembered from the time at which the new server has accepted
  the client, until that server has failed `MOVED_FAILURES_MAX` times in a row.
- At most `hops_max` references are followed in a row. A connection that lasts for `STEADY_S` begins a new row. After
  the last one the client waits, with its usual back-off, and begins at its own address.
"""

import ipaddress
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from hanse.errors import LocalError, RemoteError
from hanse.mqtt.reference import SERVER_MOVED, USE_ANOTHER_SERVER, parse_references

HOPS_MAX: Final = 3
# A gateway that answers a client within this time of its last redirect should serve it or redirect it. A connection
# that lasted longer begins a new count.
STEADY_S: Final = 5.0
MOVED_FAILURES_MAX: Final = 3
# Remembered moves, and visited brokers: a client meets a handful.
REMEMBERED_MAX: Final = 64

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Server(NamedTuple):
    """Host, in lower case and without a final dot, and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class AllowList:
    """Servers to which an application lets its client be redirected.

    Args:
        patterns: Each is a host name, `*.` and a domain (which stands for every name that ends in it), an IP address,
            or a network such as `10.0.0.0/8`; `:PORT` may follow, with an IPv6 address or network in brackets.

    Raises:
        LocalError: A pattern is none of these.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._rules = [_rule(pattern) for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def allows(self, server: Server) -> bool:
        """Return whether one of the patterns matches."""
        address = _address(server.host)
        return any(
            (port is None or port == server.port)
            and (_in_network(address, host) if not isinstance(host, str) else _fits(host, server.host))
            for host, port in self._rules
        )


@dataclass(frozen=True, slots=True)
class Move:
    """Next server to dial.

    Attributes:
        server: The server.
        at_once: Whether the client dials without a delay.
        reason_code: 0x9C or 0x9D if a broker named the server; 0 if the client returns or tries again.
    """

    server: Server
    at_once: bool
    reason_code: int = 0


class Route:
    """Next server of one client.

    Args:
        home: The server in the client's own address.
        default_port: Port of a reference without one.
        allowed: The servers to which it may be redirected.
        hops_max: Number of references that are followed in a row.
    """

    def __init__(self, home: Server, default_port: int, allowed: AllowList, *, hops_max: int = HOPS_MAX) -> None:
        if hops_max < 1:
            raise LocalError(f"hops_max is {hops_max}; expected at least 1.")
        self._own = normal(home.host, home.port)
        self._default_port = default_port
        self._allowed = allowed
        self._hops_max = hops_max
        self.current = self._own
        # Reason why the last reference was not followed, as a sentence; empty if it was.
        self.refusal = ""
        self._hops = 0
        self._candidates: deque[Server] = deque()
        self._moved: dict[Server, Server] = {}
        # The server that sent 0x9D, until the one that it named accepts the client.
        self._moving: Server | None = None
        self._failures = 0
        self._is_accepted = False

    @property
    def home(self) -> Server:
        """The client's own server, or the one that it has moved to for good."""
        return self._resolve(self._own)

    @property
    def is_away(self) -> bool:
        """Return whether the current server differs from `home`."""
        return self.current != self.home

    def on_accepted(self) -> None:
        """Note that the current server has accepted the client."""
        self._is_accepted = True
        self._failures = 0
        self._candidates.clear()
        if self._moving is not None and self._moving != self.current:
            while len(self._moved) >= REMEMBERED_MAX:
                del self._moved[next(iter(self._moved))]
            self._moved.pop(self.current, None)  # this server is its home now, independently of earlier redirects
            self._moved[self._moving] = self.current
        self._moving = None

    def on_ended(self, reason_code: int, references: str | None, held_s: float) -> Move | None:
        """Return the next server after the end of a connection or attempt; None for the same server again.

        Args:
            reason_code: Reason code of the CONNACK or DISCONNECT that ended it; 0 without one.
            references: Its Server Reference.
            held_s: Duration of the connection; 0 for an attempt.
        """
        was_accepted, self._is_accepted = self._is_accepted, False
        if held_s >= STEADY_S:
            self._hops = 0
        self.refusal = ""
        if reason_code in {USE_ANOTHER_SERVER, SERVER_MOVED} and references:
            move = self._follow(reason_code, references)
            if move is not None:
                return move
        elif not was_accepted and self._candidates:
            return self._go(self._candidates.popleft(), at_once=True)
        self._candidates.clear()
        self._moving = None
        if not self.is_away:
            if was_accepted or self.current == self._own:
                return None
            return self._doubt_the_move()
        return self._go(self.home, at_once=False)

    def _follow(self, reason_code: int, references: str) -> Move | None:
        if not self._allowed:
            self.refusal = "References are not followed unless `follow` lists the servers."
            return None
        try:
            named = [
                normal(one.host, self._default_port if one.port is None else one.port)
                for one in parse_references(references)
            ]
        except RemoteError as error:
            self.refusal = str(error)
            return None
        candidates = [self._resolve(server) for server in named if self._allowed.allows(server)]
        candidates = [server for server in dict.fromkeys(candidates) if server != self.current]
        if not candidates:
            shown = " ".join(map(str, named))
            self.refusal = f"{shown} is not followed: `follow` allows none of these, or the client comes from there."
            return None
        if self._hops >= self._hops_max:
            self._hops = 0
            self.refusal = f"{self._hops_max} references in a row were followed; the client starts again."
            return None
        self._hops += 1
        self._moving = self.current if reason_code == SERVER_MOVED else None
        self._candidates = deque(candidates)
        return self._go(self._candidates.popleft(), at_once=True, reason_code=reason_code)

    def _doubt_the_move(self) -> Move | None:
        self._failures += 1
        if self._failures < MOVED_FAILURES_MAX:
            return None
        self._failures = 0
        self._moved.pop(self._own, None)
        return self._go(self._own, at_once=False)

    def _resolve(self, server: Server) -> Server:
        for _ in range(REMEMBERED_MAX):
            after = self._moved.get(server)
            if after is None or after == self._own:
                return server
            server = after
        return server

    def _go(self, server: Server, *, at_once: bool, reason_code: int = 0) -> Move:
        self.current = server
        return Move(server, at_once, reason_code)


def normal(host: str, port: int) -> Server:
    """Return a server in the form in which servers are compared."""
    address = _address(host)
    return Server(str(address) if address is not None else host.lower().removesuffix("."), port)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _in_network(address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, network: Network) -> bool:
    return address is not None and address in network


def _fits(pattern: str, host: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def _rule(pattern: str) -> tuple[str | Network, int | None]:
    wrong = LocalError(
        f"`follow` holds {pattern!r}; expected a host name, *.DOMAIN, an IP address or a network such as 10.0.0.0/8, "
        "with or without :PORT, and IPv6 in brackets if a port follows."
    )
    host, port = pattern.strip(), None
    if host.startswith("["):
        host, bracket, tail = host[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise wrong
        tail = tail[1:]
    elif host.count(":") == 1:
        host, _, tail = host.partition(":")
        if not tail:
            raise wrong
    else:
        tail = ""
    if tail:
        if not (tail.isascii() and tail.isdigit() and len(tail) <= 5 and 1 <= int(tail) <= 65_535):
            raise wrong
        port = int(tail)
    try:
        return ipaddress.ip_network(host), port
    except ValueError:
        pass
    name = host.lower().removesuffix(".")
    labels = name.removeprefix("*.").split(".")
    if not all(label and label.replace("-", "").replace("_", "").isalnum() and label.isascii() for label in labels):
        raise wrong
    return name, port
