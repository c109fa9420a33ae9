"""Lines that Mosquitto 2.0.11 wrote (captured), and the wording of 2.1."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.interest import MosquittoLogAdapter
from hanse.interest.reports import (
    BridgeGone,
    BridgeSeen,
    ClientBack,
    ClientLeft,
    Gap,
    Report,
    Session,
    Subscribed,
    Unsubscribed,
)

SUBSCRIBE = "$SYS/broker/log/M/subscribe"
UNSUBSCRIBE = "$SYS/broker/log/M/unsubscribe"
NOTICE = "$SYS/broker/log/N"
ERROR = "$SYS/broker/log/E"


def adapter() -> MosquittoLogAdapter:
    return MosquittoLogAdapter("hanse-")


def say(to: MosquittoLogAdapter, topic: str, line: str) -> list[Report]:
    return to.message(topic, line.encode())


def connect(to: MosquittoLogAdapter, client: str, flags: str = "p2, c1, k60", address: str = "127.0.0.1:1") -> None:
    say(to, NOTICE, f"New client connected from {address} as {client} ({flags}).")


def test_the_adapter_subscribes_to_log_topics_states_of_bridges_and_counts() -> None:
    topics = adapter().topics()
    assert topics[0] == SUBSCRIBE  # the log of subscriptions shows all that follow it
    assert topics[1:] == [
        UNSUBSCRIBE,
        NOTICE,
        ERROR,
        "$SYS/broker/connection/+/state",
        "$SYS/broker/uptime",
        "$SYS/broker/subscriptions/count",
        "$SYS/broker/shared_subscriptions/count",
        "$SYS/broker/clients/disconnected",
    ]


def count(to: MosquittoLogAdapter, ordinary: int, **retained: bool) -> list[Report]:
    reports = to.message("$SYS/broker/uptime", b"1 seconds", **retained)
    return reports + to.message("$SYS/broker/subscriptions/count", str(ordinary).encode(), **retained)


def test_counts_of_a_tick_are_compared_with_the_lines_before_it() -> None:
    log = adapter()
    say(log, SUBSCRIBE, "a 1 t")
    count(log, 2)
    # This line is later than the counts, and completes the tick.
    say(log, SUBSCRIBE, "b 1 t")
    count(log, 3)
    count(log, 3)
    assert log.ledger.state.unknown == 1


def test_retained_counts_are_values_and_no_tick() -> None:
    log = adapter()
    for _ in range(3):
        count(log, 5, is_retained=True)
    say(log, SUBSCRIBE, "a 1 t")
    assert log.ledger.state.unknown is None
    for _ in range(3):
        log.message("$SYS/broker/uptime", b"1 seconds")
    assert log.ledger.state.unknown == 4


def test_unreadable_count_is_refused() -> None:
    log = adapter()
    for payload in (b"", b"-1", b"9" * 20, b"x", "١".encode()):
        log.message("$SYS/broker/subscriptions/count", payload)
    assert log.counters["counts_unreadable"] == 5


def test_filter_too_long_for_the_log_shows_as_an_unknown_subscription() -> None:
    log = adapter()
    say(log, SUBSCRIBE, "long 1 " + "x" * 1_200)
    for _ in range(3):
        count(log, 1)
    assert log.ledger.state.unknown == 1
    assert log.counters["lines_cut"] == 1


def test_a_subscription_is_reported_with_client_filter_and_granted_qos() -> None:
    assert say(adapter(), SUBSCRIBE, "pers 2 p/#") == [Subscribed("pers", "p/#", 2)]


def test_a_timestamp_before_the_line_is_skipped() -> None:
    for stamp in ("1794740389", "2026-11-15T10:59:59", "2026-11-15T10:59:59+0000"):
        assert say(adapter(), SUBSCRIBE, f"{stamp}: v5p 1 v5p/#") == [Subscribed("v5p", "v5p/#", 1)]


def test_a_client_id_with_spaces_and_digits_is_recognised_once_it_has_connected() -> None:
    log = adapter()
    connect(log, "my client 1 x")
    assert say(log, SUBSCRIBE, "my client 1 x 1 a b/+/#") == [Subscribed("my client 1 x", "a b/+/#", 1)]
    assert say(log, UNSUBSCRIBE, "my client 1 x a b/+/#") == [Unsubscribed("my client 1 x", "a b/+/#")]
    assert log.counters["lines_ambiguous"] == 0


def test_an_unknown_client_id_is_split_at_the_left_and_the_ambiguity_is_counted() -> None:
    log = adapter()
    assert say(log, SUBSCRIBE, "sensor 0 level 1 low") == [Subscribed("sensor", "level 1 low", 0)]
    assert say(log, UNSUBSCRIBE, "sensor level 1") == [Unsubscribed("sensor", "level 1")]
    assert log.counters["lines_ambiguous"] == 2


def test_a_share_is_kept_as_the_client_wrote_it() -> None:
    assert say(adapter(), SUBSCRIBE, "w 1 $share/g one/s/#") == [Subscribed("w", "$share/g one/s/#", 1)]


@pytest.mark.parametrize(
    ("flags", "kept", "fate"),
    [
        ("p2, c1, k60", False, Session.ENDED),
        ("p4, c1, k60", False, Session.ENDED),
        ("p2, c0, k60", True, Session.KEPT),
        ("p5, c0, k60", True, Session.UNKNOWN),
        ("p5, c1, k60, u'user (odd)'", False, Session.UNKNOWN),
    ],
)
def test_the_beginning_of_a_session_determines_its_fate(flags: str, kept: bool, fate: Session) -> None:
    log = adapter()
    back = say(log, NOTICE, f"New client connected from 127.0.0.1:59614 as pers ({flags}).")
    assert back == [ClientBack("pers", session_kept=kept)]
    assert say(log, NOTICE, "Client pers disconnected.") == [ClientLeft("pers", fate)]


@pytest.mark.parametrize(
    "line",
    [
        "Client a b disconnected.",
        "Client a b closed its connection.",
        "Client a b has exceeded timeout, disconnecting.",
        "Client a b disconnected due to protocol error.",
        "Client a b disconnected due to malformed packet.",
        "Client a b disconnected, not authorised.",
        "Client a b [127.0.0.1:1] disconnected: connection closed by client.",
        "Bad socket read/write on client a b: Connection reset by peer",
        "Socket error on client a b, disconnecting.",
    ],
)
def test_every_wording_of_a_disconnect_is_understood(line: str) -> None:
    log = adapter()
    connect(log, "a b")
    assert say(log, NOTICE, line) == [ClientLeft("a b", Session.ENDED)]


def test_a_client_that_left_unseen_has_an_unknown_session() -> None:
    assert say(adapter(), NOTICE, "Client early disconnected.") == [ClientLeft("early", Session.UNKNOWN)]


def test_a_late_disconnect_line_after_a_take_over_does_not_count() -> None:
    log = adapter()
    connect(log, "dup", address="127.0.0.1:1")
    connect(log, "dup", address="127.0.0.1:2")
    assert say(log, NOTICE, "Client dup [127.0.0.1:1] disconnected: session taken over.") == []
    assert log.counters["disconnects_of_taken_over_connections"] == 1
    assert say(log, NOTICE, "Client dup [127.0.0.1:2] disconnected: session taken over.") != []


def test_a_take_over_in_the_error_log_ends_the_old_connection() -> None:
    log = adapter()
    connect(log, "dup")
    assert say(log, ERROR, "Client dup already connected, closing old connection.") == [
        ClientLeft("dup", Session.ENDED)
    ]
    connect(log, "five", "p5, c0, k60")
    assert say(log, ERROR, "Client five already connected, closing old connection.") == [
        ClientLeft("five", Session.UNKNOWN)
    ]


@pytest.mark.parametrize(
    "line", ["Expiring client a b due to timeout.", "Expiring client a b [127.0.0.1:1] due to timeout."]
)
def test_an_expired_session_of_any_client_has_ended(line: str) -> None:
    log = adapter()
    assert say(log, NOTICE, line) == [ClientLeft("a b", Session.ENDED)]
    connect(log, "a b", "p5, c0, k60")
    say(log, NOTICE, "Client a b disconnected.")
    assert say(log, NOTICE, line) == [ClientLeft("a b", Session.ENDED)]
    assert say(log, NOTICE, "Expiring client hanse-7-host due to timeout.") == []


def test_a_cut_line_is_refused_and_counted() -> None:
    log = adapter()
    assert log.message(SUBSCRIBE, b"long 0 " + b"x" * 992) == []
    assert log.counters["lines_cut"] == 1
    assert len(log.message(SUBSCRIBE, b"long 0 " + b"x" * 991)) == 1


def test_our_own_clients_are_not_interest() -> None:
    log = adapter()
    assert say(log, SUBSCRIBE, "hanse-7-host 1 #") == []
    assert say(log, UNSUBSCRIBE, "hanse-7-host #") == []
    connect(log, "hanse-7-host")
    assert say(log, NOTICE, "Client hanse-7-host disconnected.") == []
    assert log.counters["lines_of_our_own"] == 4


def test_a_bridge_of_the_broker_is_seen_and_a_bridge_that_connects_is_a_client() -> None:
    log = adapter()
    assert log.message("$SYS/broker/connection/host.to-b/state", b"1") == [BridgeSeen("host.to-b")]
    assert log.message("$SYS/broker/connection/host.to-b/state", b"0") == [BridgeGone("host.to-b")]
    line = "New bridge connected from 127.0.0.1:59688 as bridgey (p2, c1, k60)."
    assert say(log, NOTICE, line) == [ClientBack("bridgey", session_kept=False)]


def test_a_lost_connection_is_a_gap_and_the_connected_clients_are_forgotten() -> None:
    log = adapter()
    connect(log, "c")
    assert log.lost() == [Gap()]
    assert say(log, NOTICE, "Client c disconnected.") == [ClientLeft("c", Session.UNKNOWN)]


def test_attack_a_client_id_that_reads_like_a_line_does_not_affect_another_client() -> None:
    log = adapter()
    connect(log, "victim")
    connect(log, "Client victim disconnected.")
    assert say(log, SUBSCRIBE, "Client victim disconnected. 0 x") == [Subscribed("Client victim disconnected.", "x", 0)]
    assert say(log, NOTICE, "New client connected from 127.0.0.1:9 as x (p2, c1, k60). (p2, c1, k60).") == [
        ClientBack("x (p2, c1, k60).", session_kept=False)
    ]


@given(st.sampled_from([SUBSCRIBE, UNSUBSCRIBE, NOTICE, "$SYS/broker/log/E", "x"]), st.binary(max_size=1100))
def test_no_payload_raises_an_error(topic: str, payload: bytes) -> None:
    adapter().message(topic, payload)


@given(st.text(min_size=1, max_size=40), st.integers(0, 2), st.text(min_size=1, max_size=40))
def test_the_subscription_of_any_connected_client_is_reported(client: str, qos: int, wanted: str) -> None:
    log = MosquittoLogAdapter("hanse-own-")
    line = f"New client connected from 127.0.0.1:1 as {client} (p2, c1, k60)."
    if log.message(NOTICE, line.encode("utf-8", "replace")) != [ClientBack(client, session_kept=False)]:
        return  # brokers refuse an id with a line break
    assert Subscribed(client, wanted, qos) in say(log, SUBSCRIBE, f"{client} {qos} {wanted}")
