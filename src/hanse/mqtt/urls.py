"""Addresses of brokers and federators in the form that operators write: mqtt://, mqtts://, tcp:// and ssl://.

Applications may also write ws:// and wss://, with a path (`/mqtt` by default) and a query, for MQTT over WebSocket.
"""

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from hanse.errors import LocalError

# The scheme, whether it means TLS, and the port that IANA registered for it.
SCHEMES: Final[dict[str, tuple[bool, int]]] = {
    "mqtt": (False, 1883),
    "tcp": (False, 1883),
    "mqtts": (True, 8883),
    "ssl": (True, 8883),
}
WEBSOCKET_SCHEMES: Final[dict[str, tuple[bool, int]]] = {"ws": (False, 80), "wss": (True, 443)}
WEBSOCKET_PATH: Final = "/mqtt"


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a broker or federator. Its text never holds the password.

    Attributes:
        path: path and query of a WebSocket; empty for plain MQTT.
    """

    host: str
    port: int
    is_tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    path: str = field(default="", repr=False)

    @property
    def scheme(self) -> str:
        """Return the scheme of its text."""
        return ("ws" if self.path else "mqtt") + ("s" if self.is_tls else "")

    @property
    def default_port(self) -> int:
        """Return the port that IANA registered for the scheme."""
        return {**SCHEMES, **WEBSOCKET_SCHEMES}[self.scheme][1]

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        # The query stays out: services put signatures there.
        return f"{self.scheme}://{host}:{self.port}{self.path.partition('?')[0]}"


def parse(url: str, *, may_be_websocket: bool = False) -> Address:
    """Return the address in a text.

    Args:
        url: text of the address.
        may_be_websocket: whether ws:// and wss:// are accepted.

    Raises:
        LocalError: the text is not an address. The message says why, without any possible password.
    """
    shown = url.rsplit("@", 1)[-1].partition("?")[0][:200]
    scheme, mark, _ = url.partition("://")
    is_websocket = may_be_websocket and scheme.lower() in WEBSOCKET_SCHEMES
    if not mark or not (is_websocket or scheme.lower() in SCHEMES):
        others = "(tcp:// and ssl:// mean the same)" + (", or ws:// or wss://" if may_be_websocket else "")
        raise LocalError(
            f"the address {shown!r} has no known scheme; write mqtt://HOST:PORT or mqtts://HOST:PORT {others}."
        )
    is_tls, default_port = (WEBSOCKET_SCHEMES if is_websocket else SCHEMES)[scheme.lower()]
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname
    except ValueError as error:
        raise LocalError(f"the address {shown!r} cannot be read: {error}; write {scheme}://HOST:PORT.") from None
    if not host or any(char.isspace() or not char.isprintable() for char in host):
        raise LocalError(f"the address {shown!r} names no host; write {scheme}://HOST:PORT.")
    if port == 0:
        raise LocalError(f"the address {shown!r} has port 0; expected 1 to 65535.")
    path = ""
    if is_websocket:
        path = (parts.path if parts.path not in {"", "/"} else WEBSOCKET_PATH) + (
            f"?{parts.query}" if parts.query else ""
        )
        if parts.fragment or not (path.isascii() and path.isprintable()) or " " in path:
            raise LocalError(f"the path of {shown!r} cannot be asked for; write it percent-encoded, without '#'.")
    elif parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise LocalError(f"the address {shown!r} has more than host and port; write {scheme}://{host}:PORT.")
    return Address(
        host,
        port or default_port,
        is_tls,
        unquote(parts.username) if parts.username else None,
        unquote(parts.password) if parts.password else None,
        path,
    )
