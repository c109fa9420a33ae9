"""The parts of a session that can be moved: their memory of both directions, and the comparison of a replay."""

from collections.abc import Sequence

import pytest
from tests.gateway import packets as p

from hanse.gateway.session.comparison import Comparison
from hanse.gateway.session.deliveries import IDS, RECEIVED, RELEASED, SENT_1, SENT_2, Deliveries
from hanse.gateway.session.events import Subscription
from hanse.gateway.session.outgoing import Outgoing, Publication
from hanse.gateway.session.publication import (
    check_alias,
    identifiers,
    read_publish,
    will_delay_of,
    with_id,
    without,
    write_publish,
)
from hanse.gateway.session.received import LARGE_BYTES, LargeDigest, Received, digest
from hanse.gateway.session.requests import read_request, write_subscribe, write_unsubscribe
from hanse.gateway.session.settings import FILTERS_PER_PACKET, SUBSCRIPTIONS_MAX
from hanse.gateway.session.table import Table
from hanse.mqtt.refusal import Refusal

# --- PUBLISH ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 100, 20_000])
def test_a_publish_is_read_as_it_was_written(version: int, qos: int, size: int) -> None:
    properties = b"\x01\x01" if version == 5 else b""
    packet = write_publish(version, b"a/b", b"x" * size, qos, 7 if qos else 0, properties, retain=True)
    assert packet == p.publish(b"a/b", b"x" * size, qos, 7, version=version, retain=True, properties=properties)
    assert read_publish(packet, version) == (b"a/b", b"x" * size, qos, True, 7 if qos else 0, properties)


@pytest.mark.parametrize(
    "bad",
    [
        b"\x30\x00",
        b"\x30\x03\x00\x09a",
        b"\x32\x04\x00\x01a\x00",
        b"\x36\x06\x00\x01a\x00\x01\x00",
        b"\x30\x04\x00\x01a\x05",
    ],
)
def test_a_publish_that_ends_too_early_is_malformed(bad: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        read_publish(bad, 5)
    assert caught.value.reason_code == 0x81


def test_another_identifier_replaces_the_first_one_and_dup_goes() -> None:
    for size in (3, 300):
        before = p.publish(b"topic", bytes(size), 2, 9, dup=True)
        assert with_id(before, 513) == p.publish(b"topic", bytes(size), 2, 513)
        assert with_id(before[:40], 513) == p.publish(b"topic", bytes(size), 2, 513)[:40]


def test_a_client_may_use_neither_alias_nor_subscription_identifier() -> None:
    for properties, code in ((b"\x23\0\1", 0x94), (b"\x0b\x01", 0x82), (b"\x01\x00", 0)):
        packet = p.publish(b"t", b"", properties=properties)
        if code:
            with pytest.raises(Refusal) as caught:
                check_alias(packet, 5, len(packet))
            assert caught.value.reason_code == code
        else:
            check_alias(packet, 5, len(packet))


def test_properties_of_one_broker_are_removed_and_written() -> None:
    mixed = b"\x01\x01" + b"\x0b\x07" + b"\x26\0\1a\0\1b"
    assert without(mixed, frozenset({0x0B})) == b"\x01\x01\x26\0\1a\0\1b"
    assert identifiers([1, 300]) == b"\x0b\x01\x0b\xac\x02"
    assert will_delay_of(b"\x18\0\0\0\x05") == 5
    assert will_delay_of(b"\x01\x01") == 0


# --- exchanges towards the client -------------------------------------------------------------------------------------


def test_identifiers_stay_as_they_are_while_no_two_brokers_use_the_same() -> None:
    into = Deliveries()
    assert into.begin(7, SENT_1) == 7
    assert into.is_plain
    assert into.finish(7) == 7
    assert len(into) == 0


def test_an_identifier_of_a_lost_broker_is_not_used_until_the_client_has_answered() -> None:
    into = Deliveries()
    into.begin(7, SENT_1)
    assert into.orphan() == []
    other = into.begin(7, SENT_2)
    assert other not in {0, 7}
    assert not into.is_plain
    assert into.begin(7, SENT_2) == other, "a repetition keeps its identifier"
    assert into.finish(other) == 7
    del into.own[7]
    assert into.is_plain


def test_the_gateway_releases_publications_that_a_lost_broker_did_not() -> None:
    into = Deliveries()
    for broker_id, state in ((1, SENT_1), (2, SENT_2), (3, RECEIVED), (4, RELEASED)):
        into.begin(broker_id, state)
    assert into.orphan() == [3]
    assert into.own == {1: SENT_1, 2: SENT_2, 3: RELEASED, 4: RELEASED}
    assert not into.live


def test_own_identifiers_come_from_the_top_and_end() -> None:
    into = Deliveries()
    assert into.begin_own(SENT_1) == IDS
    assert into.begin_own(SENT_1) == IDS - 1
    into.begin(IDS - 2, SENT_1)
    assert into.begin_own(SENT_1) == IDS - 3
    for _ in range(IDS - 4):
        assert into.begin_own(SENT_1)
    assert into.begin_own(SENT_1) == 0


# --- publications of the client ---------------------------------------------------------------------------------------


def test_kept_bytes_are_counted() -> None:
    out = Outgoing()
    out.keep(1, Publication(b"x" * 10, 1))
    out.keep(1, Publication(b"x" * 4, 1))
    out.keep(2, Publication(b"x" * 5, 2))
    assert out.kept_bytes == 9
    assert out.drop(9) is None
    out.drop(1)
    assert out.kept_bytes == 5


def test_recently_acknowledged_publications_are_remembered_for_a_time_and_up_to_a_size() -> None:
    out = Outgoing()
    for at in range(5):
        out.remember(Publication(b"%d" % at * 10, 1), float(at), 35)
    out.forget_before(3.0)
    assert out.take_recent() == [(b"3" * 10, 1), (b"4" * 10, 1)]
    assert out.take_recent() == []
    for at in range(5):
        out.remember(Publication(b"%d" % at * 10, 1), float(at), 35)
    assert [packet[:1] for packet, _ in out.take_recent()] == [b"2", b"3", b"4"]


# --- subscriptions ----------------------------------------------------------------------------------------------------


def subscription(name: bytes, qos: int = 1, options: int = 1, identifier: int = 0) -> Subscription:
    return Subscription(name, qos, options, identifier)


def test_subscriptions_are_repeated_without_their_retained_messages() -> None:
    table = Table()
    table.add((subscription(b"a", 1, 0x2D), subscription(b"b", 0, 0x10, 7), subscription(b"c", 2, 0x02)), 1.0)
    assert table.to_repeat(5) == [(0, [(b"a", 0x2D), (b"c", 0x22)]), (7, [(b"b", 0x20)])]
    assert table.to_repeat(4) == [(0, [(b"a", 1), (b"c", 2)]), (7, [(b"b", 0)])]
    many = Table()
    many.add(tuple(subscription(b"%d" % k) for k in range(FILTERS_PER_PACKET * 2 + 1)), 1.0)
    assert [len(filters) for _, filters in many.to_repeat(5)] == [FILTERS_PER_PACKET, FILTERS_PER_PACKET, 1]


def test_a_filter_keeps_the_time_of_its_first_subscription_until_it_is_removed() -> None:
    table = Table()
    table.add((subscription(b"a"),), 1.0)
    table.add((subscription(b"a", 2),), 5.0)
    assert table.since == {b"a": 1.0}
    table.remove((b"a", b"unknown"))
    assert table.removed == {b"a"}
    table.add((subscription(b"a"),), 9.0)
    assert (table.since, table.removed) == ({b"a": 9.0}, set())


def test_a_replay_is_requested_only_for_filters_with_an_acknowledged_qos() -> None:
    table = Table()
    table.add((subscription(b"a", 0), subscription(b"b/#"), subscription(b"$share/g/c"), subscription(b"$SYS/x")), 1.0)
    assert table.replayable() == (b"b/#",)


def test_a_topic_finds_its_subscriptions() -> None:
    table = Table()
    table.add((subscription(b"a/#"), subscription(b"a/b", 2), subscription(b"$share/g/a/b"), subscription(b"#x")), 1.0)
    assert sorted(one.filter for one in table.matching(b"a/b")) == [b"a/#", b"a/b"]
    table.remove((b"a/#",))
    assert [one.filter for one in table.matching(b"a/b")] == [b"a/b"]
    assert table.matching(b"\xff") == []


def test_subscriptions_are_bounded() -> None:
    table = Table()
    table.add(tuple(subscription(b"%d" % k) for k in range(SUBSCRIPTIONS_MAX)), 1.0)
    with pytest.raises(Refusal) as caught:
        table.add((subscription(b"more"),), 1.0)
    assert caught.value.reason_code == 0x97


@pytest.mark.parametrize("version", [4, 5])
def test_requests_are_read_as_they_were_written(version: int) -> None:
    found = read_request(write_subscribe(9, [(b"a", 1), (b"b/+", 2)], version, 7 if version == 5 else 0), version)
    assert (found.packet_id, found.filters, found.identifier) == (9, [(b"a", 1), (b"b/+", 2)], 7 if version == 5 else 0)
    gone = read_request(write_unsubscribe(3, [b"a", b"b/+"], version), version)
    assert (gone.packet_id, gone.is_subscribe, gone.filters) == (3, False, [(b"a", 0), (b"b/+", 0)])


# --- what the client received -----------------------------------------------------------------------------------------


def test_a_digest_is_the_same_in_pieces() -> None:
    payload = bytes(range(256)) * 200
    large = LargeDigest(b"topic")
    for start in range(0, len(payload), 1000):
        large.add(payload[start : start + 1000])
    assert len(payload) > LARGE_BYTES
    assert large.value() == digest(b"topic", payload)
    assert digest(b"topi", b"c" + payload) != digest(b"topic", payload)


def test_received_digests_are_bounded_and_forgotten_by_age() -> None:
    received = Received(100)
    for at in range(101):
        received.add([at], float(at))
    assert (len(received), received.dropped) == (75, 26)
    received.forget_before(100.0)
    assert received.by_content() == {100: [100.0]}


# --- the comparison of a replay ---------------------------------------------------------------------------------------


def compare(
    replay: Sequence[tuple[float, str]],
    had: Sequence[tuple[float, str]],
    live: Sequence[tuple[float, str]] = (),
    qos: int = 2,
) -> tuple[list[tuple[float, str]], list[tuple[float, str]], dict[str, int]]:
    """Return the sent part of the replay, the dropped live publications, and the expected ones."""
    contents = sorted({one for _, one in (*replay, *had, *live)})
    known: dict[int, list[float]] = {}
    for time, content in had:
        known.setdefault(contents.index(content), []).append(time)
    made: Comparison[str, tuple[float, str]] = Comparison(known, near_s=0.5, lag_s=2.0)
    for one in live:
        made.came_live(contents.index(one[1]), one[0], one)
    for time, content in replay:
        made.add(time, contents.index(content), content, is_once=qos == 2)
    lacking, dropped = made.missing()
    sent = [(one.time, one.item) for one in lacking if one.item is not None and one.live is None]
    expected = {contents[one]: count for one, count in made.expected(8.0).items()}
    return sent, dropped, expected


def test_publications_that_the_client_has_are_removed_from_the_replay() -> None:
    assert compare([(1, "a"), (2, "b"), (3, "c")], [(1.1, "a"), (3.1, "c")]) == ([(2, "b")], [], {})


def test_a_value_that_repeats_is_counted() -> None:
    replay = [(t, "21.5") for t in range(1, 11)]
    had = [(t + 0.1, "21.5") for t in range(1, 8)]
    assert compare(replay, had) == ([(8, "21.5"), (9, "21.5"), (10, "21.5")], [], {})


def test_publications_older_than_the_replay_stand_for_nothing_in_it() -> None:
    # The retention begins between two publications of the same value; the newest one was lost.
    replay = [(t, "x") for t in (3.5, 4.5, 5.5)]
    assert compare(replay, [(2.5, "x"), (3.5, "x"), (4.5, "x")]) == ([(5.5, "x")], [], {})


def test_a_slow_client_that_got_it_late_does_not_get_it_again() -> None:
    assert compare([(1, "a")], [(9, "a")]) == ([], [], {})


def test_a_federator_that_lags_behind_repeats_nothing() -> None:
    assert compare([(3, "a")], [(1.5, "a")]) == ([], [], {})


def test_publications_that_the_new_broker_sent_meanwhile_are_not_sent_twice() -> None:
    live = [(9.1, "b"), (9.2, "c")]
    assert compare([(1, "a"), (9, "b")], [(1, "a")], live) == ([], [], {})
    assert compare([(1, "a"), (9, "b")], [(1, "a"), (9, "b")], live) == ([], [(9.1, "b")], {})
    late = [(10.8, "b")]
    assert compare([(9, "b")], [(9, "b")], late) == ([], late, {}), "the new broker lags behind"
    late = [(9.2, "b")]
    assert compare([(9, "b")], [(9, "b")], late) == ([], late, {})
    assert compare([(9, "b")], [(9, "b")], late, qos=1) == ([], [], {}), "at QoS 1 it may be another one"
    assert compare([(9, "new")], [], [(9.2, "new")], qos=1) == ([], [], {}), "a new content is the same one"
    assert compare([], [(9, "b")], live) == ([], [(9.1, "b")], {})


def test_a_value_that_repeats_is_counted_in_all_three() -> None:
    replay = [(t / 10, "x") for t in range(80, 95)]
    had = [(t / 10, "x") for t in range(80, 86)]
    live = [(t / 10 + 0.01, "x") for t in range(92, 98)]
    sent, dropped, expected = compare(replay, had, live)
    assert (len(sent), dropped, expected) == (15 - 6 - 3, [], {})


def test_a_publication_missing_in_the_replay_is_expected_once() -> None:
    replay = [(7, "a"), (7.5, "a")]
    had = [(7, "a"), (7.5, "a"), (9, "a"), (9, "b"), (2, "old")]
    assert compare(replay, had, [(9.5, "live")]) == ([], [], {"a": 1, "b": 1})


def test_a_publication_that_may_still_come_live_is_named_if_it_does_not_repeat() -> None:
    made: Comparison[str, str] = Comparison({}, near_s=0.5, lag_s=2.0)
    for time, content in ((1, 1), (8.7, 2), (9.0, 3), (9.1, 3), (9.2, 4), (9.3, 5)):
        made.add(time, content, "", is_once=content != 5)
    made.came_live(4, 9.3, "")
    made.add(2.0, 6, "", is_once=True, is_at_host=False)
    made.missing()
    assert [(one.content, one.is_once) for one in made.may_come(8.5)] == [(2, True), (5, False), (6, True)]
