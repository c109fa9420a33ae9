"""Addresses of listeners and brokers, in the form that an operator writes.

    mqtt://127.0.0.1:1883        mqtts://0.0.0.0:8883?mode=auto        ws://[::1]:8083/mqtt        wss://0.0.0.0:8084
    a=mqtt://10.0.0.1:1883       b=mqtts://broker-b.example:8883?reference=b.example.org:8883        c=unix:/run/c.sock

A broker's id is what the placement hashes. Without one, the broker's address is its id, which then must be the same at
every gateway.
"""

import ipaddress
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from hanse.errors import LocalError
from hanse.gateway.placement import Broker
from hanse.request_channel import parse_endpoint

MODES: Final = ("proxy", "redirect", "auto")

_LISTENERS: Final = {"mqtt": (False, False), "mqtts": (True, False), "ws": (False, True), "wss": (True, True)}
_LISTENER_PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
_BROKER_PORTS: Final = {"mqtt": 1883, "tcp": 1883, "mqtts": 8883, "ssl": 8883}
_ID_CHARACTERS_MAX: Final = 200
# `federator` is where the broker's federator listens for gateways (its gateway_listen).
_BROKER_OPTIONS: Final = frozenset({"site", "reference", "federator"})
# Longest path in the kernel's address of a Unix socket, without the final zero (unix(7)).
_SOCKET_PATH_BYTES_MAX: Final = 107


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """One listener.

    Attributes:
        mode: `proxy`, `redirect` or `auto`; empty for the gateway's own setting.
        path: of a WebSocket listener.
    """

    host: str
    port: int
    is_tls: bool = False
    is_websocket: bool = False
    mode: str = ""
    path: str = "/mqtt"

    @property
    def scheme(self) -> str:
        """Return the URL's scheme."""
        return next(name for name, kind in _LISTENERS.items() if kind == (self.is_tls, self.is_websocket))

    def url(self, port: int | None = None) -> str:
        """Return its URL, with the actual port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{port or self.port}{self.path if self.is_websocket else ''}"

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_listen(text: str) -> ListenAddress:
    """Read a listener's address.

    Raises:
        LocalError: says what was expected.
    """
    expected = "write mqtt://HOST:PORT, mqtts://, ws:// or wss://, and perhaps ?mode=proxy|redirect|auto"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise LocalError(f"The listener {text!r} cannot be read: {error}; {expected}.") from None
    if parts.scheme not in _LISTENERS or not parts.hostname or parts.username is not None or parts.fragment:
        raise LocalError(f"The listener {text!r} is not an address; {expected}.")
    is_tls, is_websocket = _LISTENERS[parts.scheme]
    if not is_websocket and parts.path not in ("", "/"):
        raise LocalError(f"The listener {text!r} has a path, which only ws:// and wss:// have; {expected}.")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    mode = options.pop("mode", "")
    if options or (mode and mode not in MODES):
        raise LocalError(f"The listener {text!r} has an unknown option; {expected}.")
    path = parts.path if is_websocket and parts.path not in ("", "/") else "/mqtt"
    found = port if port is not None else _LISTENER_PORTS[parts.scheme]
    return ListenAddress(parts.hostname, found, is_tls, is_websocket, mode, path)


@dataclass(frozen=True, slots=True)
class DialAddress:
    """Address of a broker: host and port, perhaps with TLS, or the path of a Unix socket."""

    host: str
    port: int
    is_tls: bool = False
    socket_path: str = ""

    def __str__(self) -> str:
        if self.socket_path:
            return f"unix:{self.socket_path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.is_tls else 'mqtt'}://{host}:{self.port}"


def parse_dial(url: str) -> DialAddress:
    """Return the address of a broker.

    Raises:
        LocalError: says what was expected.
    """
    expected = "write mqtt://HOST:PORT, mqtts://HOST:PORT or unix:/PATH"
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/") or len(path.encode()) > _SOCKET_PATH_BYTES_MAX:
            raise LocalError(
                f"The broker's address {url!r} has no absolute path of at most {_SOCKET_PATH_BYTES_MAX} bytes; "
                f"{expected}."
            )
        return DialAddress("", 0, False, path)
    shown = url.rsplit("@", 1)[-1][:200]
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise LocalError(f"The broker's address {shown!r} cannot be read: {error}; {expected}.") from None
    if parts.username is not None:
        raise LocalError(
            f"The broker's address {shown!r} has a login. Clients bring their own credentials; for health checks give "
            "probe_username and probe_password."
        )
    if parts.scheme not in _BROKER_PORTS or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise LocalError(f"The broker's address {shown!r} is not an address; {expected}.")
    if port == 0:
        raise LocalError(f"The broker's address {shown!r} has port 0; expected 1 to 65535.")
    return DialAddress(parts.hostname, port or _BROKER_PORTS[parts.scheme], parts.scheme in ("mqtts", "ssl"))


def parse_broker(text: str) -> Broker:
    """Read `ID=URL`, or a URL alone, with the options `site`, `reference` and `federator` behind a question mark.

    Raises:
        LocalError: says what was expected.
    """
    name, equals, rest = text.partition("=")
    if not equals or "://" in name or name.startswith("unix:"):
        name, rest = "", text
    url, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(options) - _BROKER_OPTIONS)
    if unknown:
        raise LocalError(
            f"The broker {url!r} has the unknown option {unknown[0]!r}; known: site, reference, federator."
        )
    address = parse_dial(url)
    broker_id = name or str(address)
    if len(broker_id) > _ID_CHARACTERS_MAX or not broker_id.isprintable() or " " in broker_id:
        raise LocalError(
            f"The broker id {broker_id[:_ID_CHARACTERS_MAX]!r} is not allowed; expected at most {_ID_CHARACTERS_MAX} "
            "printable characters without blanks."
        )
    federator = str(parse_endpoint(options["federator"])) if "federator" in options else ""
    return Broker(broker_id, url, options.get("site", ""), options.get("reference", ""), federator)


def parse_brokers(texts: tuple[str, ...]) -> list[Broker]:
    """Read a list of brokers, each id once.

    Raises:
        LocalError: one cannot be read, or two have the same id.
    """
    brokers = [parse_broker(text) for text in texts]
    ids = [one.id for one in brokers]
    for one in ids:
        if ids.count(one) > 1:
            raise LocalError(f"Two brokers have the id {one!r}; the placement needs a different one for each.")
    return brokers
