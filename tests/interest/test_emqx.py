"""EMQX's event messages, in the form of the vendor's documentation; none was captured from a running EMQX."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.interest import ClientBack, ClientLeft, EmqxAdapter, Gap, Report, Session, Subscribed, Unsubscribed
from hanse.interest.emqx import TOPIC
from hanse.protocol.topics import matches

NODE = "$SYS/brokers/emqx@127.0.0.1/clients"
COMMON = {"username": "foo", "ts": 1625572213873, "clientid": "panel-7"}
OPTIONS = {"sub_props": {}, "rh": 0, "rap": 0, "qos": 1, "nl": 0, "is_new": True}


def events(adapter: EmqxAdapter, kind: str, client: str = "panel-7", **fields: object) -> list[Report]:
    topic = f"{NODE}/{client}/{kind}"
    assert matches(TOPIC, topic)
    return adapter.message(topic, json.dumps({**COMMON, "clientid": client, **fields}).encode())


def test_a_subscription_and_its_end_are_reported() -> None:
    adapter = EmqxAdapter("hanse-")
    assert events(adapter, "subscribed", topic="a/+", subopts=OPTIONS) == [Subscribed("panel-7", "a/+", 1)]
    assert events(adapter, "unsubscribed", topic="a/+", subopts=OPTIONS) == [Unsubscribed("panel-7", "a/+")]


def test_a_client_id_with_slashes_is_taken_from_the_payload() -> None:
    assert events(EmqxAdapter("hanse-"), "subscribed", "a/b/c", topic="t", subopts=OPTIONS) == [
        Subscribed("a/b/c", "t", 1)
    ]


def test_a_share_is_named_beside_the_topic_or_within_it() -> None:
    adapter = EmqxAdapter("hanse-")
    wanted = [Subscribed("panel-7", "$share/g/t", 1)]
    assert events(adapter, "subscribed", topic="t", subopts={**OPTIONS, "share": "g"}) == wanted
    assert events(adapter, "subscribed", topic="$share/g/t", subopts={**OPTIONS, "share": "g"}) == wanted
    assert events(adapter, "unsubscribed", topic="t", subopts={"share": "g"}) == [Unsubscribed("panel-7", "$share/g/t")]


@pytest.mark.parametrize(
    ("expiry", "session", "ttl_s"),
    [
        (0, Session.ENDED, None),
        (300, Session.KEPT, 300.0),
        (0xFFFF_FFFF, Session.KEPT, None),
        (None, Session.UNKNOWN, None),
    ],
)
def test_connect_event_says_how_long_the_session_is_kept(
    expiry: int | None, session: Session, ttl_s: float | None
) -> None:
    adapter = EmqxAdapter("hanse-")
    assert events(adapter, "connected", clean_start=True, proto_ver=4, keepalive=60, expiry_interval=expiry) == [
        ClientBack("panel-7", session_kept=False)
    ]
    assert events(adapter, "disconnected", reason="tcp_closed") == [ClientLeft("panel-7", session, ttl_s)]
    assert events(adapter, "disconnected", reason="tcp_closed") == [ClientLeft("panel-7", Session.UNKNOWN)]


def test_after_a_gap_the_fate_of_sessions_is_unknown() -> None:
    adapter = EmqxAdapter("hanse-")
    events(adapter, "connected", clean_start=False, expiry_interval=0)
    assert adapter.lost() == [Gap()]
    assert events(adapter, "disconnected") == [ClientLeft("panel-7", Session.UNKNOWN)]


def test_the_federators_own_subscriptions_are_ignored() -> None:
    adapter = EmqxAdapter("hanse-")
    assert events(adapter, "subscribed", "hanse-federator-1", topic="t", subopts=OPTIONS) == []
    assert adapter.counters == {"own_sessions": 1}


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("subscribed", b""),
        ("subscribed", b"{"),
        ("subscribed", b"[]"),
        ("subscribed", b'{"a":' * 20_000),
        ("subscribed", b'{"clientid": "c"}'),
        ("subscribed", b'{"clientid": "", "topic": "t"}'),
        ("subscribed", b'{"clientid": 7, "topic": "t"}'),
        ("subscribed", b'{"clientid": "c", "topic": ""}'),
        ("subscribed", b'{"clientid": "c", "topic": "t", "subopts": {"qos": 3}}'),
        ("subscribed", b'{"clientid": "c", "topic": "t", "subopts": {"qos": true}}'),
        ("subscribed", b'{"clientid": "c", "topic": "' + b"x" * 140_000 + b'"}'),
        ("connected", b'{"clientid": "c"}'),
        ("disconnected", b"null"),
    ],
)
def test_a_malformed_event_is_counted_and_gives_no_report(kind: str, payload: bytes) -> None:
    adapter = EmqxAdapter("hanse-")
    assert adapter.message(f"{NODE}/c/{kind}", payload) == []
    assert adapter.counters == {"events_malformed": 1}


def test_other_events_are_ignored() -> None:
    adapter = EmqxAdapter("hanse-")
    assert adapter.message(f"{NODE}/c/kicked", b"{}") == []
    assert adapter.counters == {"messages_of_no_concern": 1}


@given(st.sampled_from(["subscribed", "unsubscribed", "connected", "disconnected"]), st.binary(max_size=80))
def test_noise_is_only_counted(kind: str, payload: bytes) -> None:
    adapter = EmqxAdapter("hanse-")
    assert adapter.message(f"{NODE}/c/{kind}", payload) == []
