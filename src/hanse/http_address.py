"""Addresses of HTTP services as operators write them: http://HOST:PORT or https://HOST:PORT, with at most a path.

HOST:PORT alone means http://HOST:PORT.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from hanse.errors import LocalError

_SHOWN_CHARACTERS_MAX = 200
_PORTS = {"http": 80, "https": 443}
_WITHOUT_SCHEME = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/?#@\[\]]+):[0-9]+(/.*)?")


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Address of a service. Its text is safe to show: it omits the query, which may contain a key."""

    host: str
    port: int
    is_tls: bool
    path: str = ""
    query: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.path}"


def parse(url: str, whose: str, expected: str, *, takes_query: bool = False) -> HttpAddress:
    """Parse an address.

    Args:
        url: the text.
        whose: the name of the address in errors, such as "the manager's address".
        expected: the instruction in errors, such as "write http://HOST:PORT".
        takes_query: accept a query.

    Raises:
        LocalError: the address is invalid or contains a login; a possible password is not shown.
    """
    if _WITHOUT_SCHEME.fullmatch(url):
        url = f"http://{url}"
    shown = f"{whose} {url.rsplit('@', 1)[-1][:_SHOWN_CHARACTERS_MAX]!r}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise LocalError(f"{shown} cannot be read: {error}; {expected}.") from None
    if parts.scheme not in _PORTS or not host or not url.isprintable() or " " in url:
        raise LocalError(f"{shown} has no http:// or https:// and host; {expected}.")
    if parts.username is not None or (not takes_query and (parts.query or parts.fragment)):
        raise LocalError(f"{shown} has more than a host, a port and a path; {expected}.")
    path = parts.path if parts.path != "/" else ""
    return HttpAddress(host, port or _PORTS[parts.scheme], parts.scheme == "https", path, parts.query)
