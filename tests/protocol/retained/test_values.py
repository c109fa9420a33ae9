import pytest

from hanse.errors import RemoteError
from hanse.mqtt.publication import encode
from hanse.protocol.packets import topic_of
from hanse.protocol.retained.values import ABSENT, clearing, digest_of, payload_of, with_retain


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 1, 126, 127, 300, 20_000])
def test_the_payload_is_what_was_published(qos: int, size: int) -> None:
    assert payload_of(encode("a/b", b"x" * size, qos=qos)) == b"x" * size


def test_properties_do_not_count_for_equality() -> None:
    plain = encode("t", b"value", qos=1)
    name = plain[4:5]
    body = b"\0\x01" + name + b"\0\0" + b"\x05\x02\0\0\0\x09" + b"value"
    assert digest_of(bytes((0x32, len(body))) + body) == digest_of(plain)


def test_qos_and_flags_do_not_count_for_equality() -> None:
    assert digest_of(with_retain(encode("t", b"v", qos=0), is_set=True)) == digest_of(encode("t", b"v", qos=2))


def test_other_payloads_have_other_digests() -> None:
    assert digest_of(encode("t", b"v")) != digest_of(encode("t", b"w"))
    assert 0 < digest_of(encode("t", b"v")) < 1 << 63


def test_a_deletion_and_no_packet_are_both_absent() -> None:
    assert digest_of(encode("t", b"")) == digest_of(b"") == digest_of(clearing("t")) == ABSENT


@pytest.mark.parametrize(
    ("packet", "message"),
    [
        (b"\x30\x03\0\x01t", "A retained publication ends before its payload; it is malformed."),
        (b"\x30\x04\0\x01t\x80", "A retained publication ends before its payload; it is malformed."),
        (b"\x30\x05\0\x01t\x02x", "A retained publication has properties beyond its end; it is malformed."),
    ],
)
def test_a_packet_that_is_cut_short_is_refused(packet: bytes, message: str) -> None:
    with pytest.raises(RemoteError) as refusal:
        payload_of(packet)
    assert str(refusal.value) == message


def test_a_property_length_of_two_bytes_is_understood() -> None:
    body = b"\0\x01t" + b"\x80\x01" + b"p" * 128 + b"value"
    assert payload_of(b"\x30" + bytes((len(body) & 0x7F | 0x80, len(body) >> 7)) + body) == b"value"


def test_retain_is_set_and_removed() -> None:
    packet = encode("t", b"v", qos=1)
    assert with_retain(packet, is_set=True)[0] == packet[0] | 1
    assert with_retain(with_retain(packet, is_set=True), is_set=False) == packet
    assert with_retain(packet, is_set=False) is packet


@pytest.mark.parametrize("size", [1, 122, 123, 16_378, 16_379, 60_000])
def test_a_clearing_packet_deletes_its_topic_at_qos_1(size: int) -> None:
    packet = clearing("t" * size)
    assert packet == with_retain(encode("t" * size, b"", qos=1), is_set=True)
    assert topic_of(packet) == "t" * size
