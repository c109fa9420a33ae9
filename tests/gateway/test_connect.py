import mqtt5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.gateway.front.connect import NEVER, Connect, ConnectReader, read_connect, refuse
from hanse.mqtt import v311
from hanse.mqtt.refusal import Refusal
from hanse.mqtt.v311 import connect as connect_311

CONNECT_31 = b"\x10\x11\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x03abc"


def connect_5(**more: object) -> bytes:
    settings: dict[str, object] = {"client_id": "sensor", "clean_start": True, "keep_alive": 60, **more}
    client_id = settings.pop("client_id")
    return mqtt5.ConnectPacket(client_id, **settings).write()  # type: ignore[arg-type]


def read(data: bytes, bytes_max: int = 65_536) -> Connect:
    found = ConnectReader(bytes_max).feed(data)
    assert found is not None
    return found


def code_of(data: bytes, bytes_max: int = 65_536) -> int:
    with pytest.raises(Refusal) as caught:
        ConnectReader(bytes_max).feed(data)
    return caught.value.reason_code


def test_reads_all_fields_of_mqtt_5() -> None:
    will = mqtt5.Will("w/x", payload=b"gone", qos=mqtt5.QoS.EXACTLY_ONCE, retain=True, will_delay_interval=5)
    packet = connect_5(
        username="anna",
        password=b"secret",
        will=will,
        clean_start=False,
        session_expiry_interval=3600,
        receive_max=7,
        max_packet_size=9000,
        topic_alias_max=3,
        user_properties=[("follows", "yes")],
    )
    found = read(packet)
    assert (found.level, found.client_id, found.username, found.password) == (5, b"sensor", b"anna", b"secret")
    assert (found.clean_start, found.session_expiry_s, found.keep_alive_s) == (False, 3600, 60)
    assert (found.receive_max, found.packet_bytes_max, found.topic_alias_max) == (7, 9000, 3)
    assert found.user_properties == [(b"follows", b"yes")]
    assert found.will is not None
    assert (found.will.topic, found.will.payload, found.will.qos, found.will.retain) == (b"w/x", b"gone", 2, True)
    assert found.will.properties == b"\x18\x00\x00\x00\x05"
    assert not found.is_transient
    assert found.packet == packet


def test_reads_mqtt_3_1_and_3_1_1() -> None:
    old = read(CONNECT_31)
    assert (old.level, old.client_id, old.clean_start, old.keep_alive_s) == (3, b"abc", True, 60)
    assert old.is_transient
    newer = read(connect_311("abc", clean_session=False, keep_alive_s=9, username="u", password="p"))
    assert (newer.level, newer.session_expiry_s, newer.username, newer.password) == (4, NEVER, b"u", b"p")


def test_reads_a_bridge_of_mosquitto() -> None:
    packet = bytearray(connect_311("bridge", clean_session=True, keep_alive_s=60))
    packet[8] |= 0x80
    found = read(bytes(packet))
    assert found.is_bridge
    assert found.level == 4
    assert found.encode() == bytes(packet)


def test_a_packet_in_single_bytes_is_the_same_packet() -> None:
    packet = connect_5(username="anna")
    reader = ConnectReader()
    for k in range(len(packet) - 1):
        assert reader.feed(packet[k : k + 1]) is None
    found = reader.feed(packet[-1:] + b"\xc0\x00")
    assert found is not None
    assert found.packet == packet
    assert reader.rest == b"\xc0\x00"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x30\x03\x00\x01a", 0x82),  # PUBLISH first
        (b"\x16\x03\x01\x02\x00", 0x82),  # TLS
        (b"GET / HTTP/1.1\r\n", 0x82),
        (b"\x11\x00", 0x81),
        (b"\x10\xff\xff\xff\xff\x01", 0x81),  # five bytes of length
        (b"\x10\x80\x00", 0x81),  # a length longer than it needs to be
        (b"\x10\x00", 0x81),
        (b"\x10\x0c\x00\x04MQTT\x06\x02\x00\x00\x00\x00", 0x84),
        (b"\x10\x0c\x00\x04MQTX\x04\x02\x00\x00\x00\x00", 0x84),
        (b"\x10\x0e\x00\x06MQIsdp\x04\x02\x00\x00\x00\x00", 0x84),
        (b"\x10\x0c\x00\x04MQTT\x04\x03\x00\x00\x00\x00", 0x81),  # reserved flag
        (b"\x10\x0c\x00\x04MQTT\x04\x1e\x00\x00\x00\x00", 0x81),  # will QoS 3
        (b"\x10\x0c\x00\x04MQTT\x04\x0a\x00\x00\x00\x00", 0x81),  # will QoS without a will
        (b"\x10\x0c\x00\x04MQTT\x04\x42\x00\x00\x00\x00", 0x81),  # password without a name
        (b"\x10\x0c\x00\x04MQTT\x04\x00\x00\x00\x00\x00", 0x85),  # a session without an id
        (b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01\xff", 0x81),  # not UTF-8
        (b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01\x00", 0x81),  # U+0000
        (b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x00\x00", 0x81),  # bytes too many
        (b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x03\x21\x00\x00\x00\x00", 0x82),  # Receive Maximum 0
        (b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x00\x02\x17\x02\x00\x00", 0x82),  # a switch that is 2
        (b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x00\x02\x23\x00\x00\x00", 0x81),  # Topic Alias in CONNECT
        (b"\x10\x11\x00\x04MQTT\x05\x02\x00\x00\x04\x17\x01\x17\x01\x00\x00", 0x82),  # twice
        (b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x03\x16\x00\x00\x00\x00", 0x82),  # data without a method
    ],
)
def test_refuses_with_the_reason_code(data: bytes, code: int) -> None:
    assert code_of(data) == code


def test_a_large_connect_is_refused_by_its_header() -> None:
    assert code_of(b"\x10\xff\xff\x7f\x00\x04MQTT\x05", 65_536) == 0x95


def test_the_version_is_known_before_the_refusal() -> None:
    reader = ConnectReader(100)
    with pytest.raises(Refusal):
        reader.feed(b"\x10\xff\x7f\x00\x04MQTT\x05")
    assert reader.level == 5
    assert refuse(reader.level, 0x95)[3] == 0x95


def test_a_refusal_is_written_in_the_clients_version() -> None:
    answer, _ = mqtt5.read(memoryview(refuse(5, 0x97, "too many")))
    assert isinstance(answer, mqtt5.ConnAckPacket)
    assert int(answer.reason_code) == 0x97
    assert answer.reason_str == "too many"
    assert int(v311.connack(refuse(4, 0x97)).reason_code) == 0x88
    assert refuse(3, 0x85) == b"\x20\x02\x00\x02"
    assert refuse(4, 0x81) == b""
    assert refuse(0, 0x84) == b"\x20\x02\x00\x01"


def test_encode_changes_only_what_is_asked() -> None:
    will = mqtt5.Will("w", payload=b"gone", qos=mqtt5.QoS.AT_LEAST_ONCE, retain=False)
    packet = connect_5(username="u", password=b"p", will=will, user_properties=[("a", "b")], session_expiry_interval=9)
    found = read(packet)
    changed = read_connect(
        found.encode(
            clean_start=False, strip_will=True, client_id=b"other", session_expiry_s=0, receive_max=5, topic_alias_max=0
        )
    )
    assert changed.will is None
    assert (changed.client_id, changed.clean_start, changed.session_expiry_s) == (b"other", False, 0)
    assert (changed.receive_max, changed.username, changed.password) == (5, b"u", b"p")
    assert changed.user_properties == [(b"a", b"b")]
    assert (changed.keep_alive_s, changed.level) == (found.keep_alive_s, 5)


@given(
    client_id=st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=30),
    username=st.none() | st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=10),
    will=st.none() | st.binary(max_size=20),
    clean=st.booleans(),
    expiry=st.none() | st.integers(0, NEVER),
)
def test_a_connect_is_written_as_it_was_read(
    client_id: str, username: str | None, will: bytes | None, clean: bool, expiry: int | None
) -> None:
    packet = connect_5(
        client_id=client_id,
        username=username,
        will=None if will is None else mqtt5.Will("w", payload=will, qos=mqtt5.QoS.AT_LEAST_ONCE, retain=True),
        clean_start=clean,
        session_expiry_interval=expiry or 0,
    )
    found = read(packet)
    assert found.encode() == packet
    assert found.client_id == client_id.encode()


@given(st.binary(max_size=60))
def test_any_bytes_are_a_connect_or_refused(data: bytes) -> None:
    for start in (b"", b"\x10", b"\x10" + bytes((len(data) + 6,)) + b"\x00\x04MQTT"):
        try:
            found = ConnectReader().feed(start + data)
        except Refusal as refusal:
            assert 0x80 < refusal.reason_code < 0xA0  # noqa: PT017 - any other error fails the test
        else:
            assert found is None or found.encode()


def test_a_password_is_never_shown() -> None:
    assert "secret" not in repr(read(connect_5(username="anna", password=b"secret")))


def test_a_late_connect_has_no_answer() -> None:
    """0xA0 is a reason of DISCONNECT and not of CONNACK."""
    assert [refuse(level, 0xA0) for level in (0, 3, 4, 5)] == [b""] * 4
