"""Wanted filters, and the packets that tell the broker about them."""

from typing import Any

import mqtt5
import pytest

from hanse.errors import LocalError
from hanse.mqtt import codec
from hanse.mqtt.refusal import Refusal
from hanse.mqtt.subscriptions import Subscription, Subscriptions


def said(data: bytes) -> list[tuple[str, int | None, list[str], int]]:
    found: list[tuple[str, int | None, list[str], int]] = []
    while data:
        packet, used = mqtt5.read(memoryview(data))
        data = data[used:]
        if isinstance(packet, mqtt5.SubscribePacket):
            filters = [item.pattern for item in packet.topic_filters]
            found.append(("+", packet.subscription_id, filters, packet.packet_id))
        elif isinstance(packet, mqtt5.UnsubscribePacket):
            found.append(("-", None, packet.patterns, packet.packet_id))
    return found


def answer_all(subscriptions: Subscriptions, data: bytes, code: int = 0) -> bytes:
    for kind, _, filters, packet_id in said(data):
        subscriptions.answer(packet_id, kind == "+", [code] * len(filters))
    return subscriptions.proceed()


def test_options_reach_the_wire() -> None:
    subscriptions = Subscriptions()
    subscriptions.attach(session_present=False)
    packet = codec.decode(subscriptions.subscribe([Subscription("a/#", qos=1, identifier=9)]))
    assert isinstance(packet, mqtt5.SubscribePacket)
    found = packet.topic_filters[0]
    assert (found.pattern, int(found.max_qos), found.no_local, found.retain_as_published) == ("a/#", 1, True, True)
    assert int(found.retain_handling) == 2
    assert packet.subscription_id == 9


def test_filters_share_a_packet_only_when_they_share_an_identifier() -> None:
    subscriptions = Subscriptions()
    subscriptions.attach(session_present=False)
    items = [Subscription("a", identifier=1), Subscription("b", identifier=1), Subscription("c", identifier=2)]
    assert [(i, f) for _, i, f, _ in said(subscriptions.subscribe(items))] == [(1, ["a", "b"]), (2, ["c"])]


def test_the_same_filter_wanted_twice_is_subscribed_once() -> None:
    subscriptions = Subscriptions()
    subscriptions.attach(session_present=False)
    subscriptions.subscribe([Subscription("a")])
    assert subscriptions.subscribe([Subscription("a")]) == b""
    assert said(subscriptions.subscribe([Subscription("a", qos=0)]))


def test_after_a_reconnect_only_the_difference_is_sent() -> None:
    subscriptions = Subscriptions()
    subscriptions.attach(session_present=False)
    answer_all(subscriptions, subscriptions.subscribe([Subscription("a"), Subscription("b"), Subscription("c")]))
    subscriptions.detach()
    subscriptions.subscribe([Subscription("d")])
    subscriptions.unsubscribe(["a"])
    found = said(subscriptions.attach(session_present=True))
    assert [(kind, filters) for kind, _, filters, _ in found] == [("+", ["d"]), ("-", ["a"])]


def test_requests_under_way_at_a_cut_are_sent_again() -> None:
    subscriptions = Subscriptions()
    subscriptions.attach(session_present=False)
    subscriptions.subscribe([Subscription("a")])
    subscriptions.subscribe([Subscription("b")])
    subscriptions.unsubscribe(["b"])
    subscriptions.detach()
    found = said(subscriptions.attach(session_present=True))
    assert [(kind, filters) for kind, _, filters, _ in found] == [("+", ["a"]), ("-", ["b"])]


def test_a_lost_session_is_subscribed_to_every_wanted_filter_and_nothing_else() -> None:
    subscriptions = Subscriptions()
    subscriptions.attach(session_present=False)
    answer_all(subscriptions, subscriptions.subscribe([Subscription("a"), Subscription("b")]))
    subscriptions.detach()
    subscriptions.unsubscribe(["a"])
    found = said(subscriptions.attach(session_present=False))
    assert [(kind, filters) for kind, _, filters, _ in found] == [("+", ["b"])]


def test_a_filter_of_a_former_process_is_also_unsubscribed() -> None:
    subscriptions = Subscriptions()
    subscriptions.unsubscribe(["old/#"])
    assert [kind for kind, *_ in said(subscriptions.attach(session_present=True))] == ["-"]
    assert [kind for kind, *_ in said(subscriptions.unsubscribe(["older"]))] == ["-"]


def test_a_refused_filter_is_reported_and_requested_again_only_after_a_reconnect() -> None:
    subscriptions = Subscriptions()
    subscriptions.attach(session_present=False)
    (_, _, _, packet_id), *_ = said(subscriptions.subscribe([Subscription("a")]))
    assert subscriptions.answer(packet_id, True, [0x87]) == [(Subscription("a"), 0x87)]
    assert not subscriptions.is_granted("a")
    assert subscriptions.proceed() == b""
    assert said(subscriptions.attach(session_present=True))


def test_requests_under_way_never_exceed_the_reserved_identifiers() -> None:
    subscriptions = Subscriptions()
    subscriptions.attach(session_present=False)
    first = subscriptions.subscribe([Subscription(f"t/{n}", identifier=n + 1) for n in range(3000)])
    seen: list[str] = []
    rounds = 0
    while first:
        found = said(first)
        assert len(found) <= 1024
        assert all(64_512 <= packet_id <= 65_535 for *_, packet_id in found)
        seen += [filters[0] for _, _, filters, _ in found]
        rounds += 1
        first = answer_all(subscriptions, first)
    assert seen == [f"t/{n}" for n in range(3000)]
    assert rounds == 3
    assert subscriptions.is_settled


def test_an_answer_without_a_request_is_a_protocol_error() -> None:
    subscriptions = Subscriptions()
    subscriptions.attach(session_present=False)
    (_, _, _, packet_id), *_ = said(subscriptions.subscribe([Subscription("a")]))
    for bad in ((packet_id + 1, True, [0]), (packet_id, False, [0]), (packet_id, True, [0, 0])):
        with pytest.raises(Refusal):
            subscriptions.answer(*bad)
        subscriptions.attach(session_present=False)


@pytest.mark.parametrize("pattern", ["", "a#", "#/a", "a+/b", "a\0", "x" * 65_536])
def test_an_invalid_filter_is_a_local_error(pattern: str) -> None:
    with pytest.raises(LocalError):
        Subscription(pattern)


def test_other_wrong_settings_are_local_errors() -> None:
    wrong: list[dict[str, Any]] = [{"qos": 3}, {"retain_handling": 3}, {"identifier": 0}, {"identifier": 2**28}]
    for settings in wrong:
        with pytest.raises(LocalError):
            Subscription("a", **settings)
    with pytest.raises(LocalError, match="No Local"):
        Subscription("$share/g/a")
    assert Subscription("$share/g/a", no_local=False).filter == "$share/g/a"
