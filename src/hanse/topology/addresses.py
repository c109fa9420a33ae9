"""Addresses of brokers and links, as federators give them: `tcp://host:1883`, `mqtts://[::1]:8883`.

Two spellings of one address are one federator: scheme, case of the host and the default port do not count. What a
federator wrote is shown as it was written. An address carries no login: it is stored, shown and announced.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from hanse.errors import RemoteError

ADDRESS_LENGTH_MAX = 300  # a DNS name has at most 253 characters; RFC 1035
_SCHEMES = {"tcp": False, "mqtt": False, "ssl": True, "mqtts": True}
_PORTS = {False: 1883, True: 8883}
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9.])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


@dataclass(frozen=True, slots=True)
class Address:
    """Where an MQTT listener is."""

    host: str
    port: int
    is_tls: bool

    @property
    def url(self) -> str:
        """The one spelling of this address, by which a federator is known again."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.is_tls else 'mqtt'}://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Reads `tcp://host:port` and its kin.

    Raises:
        RemoteError: Says what is expected. The text is shown only when it cannot hold a login.
    """
    expected = "expected tcp://host:port or mqtt://host:port (ssl:// and mqtts:// with TLS)"
    if len(text) > ADDRESS_LENGTH_MAX:
        raise RemoteError(
            f"The address has {len(text)} characters, at most {ADDRESS_LENGTH_MAX} are allowed; {expected}."
        )
    if "@" in text:
        raise RemoteError(f"The address holds a login, which would be shown to others; {expected}, without one.")
    if not (text.isascii() and text.isprintable()):
        # urlsplit drops tabs and newlines in silence; two different texts must not become one address.
        raise RemoteError(f"The address {text!r} holds characters that no address has; {expected}.")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise RemoteError(f"The address {text!r} cannot be read ({error}); {expected}.") from error
    host = parts.hostname or ""
    if parts.scheme not in _SCHEMES or text != text.strip() or not _HOST.fullmatch(host):
        raise RemoteError(f"The address is {text!r}; {expected}.")
    if parts.path not in ("", "/") or parts.query or parts.fragment or port == 0:
        raise RemoteError(f"The address is {text!r}; {expected}, and nothing behind the port.")
    is_tls = _SCHEMES[parts.scheme]
    return Address(host, _PORTS[is_tls] if port is None else port, is_tls)
