"""Addresses of brokers and federators as operators write them: mqtt://, mqtts://, and the seeds' tcp:// and ssl://."""

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


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect to. Its text never holds the password."""

    host: str
    port: int
    is_tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.is_tls else 'mqtt'}://{host}:{self.port}"


def parse(url: str) -> Address:
    """An address from its text.

    Raises:
        LocalError: it is not one; the message says what is wrong with it, without what may be a password.
    """
    shown = url.rsplit("@", 1)[-1][:200]
    scheme, mark, _ = url.partition("://")
    if not mark or scheme.lower() not in SCHEMES:
        raise LocalError(
            f"the address {shown!r} has no known scheme; write mqtt://HOST:PORT or mqtts://HOST:PORT "
            "(tcp:// and ssl:// mean the same)."
        )
    is_tls, default_port = SCHEMES[scheme.lower()]
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname
    except ValueError as error:
        raise LocalError(f"the address {shown!r} cannot be read: {error}; write {scheme}://HOST:PORT.") from None
    if not host or any(char.isspace() or not char.isprintable() for char in host):
        raise LocalError(f"the address {shown!r} names no host; write {scheme}://HOST:PORT.")
    if port == 0:
        raise LocalError(f"the address {shown!r} has port 0; a port is 1 to 65535.")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise LocalError(f"the address {shown!r} has more than host and port; write {scheme}://{host}:PORT.")
    return Address(
        host,
        port or default_port,
        is_tls,
        unquote(parts.username) if parts.username else None,
        unquote(parts.password) if parts.password else None,
    )
