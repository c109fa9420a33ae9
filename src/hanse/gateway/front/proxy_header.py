"""The header that a balancer puts before a connection: the PROXY protocol, versions 1 and 2.

It names the client's address, which the gateway otherwise sees as the balancer's. No IO.

Rules:

1. Only a balancer that is listed may send a header, and each of its connections must begin with one. The caller knows
   the list: a header from anybody else is no MQTT and is refused as such.
2. Bytes are taken up to the header's end and never beyond, because TLS may begin there.
3. A header is bounded: 107 bytes in version 1, `V2_BYTES_MAX` in version 2. A checksum in version 2 is verified.
4. `LOCAL` and `UNKNOWN`, with which balancers check their servers, name no client: the balancer's address stays.
"""

import ipaddress
from typing import Final

from hanse.mqtt.refusal import malformed

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
V1_BYTES_MAX: Final = 107
# Addresses take 216 bytes at most; the rest are fields such as the name of a TLS client.
V2_BYTES_MAX: Final = 4_096

_V1_START: Final = b"PROXY "
_V2_HEAD_BYTES: Final = 16
# Bytes of addresses and ports by address family, TCP only.
_V2_ADDRESSES: Final = {0x11: 4, 0x21: 16}
_CRC32C: Final = 0x03


class HeaderReader:
    """Reads one header.

    Attributes:
        address: the client's address once the header is complete; empty if it names none.
        is_complete: the header has been taken.
    """

    __slots__ = ("_have", "address", "is_complete")

    def __init__(self) -> None:
        self._have = b""
        self.address = ""
        self.is_complete = False

    def feed(self, seen: bytes) -> int:
        """Look at what can be read next; return how much of it must be taken. Call again with what follows.

        Raises:
            Refusal: this is no header, or a malformed one.
        """
        before = len(self._have)
        data = self._have + seen
        if data[:6] == _V1_START[: len(data)] and data:
            end = self._read_v1(data)
        elif data[:12] == SIGNATURE[: len(data)]:
            end = self._read_v2(data)
        else:
            raise malformed(
                "a connection from a listed balancer began without a PROXY header; let it send one, or take its "
                "address out of proxy_from"
            )
        taken = end or len(data)
        self._have = data[:taken]
        return taken - before

    def _read_v1(self, data: bytes) -> int:
        end = data.find(b"\r\n", 0, V1_BYTES_MAX)
        if end < 0:
            if len(data) >= V1_BYTES_MAX:
                raise malformed(f"a PROXY header has no end within {V1_BYTES_MAX} bytes")
            return 0
        words = data[:end].split(b" ")
        if words[1] != b"UNKNOWN":
            self.address = _address_of(words)
        self.is_complete = True
        return end + 2

    def _read_v2(self, data: bytes) -> int:
        if len(data) < _V2_HEAD_BYTES:
            return 0
        command, family = data[12], data[13]
        if command not in (0x20, 0x21):
            raise malformed(f"a PROXY header has version and command {command:#04x}; expected 0x20 or 0x21")
        end = _V2_HEAD_BYTES + int.from_bytes(data[14:16], "big")
        if end > V2_BYTES_MAX:
            raise malformed(f"a PROXY header has {end} bytes; at most {V2_BYTES_MAX} are taken")
        if len(data) < end:
            return 0
        header = data[:end]
        size = _V2_ADDRESSES.get(family, 0)
        first_field = _V2_HEAD_BYTES + (2 * size + 4 if size else 0)
        if first_field > end:
            raise malformed("a PROXY header ends within its addresses")
        _check_sum(header, first_field if size else end)
        if command == 0x21 and size:
            self.address = str(ipaddress.ip_address(header[_V2_HEAD_BYTES : _V2_HEAD_BYTES + size]))
        self.is_complete = True
        return end


def _address_of(words: list[bytes]) -> str:
    """Return the client's address of a version 1 header: PROXY TCP4 SOURCE DESTINATION PORT PORT."""
    version = {b"TCP4": 4, b"TCP6": 6}.get(words[1])
    try:
        source, destination = (ipaddress.ip_address(word.decode("ascii")) for word in words[2:4])
    except ValueError:
        version = None
    ports = [int(word) for word in words[4:6] if word.isdigit() and len(word) <= 5]
    if version is None or len(words) != 6 or len(ports) != 2 or max(ports) > 65_535:
        raise malformed("a PROXY header of version 1 cannot be read")
    if source.version != version or destination.version != version:
        raise malformed("the addresses in a PROXY header are not of the family that it names")
    return str(source)


def _check_sum(header: bytes, start: int) -> None:
    """Verify the checksum if the header has one.

    Raises:
        Refusal: it is wrong, or the fields do not end with the header.
    """
    i = start
    while i < len(header):
        if i + 3 > len(header):
            raise malformed("the last field of a PROXY header is cut short")
        end = i + 3 + int.from_bytes(header[i + 1 : i + 3], "big")
        if end > len(header):
            raise malformed("a field of a PROXY header goes beyond its end")
        if header[i] == _CRC32C:
            if end - i != 7:
                raise malformed("the checksum of a PROXY header does not have four bytes")
            told = int.from_bytes(header[i + 3 : end], "big")
            if crc32c(header[: i + 3] + bytes(4) + header[end:]) != told:
                raise malformed("the checksum of a PROXY header is wrong")
        i = end


def _row(index: int) -> int:
    for _ in range(8):
        index = index >> 1 ^ (0x82F63B78 if index & 1 else 0)
    return index


_TABLE: Final = tuple(_row(index) for index in range(256))


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
