"""Server References (MQTT 5, 4.11): how a broker names another one in CONNACK or DISCONNECT, read and written.

Rules:

- A reference is a host name, an IPv4 address, or an IPv6 address in square brackets, with or without a port. Several
  stand one after another, separated by spaces, in the order of preference.
- MQTT leaves the meaning to the parties. SRV names, which the specification mentions, need a DNS library and are
  refused by name.
- The text comes from a peer: it is bounded, and nothing but the characters of a host name gets through.
"""

import ipaddress
import re
from typing import Final, NamedTuple

from hanse.errors import LocalError, RemoteError

# Codes of CONNACK and DISCONNECT that come with a reference (MQTT 5, 4.13.1).
USE_ANOTHER_SERVER: Final = 0x9C
SERVER_MOVED: Final = 0x9D
# A well-formed filter that the server does not accept (MQTT 5, 3.9.3 and 3.14.2.1).
FILTER_NOT_ACCEPTED: Final = 0x8F

# User property of CONNECT by which a client says that it follows references.
FOLLOWS: Final = ("server-reference", "follow")

# References in one packet. More than a handful is not a choice but a list of targets.
REFERENCES_MAX: Final = 8
# A host name of DNS (RFC 1035, 2.3.4).
HOST_CHARACTERS_MAX: Final = 253

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?")


class Reference(NamedTuple):
    """One server that a broker names: a host without brackets, and a port where the text has one."""

    host: str
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def parse_references(text: str) -> list[Reference]:
    """Return the references of a packet, in its order.

    Raises:
        RemoteError: One of them is malformed, or there are none or too many.
    """
    words = text.split(" ", REFERENCES_MAX + 1)
    words = [word for word in words if word]
    if not 1 <= len(words) <= REFERENCES_MAX:
        raise RemoteError(
            f"A Server Reference names {len(words)} servers; expected 1 to {REFERENCES_MAX}, separated by spaces."
        )
    return [_parse(word) for word in words]


def format_reference(host: str, port: int) -> str:
    """Return the reference to a host and port.

    Raises:
        LocalError: It cannot be written as one.
    """
    reference = Reference(host, port)
    try:
        return str(_parse(str(reference)))
    except RemoteError as error:
        raise LocalError(f"{host!r} and port {port} do not make a Server Reference: {error}") from None


def _parse(word: str) -> Reference:
    shown = ascii(word[:300])
    if word.startswith("["):
        host, bracket, rest = word[1:].partition("]")
        if not bracket or not _is_address(host, 6):
            raise RemoteError(f"The Server Reference {shown} has brackets; expected an IPv6 address in them.")
        port = rest.removeprefix(":") if rest else None
        if rest and not rest.startswith(":"):
            raise RemoteError(f"The Server Reference {shown} has text behind its brackets; expected :PORT or nothing.")
    elif _is_address(word, 6):
        host, port = word, None
    else:
        host, colon, tail = word.partition(":")
        port = tail if colon else None
        if host.startswith("_"):
            raise RemoteError(f"The Server Reference {shown} is an SRV name; expected HOST or HOST:PORT.")
        if len(host) > HOST_CHARACTERS_MAX or not _HOST.fullmatch(host):
            raise RemoteError(f"The Server Reference {shown} holds no host name; expected HOST:PORT.")
    if port is None:
        return Reference(host)
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65_535):
        raise RemoteError(f"The Server Reference {shown} has no valid port; expected 1 to 65535.")
    return Reference(host, int(port))


def _is_address(text: str, version: int) -> bool:
    # A scope (fe80::1%eth0) names an interface of the other machine.
    if "%" in text:
        return False
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False
