"""The addresses and ports that a scan tries, as an operator writes them.

    10.0.0.0/24        10.0.0.10-10.0.0.20        10.0.0.7        2001:db8::/120        1883,8883/tls,1900-1905

Rules:

1. A scan is bounded before it begins: addresses times ports above the limit are refused, and are counted without a list
   of them. An IPv6 network of 64 bits is a short text and 18 quintillion addresses.
2. Of a network every address is tried except the network's own address and the broadcast address.
3. An address or a port that is written twice is tried once.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from hanse.errors import LocalError

# Larger ranges take minutes and disturb the networks they cross. 4,096 addresses are sixteen networks of 24 bits.
TARGETS_MAX: Final = 4_096
_TEXT_MAX: Final = 200


class Port(NamedTuple):
    """A port, and whether TLS is spoken there."""

    number: int
    is_tls: bool = False


class Target(NamedTuple):
    """One address and port to try."""

    host: str
    port: int
    is_tls: bool = False

    @property
    def url(self) -> str:
        """Return the URL in the form of the gateway's `broker` setting."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.is_tls else 'mqtt'}://{host}:{self.port}"


class _Span(NamedTuple):
    """Addresses from `first` to `last`, as numbers."""

    version: int
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def addresses(self) -> Iterator[str]:
        kind = ipaddress.IPv4Address if self.version == 4 else ipaddress.IPv6Address
        for number in range(self.first, self.last + 1):
            yield str(kind(number))


def parse_ports(text: str) -> list[Port]:
    """Read a list of ports such as `1883,8883/tls,1900-1905`.

    Raises:
        LocalError: the text is invalid.
    """
    found: dict[int, Port] = {}
    for word in text.split(","):
        numbers, slash, kind = word.strip().partition("/")
        first, dash, last = numbers.partition("-")
        if not dash:
            last = first
        is_good = all(
            one.isascii() and one.isdigit() and len(one) <= 5 and 0 < int(one) < 65_536 for one in (first, last)
        )
        if not is_good or int(first) > int(last) or (slash and kind != "tls"):
            raise LocalError(
                f"{word.strip()[:_TEXT_MAX]!r} is no port to scan; write ports from 1 to 65535 such as "
                "1883,8883/tls,1900-1905."
            )
        for number in range(int(first), int(last) + 1):
            found[number] = Port(number, bool(slash))
    return list(found.values())


def parse_targets(ranges: Sequence[str], ports: Sequence[Port], targets_max: int = TARGETS_MAX) -> list[Target]:
    """Return the targets of a scan: every address of every range, at every port.

    Raises:
        LocalError: a range cannot be read, or together they are more than `targets_max` (rule 1).
    """
    spans = [_parse_range(text) for text in ranges]
    count = sum(span.size for span in spans) * len(ports)
    if count > targets_max:
        raise LocalError(
            f"The scan would try {count} addresses and ports; at most {targets_max} are allowed. Give smaller ranges "
            "or fewer ports, or raise the limit."
        )
    return list(
        dict.fromkeys(
            Target(host, port.number, port.is_tls) for span in spans for host in span.addresses() for port in ports
        )
    )


def _parse_range(text: str) -> _Span:
    expected = "write an address, FIRST-LAST, or a network such as 10.0.0.0/24"
    word = text.strip()
    shown = word[:_TEXT_MAX]
    try:
        if "/" in word:
            network = ipaddress.ip_network(word)
            return _hosts_of(network)
        first_text, dash, last_text = word.partition("-")
        first = ipaddress.ip_address(first_text.strip())
        last = ipaddress.ip_address(last_text.strip()) if dash else first
    except ValueError as error:
        raise LocalError(f"{shown!r} is no range of addresses: {error}; {expected}.") from None
    if first.version != last.version or int(first) > int(last):
        raise LocalError(f"{shown!r} is no range of addresses: it ends before it begins; {expected}.")
    return _Span(first.version, int(first), int(last))


def _hosts_of(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> _Span:
    """Return the addresses of a network that hosts can have (rule 2)."""
    first, last = int(network.network_address), int(network.broadcast_address)
    if network.max_prefixlen - network.prefixlen > 1:
        first += 1
        if network.version == 4:
            last -= 1
    return _Span(network.version, first, last)
