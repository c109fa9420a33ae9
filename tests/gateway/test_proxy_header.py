"""The headers of balancers, byte by byte."""

import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.gateway.front.proxy_header import SIGNATURE, V1_BYTES_MAX, V2_BYTES_MAX, HeaderReader, crc32c
from hanse.mqtt.refusal import Refusal


def v2(address: str, *, command: int = 0x21, fields: bytes = b"", family: int | None = None) -> bytes:
    source = ipaddress.ip_address(address)
    kind = family if family is not None else 0x11 if source.version == 4 else 0x21
    body = source.packed + bytes(len(source.packed)) + b"\x30\x39\x07\x5b" if kind else b""
    return SIGNATURE + bytes((command, kind)) + (len(body) + len(fields)).to_bytes(2, "big") + body + fields


def with_checksum(header: bytes) -> bytes:
    """Add a checksum field to a header without fields."""
    longer = header[:14] + (len(header) - 16 + 7).to_bytes(2, "big") + header[16:] + b"\x03\x00\x04"
    return longer + crc32c(longer + bytes(4)).to_bytes(4, "big")


V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 51234 1883\r\n"
HEADERS = [
    (V1, "192.0.2.7"),
    (b"PROXY TCP6 2001:db8::7 2001:db8::1 51234 1883\r\n", "2001:db8::7"),
    (b"PROXY UNKNOWN\r\n", ""),
    (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", ""),
    (v2("192.0.2.7"), "192.0.2.7"),
    (v2("2001:db8::7"), "2001:db8::7"),
    (v2("192.0.2.7", fields=b"\x04\x00\x02\0\0"), "192.0.2.7"),
    (v2("192.0.2.7", command=0x20), ""),
    (v2("192.0.2.7", family=0), ""),
    (with_checksum(v2("192.0.2.7")), "192.0.2.7"),
]


@pytest.mark.parametrize(("header", "address"), HEADERS)
def test_a_header_is_taken_to_its_end_and_not_beyond(header: bytes, address: str) -> None:
    reader = HeaderReader()
    assert reader.feed(header + b"\x16\x03\x01rest") == len(header)
    assert reader.is_complete
    assert reader.address == address


@given(st.sampled_from(HEADERS), st.lists(st.integers(1, 20)), st.binary(max_size=40))
@settings(max_examples=examples(300))
def test_a_header_may_come_in_pieces(known: tuple[bytes, str], sizes: list[int], rest: bytes) -> None:
    header, address = known
    data = header + rest
    reader = HeaderReader()
    taken = 0
    for size in [*sizes, *[7] * 30]:
        # Like MSG_PEEK: bytes that were not taken are seen again.
        seen = data[taken : taken + size]
        if seen and not reader.is_complete:
            taken += reader.feed(seen)
    assert reader.is_complete
    assert taken == len(header)
    assert reader.address == address


@pytest.mark.parametrize(
    "header",
    [
        b"\x10\x0d\x00\x04MQTT",
        b"PROXZ TCP4 192.0.2.7 198.51.100.1 51234 1883\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 51234\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 51234 99999\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 51234 -1\r\n",
        b"PROXY TCP6 192.0.2.7 198.51.100.1 51234 1883\r\n",
        b"PROXY UDP4 192.0.2.7 198.51.100.1 51234 1883\r\n",
        b"PROXY TCP4 \xff 198.51.100.1 51234 1883\r\n",
        b"PROXY " + b"x" * V1_BYTES_MAX,
        SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x21\x11\x00\x04" + bytes(4),
        SIGNATURE + b"\x21\x11" + V2_BYTES_MAX.to_bytes(2, "big"),
        v2("192.0.2.7", fields=b"\x04\x00\x09\0\0"),
        v2("192.0.2.7", fields=b"\x04\x00"),
        v2("192.0.2.7", fields=b"\x03\x00\x04abcd"),
        v2("192.0.2.7", fields=b"\x03\x00\x01a"),
        with_checksum(v2("192.0.2.7"))[:-1] + b"\x01",
    ],
)
def test_other_bytes_than_a_header_are_refused(header: bytes) -> None:
    with pytest.raises(Refusal):
        HeaderReader().feed(header)


def test_the_checksum_is_castagnolis() -> None:
    # The check value that catalogues of CRCs give for it.
    assert crc32c(b"123456789") == 0xE3069283
