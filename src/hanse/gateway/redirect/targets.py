"""Address of a broker for a redirected client, and the operator's other settings of redirects.

Rules:

1. A broker's configured `reference` is sent unchanged. Without one it is the host and port where the gateway dials it,
   if a client can use them: not a Unix socket, not this machine's own address for clients from elsewhere.
2. A Server Reference has no scheme, and a client keeps the transport with which it came. So without a configured
   `reference` a client with TLS is sent only to brokers that the gateway dials with TLS, and the other way round.
3. Clients over WebSocket are not redirected: the reference names an MQTT port.
"""

import ipaddress
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from hanse.errors import HanseError, LocalError
from hanse.gateway.addresses import ListenAddress, parse_dial
from hanse.gateway.placement import Broker
from hanse.mqtt.reference import format_reference, parse_references

_GIVE: Final = "give it ?reference=HOST:PORT"


def check_reference(broker: Broker) -> None:
    """Check a broker's configured reference.

    Raises:
        LocalError: it is invalid.
    """
    if broker.reference:
        try:
            parse_references(broker.reference)
        except HanseError as error:
            raise LocalError(f"The broker {broker.id!r} has a reference that clients cannot use: {error}") from None


def reference_of(broker: Broker, listener: ListenAddress) -> tuple[str, str]:
    """Return the address for a client of a listener, or none and the obstacle (rules 1 and 2)."""
    if broker.reference:
        return broker.reference, ""
    return _own_address(broker.url, listener.is_tls, _is_loopback(listener.host))


# A choice looks at every broker: 10 us each without the cache.
@lru_cache(maxsize=65_536)
def _own_address(url: str, is_tls: bool, is_loopback: bool) -> tuple[str, str]:
    address = parse_dial(url)
    if address.socket_path:
        return "", f"it is reached by a Unix socket; {_GIVE}"
    if address.is_tls != is_tls:
        return "", f"it is dialled {'with' if address.is_tls else 'without'} TLS, unlike the client; {_GIVE}"
    if _is_loopback(address.host) and not is_loopback:
        return "", f"{address.host} is only this machine; {_GIVE}"
    try:
        return format_reference(address.host, address.port), ""
    except LocalError as error:
        return "", str(error)


@lru_cache(maxsize=1_024)
def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_moved(text: str) -> tuple[str, str]:
    """Read `FILTER=BROKER`: topics that have moved to a broker for good.

    Raises:
        LocalError: says what was expected.
    """
    filter_, equals, broker_id = text.rpartition("=")
    if not equals or not filter_ or not broker_id:
        raise LocalError(f"{text!r} is not a move of topics; write FILTER=BROKER.")
    return filter_, broker_id


def parse_source(text: str) -> tuple[str, str]:
    """Read `BROKER=URL`: where a broker's federator shows its groups.

    Raises:
        LocalError: says what was expected.
    """
    broker_id, equals, url = text.partition("=http")
    parts = urlsplit(f"http{url}")
    if not equals or not broker_id or parts.scheme not in ("http", "https") or not parts.hostname:
        raise LocalError(f"{text!r} is not the page of a federator; write BROKER=http://HOST:PORT.")
    return broker_id, f"http{url}"
