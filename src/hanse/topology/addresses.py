"""Addresses of brokers and links in the form that federators give: `tcp://host:1883`, `mqtts://[::1]:8883`.

Two spellings of one address name the same federator: scheme, case of the host and the default port do not count. The
manager shows an address as the federator wrote it. An address carries no login, because it is stored, shown and
announced.
"""

import re
from dataclasses import dataclass

from hanse.errors import RemoteError

ADDRESS_LENGTH_MAX = 300  # a DNS name has at most 253 characters; RFC 1035
_SCHEMES = {"tcp": False, "mqtt": False, "ssl": True, "mqtts": True}
_PORTS = {False: 1883, True: 8883}
_GROUP = "[0-9A-Fa-f]{1,4}"
_IPV6 = "|".join(
    [f"(?:{_GROUP}:){{7}}{_GROUP}", "::"]
    + [f"(?:{_GROUP}:){{{n}}}(?::{_GROUP}){{1,{7 - n}}}" for n in range(1, 7)]
    + [f"::{_GROUP}(?::{_GROUP}){{0,6}}", f"(?:{_GROUP}:){{1,7}}:"]
)
_PORT = "6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3}"
# Scheme, name or IPv4, IPv6, port. This pattern replaces the URL parser of the standard library, which accepts `[::1]*`
# and drops newlines.
ADDRESS_PATTERN = (
    r"^(tcp|mqtt|ssl|mqtts)://"
    rf"(?:([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9.])?)|\[({_IPV6})\])"
    rf"(?::({_PORT}))?/?$"
)
_ADDRESS = re.compile(ADDRESS_PATTERN)


@dataclass(frozen=True, slots=True)
class Address:
    """Address of an MQTT listener."""

    host: str
    port: int
    is_tls: bool

    @property
    def url(self) -> str:
        """Canonical spelling of the address, by which the manager recognises a federator."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.is_tls else 'mqtt'}://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address in a text such as `tcp://host:port`.

    Raises:
        RemoteError: The text is not an address. The message shows it only if it cannot hold a login.
    """
    expected = "expected tcp://host:port or mqtt://host:port (ssl:// and mqtts:// with TLS)"
    if len(text) > ADDRESS_LENGTH_MAX:
        raise RemoteError(
            f"The address has {len(text)} characters, at most {ADDRESS_LENGTH_MAX} are allowed; {expected}."
        )
    if "@" in text:
        raise RemoteError(f"The address holds a login, which would be shown to others; {expected}, without one.")
    match = _ADDRESS.fullmatch(text)
    if match is None or not text.isprintable():
        raise RemoteError(f"The address is {text!r}; {expected}, and nothing else.")
    scheme, name, ipv6, port = match.groups()
    is_tls = _SCHEMES[scheme]
    return Address((name or ipv6).lower(), _PORTS[is_tls] if port is None else int(port), is_tls)
