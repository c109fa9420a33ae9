"""Figure 2 of the TD-MQTT paper as packets, from the gateway's side."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.gateway import packets as p

from hanse.gateway.redirect.exchange import Redirection
from hanse.gateway.session import Counters
from hanse.gateway.session.events import Close, TopicsAsked
from hanse.gateway.session.settings import Settings
from hanse.mqtt.properties import varint

REFERENCE = "b1.example:1884"


def named(head: int, code: int, reference: str = REFERENCE, *, connack: bool = False) -> bytes:
    text = reference.encode()
    told = b"\x1c" + len(text).to_bytes(2, "big") + text
    return p.packet(head, (b"\0" if connack else b"") + bytes((code,)) + varint(len(told)) + told)


def begin(client_id: bytes = b"c1", rest: bytes = b"", *, denied: tuple[str, ...] = ()) -> Redirection:
    session = Redirection(Settings(), Counters(), 0.0, is_accepted_filter=lambda one: one not in denied)
    session.start(p.connect(5, client_id), rest, 0.0)
    return session


def said(session: Redirection) -> list[bytes]:
    out = b"".join(session.to_client)
    session.to_client.clear()
    found = []
    while out:
        end = 2 + out[1]
        found.append(out[:end])
        out = out[end:]
    return found


def test_figure_2_packet_by_packet() -> None:
    session = begin()
    assert said(session) == []
    session.accept(0.0)
    assert said(session) == [b"\x20\x03\0\0\0"]
    session.client_data(p.subscribe(7, (b"plant/t", 1)), 1.0)
    assert said(session) == [p.suback(7, 1)]
    assert session.events == [TopicsAsked(("plant/t",), False)]
    session.name(0x9C, REFERENCE)
    assert said(session) == [named(0xE0, 0x9C)]
    assert session.events[1:] == [Close(0x9C, "redirected")]
    session.client_data(p.subscribe(8, (b"more", 1)), 2.0)
    assert said(session) == []


@pytest.mark.parametrize(
    "reference",
    ["b1.example:1884", "10.0.0.7:1883", "[2001:db8::7]:1883", "b1.example"],
    ids=["name", "4", "6", "bare"],
)
@pytest.mark.parametrize("code", [0x9C, 0x9D])
def test_every_form_of_reference_in_connack_and_disconnect(reference: str, code: int) -> None:
    early = begin()
    early.name(code, reference)
    assert said(early) == [named(0x20, code, reference, connack=True)]
    late = begin()
    late.accept(0.0)
    late.name(code, reference)
    assert said(late) == [p.connack(), named(0xE0, code, reference)]


def test_packets_that_came_with_connect_are_answered_after_connack() -> None:
    session = begin(rest=p.subscribe(1, (b"a", 0))[:4])
    session.client_data(p.subscribe(1, (b"a", 0))[4:] + b"\xc0\x00", 0.0)
    session.accept(0.0)
    assert said(session) == [p.connack(), p.suback(1, 0), b"\xd0\x00"]


def test_a_client_that_is_proxied_loses_nothing_that_it_sent() -> None:
    stream = p.subscribe(1, (b"a", 0)) + p.publish(b"t", b"x" * 500, 1, 2)
    session = begin(rest=stream[:10])
    session.client_data(stream[10:], 0.0)
    assert session.give_up() == stream
    assert said(session) == []


def test_data_kept_before_the_decision_is_bounded() -> None:
    session = begin()
    for _ in range(300):
        session.client_data(bytes(1_000), 0.0)
    assert any(isinstance(event, Close) for event in session.events)
    assert len(session.give_up()) <= 256 * 1024


def test_an_empty_client_id_is_assigned_one() -> None:
    session = begin(b"")
    session.accept(0.0)
    (connack,) = said(session)
    assert connack[5:6] == b"\x12"
    assert connack[8:] == session.client_id != b""


def test_filters_that_are_not_accepted_get_0x8f() -> None:
    some = begin(denied=("no/+",))
    some.accept(0.0)
    some.client_data(p.subscribe(1, (b"no/+", 1), (b"yes", 2)), 0.0)
    assert said(some) == [p.connack(), p.suback(1, 0x8F, 2)]
    assert some.events == [TopicsAsked(("yes",), False)]
    none = begin(denied=("no/+",))
    none.accept(0.0)
    none.client_data(p.subscribe(1, (b"no/+", 1)), 0.0)
    assert said(none) == [p.connack(), p.suback(1, 0x8F), p.disconnect(0x8F)]
    assert none.events == [Close(0x8F, "filter_not_accepted")]


def test_a_publisher_is_redirected_before_it_is_acknowledged() -> None:
    session = begin()
    session.accept(0.0)
    session.client_data(p.publish(b"a/t", b"x", 1, 3) + p.publish(b"other", b"x", 1, 4), 0.0)
    assert session.events == [TopicsAsked(("a/t",), True)]
    assert said(session) == [p.connack()]
    assert session.lost == 0
    session.client_data(p.publish(b"a/t", b"x"), 0.0)
    assert session.lost == 1


def test_pings_and_unsubscriptions_are_answered_and_disconnect_ends() -> None:
    session = begin()
    session.accept(0.0)
    session.client_data(b"\xc0\x00" + p.unsubscribe(5, b"a", b"b") + p.disconnect(), 0.0)
    assert said(session) == [p.connack(), b"\xd0\x00", p.unsuback(5, 0x11, 0x11)]
    assert session.events == [Close(0, "closed_by_client")]


def test_a_client_without_requests_gets_the_address_of_a_broker() -> None:
    session = begin()
    session.accept(10.0)
    session.tick(14.9)
    assert session.events == []
    session.tick(15.0)
    session.tick(16.0)
    assert session.events == [TopicsAsked((), False)]


def test_a_missing_broker_is_reported_as_busy() -> None:
    session = begin()
    session.accept(0.0)
    session.no_broker(0.0)
    assert said(session) == [p.connack(), p.disconnect(0x89)]
    refused = begin()
    refused.refuse(0x88, 0.0)
    assert said(refused) == [p.connack(code=0x88)]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (p.connect(5, b"c1").packet, 0x82),
        (p.subscribe(1, (b"a/#/b", 0)), 0x81),
        (p.subscribe(1, (b"a", 3)), 0x82),
        (p.subscribe(0, (b"a", 0)), 0x82),
        (p.packet(0x82, b"\0\x01\0"), 0x82),
        (p.packet(0xF0, b""), 0x82),
        (p.publish(b"", b"x"), 0x90),
        (p.publish(b"a/#", b"x"), 0x90),
        (p.suback(1, 0), 0x82),
        (b"\x82\xff\xff\xff\xff\x01", 0x81),
        (b"\x82\xff\xff\x7f", 0x95),
    ],
)
def test_a_client_that_breaks_a_rule_is_closed_with_its_code(sent: bytes, code: int) -> None:
    session = begin()
    session.accept(0.0)
    session.client_data(sent, 0.0)
    assert said(session) == [p.connack(), p.disconnect(code)]
    assert [event for event in session.events if isinstance(event, Close)]


STREAM = (
    b"\xc0\x00" + p.unsubscribe(5, b"a") + p.publish(b"t", bytes(400), 0) + p.subscribe(1, (b"x/+", 1)) + b"\xc0\x00"
)


@settings(max_examples=examples(300))
@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=10), st.integers(0, 10))
def test_the_answer_does_not_depend_on_how_the_stream_is_cut(cuts: list[int], decided_at: int) -> None:
    session = begin()
    edges = [0, *sorted(set(cuts)), len(STREAM)]
    for k in range(len(edges) - 1):
        if k == decided_at:
            session.accept(0.0)
        session.client_data(STREAM[edges[k] : edges[k + 1]], 0.0)
    session.accept(0.0)
    assert said(session) == [p.connack(), b"\xd0\x00", p.unsuback(5, 0x11), p.suback(1, 1), b"\xd0\x00"]
    assert session.events == [TopicsAsked(("t",), True)]


@settings(max_examples=examples(1_000))
@given(st.binary(max_size=100))
def test_any_bytes_end_in_answers_or_a_close(data: bytes) -> None:
    session = begin()
    session.accept(0.0)
    for k in range(len(data)):
        session.client_data(data[k : k + 1], 0.0)
    assert len(b"".join(session.to_client)) < 10_000
