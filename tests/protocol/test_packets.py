import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.net import packet

from hanse.errors import RemoteError
from hanse.protocol.packets import check_body, packet_end, split, topic_of

PACKETS = st.lists(
    st.builds(packet, st.sampled_from(["a", "b/c", "ü"]), st.binary(max_size=300), st.just(1)), min_size=1, max_size=6
)


@given(PACKETS)
def test_a_body_is_cut_where_its_packets_end(packets: list[bytes]) -> None:
    body = b"".join(packets)
    assert [body[start:end] for start, end in split(body)] == packets
    check_body(body, len(packets), 1)


@given(PACKETS, st.integers(1, 7))
def test_a_body_with_another_number_of_packets_is_refused(packets: list[bytes], count: int) -> None:
    if count != len(packets):
        with pytest.raises(RemoteError):
            check_body(b"".join(packets), count, 1)


@given(st.integers(1, 40), st.integers(0, 123))
def test_packets_of_one_size_are_checked_like_single_packets(count: int, size: int) -> None:
    body = packet("t", b"x" * size) * count
    check_body(body, count, 0)
    for position in (0, len(body) // count * (count - 1)):  # the type and the length of the first and the last packet
        for offset in (0, 1):
            damaged = bytearray(body)
            damaged[position + offset] ^= 0x40
            with pytest.raises(RemoteError):
                check_body(bytes(damaged), count, 0)


def test_retain_may_differ_within_a_run() -> None:
    retained = bytearray(packet("t"))
    retained[0] |= 1
    check_body(packet("t") + bytes(retained), 2, 0)


@pytest.mark.parametrize("size", [127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_lengths_of_one_to_four_bytes_are_read(size: int) -> None:
    body = packet("t", b"x" * (size - 4))
    assert packet_end(body, 0)[1] == len(body)
    assert topic_of(body) == "t"


def test_topic_of_returns_the_topic_of_the_packet_at_the_position() -> None:
    body = packet("a") + packet("b/ü", b"p", 2)
    assert topic_of(body, len(packet("a"))) == "b/ü"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\x30", "A run holds no PUBLISH packet at byte 0 of 1; the frame is malformed."),
        (b"\x40\x02\0\0", "A run holds no PUBLISH packet at byte 0 of 4; the frame is malformed."),
        (b"\x30\x80", "The packet at byte 0 of a run has no valid length; the frame is malformed."),
        (b"\x30\xff\xff\xff\xff\x01", "The packet at byte 0 of a run has no valid length; the frame is malformed."),
        (b"\x30\x05\0\1t", "The packet at byte 0 of a run is 5 bytes long, beyond the run's end."),
        (b"\x30\x03\0\2t", "The packet at byte 0 of a run has a topic of 2 bytes, beyond its end."),
        (b"\x30\x03\0\1\xff", "The packet at byte 0 of a run has a topic that is not UTF-8."),
    ],
)
def test_invalid_packets_are_refused_with_a_sentence(body: bytes, message: str) -> None:
    with pytest.raises(RemoteError) as refusal:
        topic_of(body)
    assert str(refusal.value) == message


def test_a_body_with_bytes_after_its_last_packet_is_refused() -> None:
    with pytest.raises(RemoteError, match=r"^A run of 1 publications has 6 bytes after its last packet.$"):
        check_body(packet("t") * 2, 1, 0)
    with pytest.raises(RemoteError):
        check_body(b"", 1, 0)


@pytest.mark.parametrize("count", [1, 2])
def test_a_length_of_128_takes_two_bytes(count: int) -> None:
    """In a packet of 130 bytes, 128 is no length: it says that another byte of the length follows."""
    body = (bytes((0x30, 128, 1)) + bytes(127)) * count
    with pytest.raises(RemoteError):
        check_body(body, count, 0)
