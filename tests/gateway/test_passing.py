"""The session that passes packets through unchanged, and reads those that it must read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.gateway import packets as p

from hanse.gateway.front.connect import Connect
from hanse.gateway.session import Counters, Session, Settings, new_session
from hanse.gateway.session.events import (
    Accepted,
    BrokerRefused,
    Close,
    CloseBroker,
    Ended,
    Subscribed,
    Subscription,
    Unsubscribed,
)

PASSING = Settings(failover=False)


def taken(out: list[bytes]) -> bytes:
    found = b"".join(out)
    out.clear()
    return found


def live(version: int = 5, options: Settings = PASSING) -> Session:
    session = new_session(options, Counters(), 0.0)
    session.start(p.connect(version), b"", 0.0)
    session.attach(0.0)
    session.broker_data(p.connack(version), 0.1)
    for out in (session.to_client, session.to_broker, session.events):
        out.clear()
    return session


@pytest.mark.parametrize("version", [3, 4, 5])
def test_connect_and_connack_pass_unchanged(version: int) -> None:
    connect = p.connect(version, b"x", will=(b"w", b"gone", 1))
    session = new_session(PASSING, Counters(), 0.0)
    session.start(connect, p.publish(b"t", b"early", version=version), 0.0)
    assert session.holds_client
    session.attach(0.0)
    assert taken(session.to_broker) == connect.packet
    session.broker_data(p.connack(version, present=True), 0.1)
    assert taken(session.to_client) == p.connack(version, present=True)
    assert session.events == [Accepted(session_present=True)]
    assert taken(session.to_broker) == p.publish(b"t", b"early", version=version)
    assert not session.holds_client


def test_a_client_without_an_id_gets_one_and_learns_it() -> None:
    session = new_session(Settings(failover=False, make_client_id=lambda: b"made"), Counters(), 0.0)
    session.start(p.connect(5, b""), b"", 0.0)
    assert session.client_id == b"made"
    session.attach(0.0)
    assert taken(session.to_broker) == p.connect(5, b"made").packet
    session.broker_data(p.connack(5), 0.1)
    assert taken(session.to_client) == p.connack(5, properties=b"\x12\x00\x04made")


@pytest.mark.parametrize(("version", "code", "mqtt5_code"), [(5, 0x87, 0x87), (4, 5, 0x87), (3, 4, 0x86)])
def test_refused_credentials_reach_the_client_and_end_it(version: int, code: int, mqtt5_code: int) -> None:
    session = new_session(PASSING, Counters(), 0.0)
    session.start(p.connect(version), b"", 0.0)
    session.attach(0.0)
    session.broker_data(p.connack(version, code), 0.1)
    assert taken(session.to_client) == p.connack(version, code)
    assert session.events == [BrokerRefused(mqtt5_code, True, ""), Close(mqtt5_code, "refused_by_broker")]


@pytest.mark.parametrize("how", ["busy", "closed", "moved"])
def test_a_broker_that_is_not_available_can_be_replaced(how: str) -> None:
    session = new_session(PASSING, Counters(), 0.0)
    session.start(p.connect(5), b"", 0.0)
    session.attach(0.0)
    if how == "closed":
        session.broker_lost(0.1)
    else:
        session.broker_data(p.connack(5, 0x89 if how == "busy" else 0x9C), 0.1)
    assert [type(one) for one in session.events] == [BrokerRefused]
    assert not session.to_client
    session.attach(0.2)
    session.broker_data(p.connack(5), 0.3)
    assert taken(session.to_client) == p.connack(5)


def test_a_client_learns_in_its_version_that_no_broker_is_left() -> None:
    for version, answer in ((5, p.packet(0x20, b"\0\x88\0")), (4, b"\x20\x02\x00\x03")):
        session = new_session(PASSING, Counters(), 0.0)
        session.start(p.connect(version), b"", 0.0)
        session.refuse(0x88, 1.0)
        assert taken(session.to_client) == answer
        assert session.events == [Close(0x88, "refused")]


def test_authentication_packets_pass_before_connack() -> None:
    session = new_session(PASSING, Counters(), 0.0)
    session.start(p.connect(5, properties=b"\x15\x00\x01m"), b"", 0.0)
    session.attach(0.0)
    session.to_broker.clear()
    asked, answered = p.packet(0xF0, b"\x18\0"), p.packet(0xF0, b"\x18\x01\x1f")
    session.broker_data(asked, 0.1)
    assert taken(session.to_client) == asked
    assert not session.holds_client
    session.client_data(answered[:2], 0.2)
    session.client_data(answered[2:], 0.2)
    assert taken(session.to_broker) == answered


streams = st.lists(
    st.sampled_from(
        [
            p.publish(b"a", b"x" * 10),
            p.publish(b"a", b"x" * 200, 1, 5),
            p.publish(b"a", b"y" * 3000, 2, 6),
            p.ack(0x40, 7),
            p.ack(0x62, 8),
            p.packet(0xC0, b""),
            p.subscribe(9, (b"a/#", 1)),
        ]
    ),
    max_size=8,
)


@settings(max_examples=examples(300))
@given(streams, st.integers(1, 4000), st.booleans())
def test_bytes_pass_unchanged_for_any_cut(sent: list[bytes], chunk: int, from_client: bool) -> None:
    session = live(options=Settings(failover=False, hold_bytes=1000))
    stream = b"".join(
        packet for k, packet in enumerate(sent) if packet[0] != 0x82 or (from_client and packet not in sent[:k])
    )
    out = session.to_broker if from_client else session.to_client
    came = b""
    for at in range(0, len(stream), chunk):
        data = stream[at : at + chunk]
        (session.client_data if from_client else session.broker_data)(data, 1.0)
        came += taken(out)
    assert came == stream
    assert not session.events


def test_a_large_publication_goes_through_in_pieces_and_nothing_of_it_is_kept() -> None:
    session = live()
    large = p.publish(b"a", bytes(200_000))
    for end in (large[:100_000], large[100_000:]):
        session.client_data(end, 1.0)
        session.broker_data(end, 1.0)
        assert taken(session.to_broker) == end
        assert taken(session.to_client) == end


def test_granted_filters_are_reported_with_their_qos() -> None:
    session = live()
    session.client_data(p.subscribe(3, (b"a/#", 0x06), (b"b", 1), properties=b"\x0b\x07"), 1.0)
    assert not session.events
    session.broker_data(p.suback(3, 1, 0x87), 1.1)
    assert session.events == [Subscribed(3, (Subscription(b"a/#", 1, 0x06, 7),))]
    session.events.clear()
    session.client_data(p.unsubscribe(4, b"a/#", b"none"), 1.2)
    session.broker_data(p.unsuback(4, 0, 0x87), 1.3)
    assert session.events == [Unsubscribed((b"a/#",))]


def test_the_barrier_holds_suback_alone() -> None:
    session = live(options=Settings(failover=False, subscribe_barrier=True))
    session.client_data(p.subscribe(3, (b"a", 1)), 1.0)
    before, after = p.publish(b"x", b"1"), p.publish(b"x", b"2")
    session.broker_data(before + p.suback(3, 1) + after, 1.1)
    assert taken(session.to_client) == before + after
    session.barrier_passed(3, 1.2)
    session.barrier_passed(3, 1.3)
    assert taken(session.to_client) == p.suback(3, 1)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (b"\x30\xff\xff\xff\xff\x01", 0x81),
        (p.connect(5).packet, 0x82),
        (p.packet(0x82, b"\0\x01\0\0\x05a"), 0x81),
        (p.packet(0x82, b"\0\x00\0\0\x01a\x00"), 0x82),
        (b"\x82\xff\xff\x7f", 0x95),
    ],
)
def test_a_client_that_breaks_a_rule_gets_the_reason_and_earlier_packets_pass(bad: bytes, code: int) -> None:
    session = live()
    good = p.publish(b"a", b"fine")
    session.client_data(good + bad, 1.0)
    assert taken(session.to_broker) == good
    assert taken(session.to_client) == p.disconnect(code)
    assert [type(one) for one in session.events] == [Close]
    session.client_data(good, 1.1)
    assert not session.to_broker
    session.client_lost(1.2)
    assert session.events[1:] == [CloseBroker(), Ended("none")]
    assert session.is_over


def test_unanswered_requests_are_bounded() -> None:
    session = live()
    request_bytes = 60_000
    for packet_id in range(1, 30):
        session.client_data(p.subscribe(packet_id, (b"f" * request_bytes, 0)), 1.0)
    assert session.events == [Close(0x97, "quota")]


def test_a_session_that_the_broker_ends_ends_the_client() -> None:
    session = live()
    session.broker_data(p.disconnect(0x8E), 1.0)
    session.broker_lost(1.1)
    assert taken(session.to_client) == p.disconnect(0x8E)
    assert session.events == [Close(0x88, "closed_by_broker")]


def test_the_will_stays_with_the_broker() -> None:
    for goodbye, expected in ((b"", "broker"), (p.disconnect(0x04), "broker"), (p.disconnect(), "none")):
        session = new_session(PASSING, Counters(), 0.0)
        session.start(p.connect(5, will=(b"w", b"", 0)), b"", 0.0)
        session.attach(0.0)
        session.broker_data(p.connack(5), 0.1)
        if goodbye:
            session.client_data(goodbye, 0.2)
        session.client_lost(0.3)
        assert session.events[-1] == Ended(expected)


@pytest.mark.parametrize(
    ("connect", "connack", "goodbye", "expiry_s"),
    [
        (p.connect(5), b"", b"", 0),
        (p.connect(5, properties=b"\x11\x00\x00\x00\x3c"), b"", b"", 60),
        (p.connect(5, properties=b"\x11\xff\xff\xff\xff"), b"", b"", 0xFFFF_FFFF),
        (p.connect(4, clean=False), b"", b"", 0xFFFF_FFFF),
        (p.connect(4), b"", b"", 0),
        # The broker has another maximum; the client ends its session in DISCONNECT.
        (p.connect(5, properties=b"\x11\x00\x00\x00\x3c"), b"\x11\x00\x00\x00\x0a", b"", 10),
        (p.connect(5, properties=b"\x11\x00\x00\x00\x3c"), b"", b"\xe0\x07\x00\x05\x11\x00\x00\x00\x00", 0),
        (p.connect(5, properties=b"\x11\x00\x00\x00\x3c"), b"", b"\xe0\x00", 60),
    ],
)
def test_expiry_of_the_session_is_what_client_and_broker_agreed_last(
    connect: Connect, connack: bytes, goodbye: bytes, expiry_s: int
) -> None:
    session = new_session(Settings(failover=False), Counters(), 0.0)
    session.start(connect, b"", 0.0)
    session.attach(0.0)
    session.broker_data(p.connack(connect.level, properties=connack), 0.0)
    session.client_data(goodbye, 0.0)
    assert session.session_expiry_s == expiry_s


@pytest.mark.parametrize(("code", "said"), [(0x8B, 0x8B), (0x88, 0x89), (0x84, 0x80), (0x86, 0x80), (0x9D, 0x9D)])
def test_a_disconnect_has_a_reason_that_mqtt_allows_there(code: int, said: int) -> None:
    session = live()
    session.disconnect(code, 1.0)
    assert taken(session.to_client) == p.disconnect(said)
