"""The tap between a client and its session: it splits requests and inserts deliveries; identifiers never collide."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.gateway import packets as p

from hanse.gateway.session.publication import read_publish
from hanse.gateway.session.stream import end_of
from hanse.gateway.share.tap import PUBACK, PUBREC, Asked, ShareTap, is_share


class Brokers:
    """Requests and messages to the serving brokers."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.acknowledged: list[tuple[int, int, int]] = []

    def share_requested(self, tap: ShareTap, asked: Asked) -> None:  # noqa: ARG002 - one tap
        self.asked.append(asked)

    def acknowledge(self, kind: int, broker_id: int, code: int) -> None:
        self.acknowledged.append((kind, broker_id, code))


def split(data: bytes) -> list[bytes]:
    found, i = [], 0
    while i < len(data):
        end = end_of(data, i, len(data))
        assert end, data[i:]
        found.append(data[i:end])
        i = end
    return found


def written(tap: ShareTap) -> list[bytes]:
    out = b"".join(tap.to_client)
    tap.to_client.clear()
    return split(out)


def test_requests_are_split_and_answered_in_the_clients_order() -> None:
    brokers = Brokers()
    tap = ShareTap(5, 65_535, brokers)
    wanted = p.subscribe(7, (b"a", 1), (b"$share/g/x/#", 2), (b"b", 0), (b"$share/g/y", 1))
    assert tap.from_client(wanted) == p.subscribe(7, (b"a", 1), (b"b", 0))
    (asked,) = brokers.asked
    assert [(k, one, options & 3) for k, one, options in asked.shares] == [
        (1, b"$share/g/x/#", 2),
        (3, b"$share/g/y", 1),
    ]
    tap.answered(asked, [2, 0x87])
    assert not tap.to_client
    tap.from_session([b"\x90\x05\x00\x07\x00\x01\x00"])
    assert written(tap) == [b"\x90\x07\x00\x07\x00\x01\x02\x00\x87"]


def test_request_of_share_filters_alone_does_not_reach_the_session() -> None:
    brokers = Brokers()
    tap = ShareTap(4, 0, brokers)
    data = p.subscribe(3, (b"$share/g/x", 1), version=4)
    assert tap.from_client(data) == b""
    tap.answered(brokers.asked[0], [0x87])
    assert written(tap) == [b"\x90\x03\x00\x03\x80"]
    assert tap.from_client(b"\xa2\x0e\x00\x04\x00\x0a$share/g/x") == b""
    tap.answered(brokers.asked[1], [0])
    assert written(tap) == [b"\xb0\x02\x00\x04"]


@pytest.mark.parametrize(
    "pattern", [b"$share/g", b"$share//x", b"$share/g/", b"$share/+/x", b"$shared/g/x", b"a/$share/g"]
)
def test_other_filters_are_left_to_the_broker(pattern: bytes) -> None:
    assert not is_share(pattern)
    tap = ShareTap(5, 65_535, Brokers())
    data = p.subscribe(1, (pattern, 1))
    assert tap.from_client(data) == data


@pytest.mark.parametrize(("qos", "acks", "told"), [(1, [0x40], PUBACK), (2, [0x50, 0x70], PUBREC)])
def test_delivery_is_acknowledged_at_its_broker_and_not_at_the_session(qos: int, acks: list[int], told: int) -> None:
    brokers = Brokers()
    tap = ShareTap(5, 65_535, brokers)
    tap.deliver(brokers, p.publish(b"x", b"hi", qos, 5), qos, 5)
    (packet,) = written(tap)
    found = read_publish(packet, 5)
    assert (found.topic, found.payload, found.qos) == (b"x", b"hi", qos)
    assert found.packet_id == 65_535
    for kind in acks:
        assert tap.from_client(bytes((kind, 2)) + found.packet_id.to_bytes(2, "big")) == b""
    assert brokers.acknowledged == [(told, 5, 0)]
    assert written(tap) == ([b"\x62\x02\xff\xff"] if qos == 2 else [])
    assert tap.waiting == 0


def test_publication_of_the_session_with_an_identifier_in_use_waits_for_it() -> None:
    brokers = Brokers()
    tap = ShareTap(5, 65_535, brokers)
    tap.deliver(brokers, p.publish(b"x", b"1", 1, 5), 1, 5)
    written(tap)
    same = p.publish(b"y", b"2", 1, 65_535)
    tap.from_session([same, b"\xd0\x00"])
    assert (tap.to_client, tap.holds_broker) == ([], True)
    assert tap.from_client(b"\x40\x02\xff\xff") == b""
    assert (written(tap), tap.holds_broker) == ([same, b"\xd0\x00"], False)
    assert tap.from_client(b"\x40\x02\xff\xff") == b"\x40\x02\xff\xff"


def test_nothing_is_put_into_a_large_packet() -> None:
    tap = ShareTap(5, 65_535, Brokers())
    large = p.publish(b"y", bytes(100_000), 1, 1)
    tap.from_session([large[:60_000]])
    tap.deliver(None, p.publish(b"x", b"1", 1, 5), 1, 5)
    tap.deliver(None, p.publish(b"x", b"0"), 0, 0)
    tap.from_session([large[60_000:]])
    assert [read_publish(packet, 5).topic for packet in written(tap)] == [b"y", b"x", b"x"]


def test_lost_broker_and_lost_client_leave_undelivered_publications() -> None:
    brokers = Brokers()
    tap = ShareTap(5, 2, brokers)
    for number in range(1, 5):
        tap.deliver(brokers, p.publish(b"x", bytes((number,)), 1, number), 1, number)
    assert len(written(tap)) == 2
    tap.link_lost(brokers)
    tap.from_client(b"\x40\x02\xff\xff")
    assert not brokers.acknowledged
    assert [read_publish(one.packet, 5).payload for one in tap.undelivered()] == [b"\x02", b"\x03", b"\x04"]


_STEPS = st.one_of(
    st.tuples(st.just("share"), st.integers(0, 2)),
    st.tuples(st.just("session"), st.integers(0, 2), st.sampled_from([1, 2, 65_535, 65_534, 65_533])),
    st.tuples(st.just("ack"), st.integers(0, 10)),
    st.tuples(st.just("ping")),
)


class Client:
    """A client that checks identifiers and its Receive Maximum, behind a broker that keeps to it."""

    def __init__(self, receive_max: int, cut: int) -> None:
        self.brokers = Brokers()
        self.tap = ShareTap(5, receive_max, self.brokers)
        self.receive_max = receive_max
        self.cut = cut
        # At the client: identifier to QoS, and whether PUBREC has gone.
        self.seen: dict[int, tuple[int, bool]] = {}
        self.at_session: set[int] = set()
        self.sent: list[bytes] = []
        self.got: list[bytes] = []

    def share(self, payload: bytes, qos: int) -> None:
        self.sent.append(payload)
        number = len(self.sent)
        self.tap.deliver(self.brokers, p.publish(b"s", payload, qos, number), qos, number)
        self.read()

    def session(self, payload: bytes, qos: int, packet_id: int) -> None:
        if qos:
            if packet_id in self.at_session or len(self.at_session) >= self.receive_max or self.tap.holds_broker:
                return
            self.at_session.add(packet_id)
        self.sent.append(payload)
        data = p.publish(b"t", payload, qos, packet_id)
        self.tap.from_session([data[k : k + self.cut] for k in range(0, len(data), self.cut)])
        self.read()

    def read(self) -> None:
        for packet in written(self.tap):
            kind = packet[0] & 0xF0
            if kind == 0x30:
                one = read_publish(packet, 5)
                self.got.append(one.payload)
                if one.qos:
                    assert one.packet_id not in self.seen, "an identifier in use"
                    self.seen[one.packet_id] = one.qos, False
                    assert len(self.seen) <= self.receive_max, "beyond the Receive Maximum"
            elif kind == 0x60:
                packet_id = int.from_bytes(packet[2:4], "big")
                assert self.seen[packet_id] == (2, True)
                self._answer(0x70, packet_id)

    def acknowledge(self, packet_id: int) -> None:
        self._answer(0x40 if self.seen[packet_id][0] == 1 else 0x50, packet_id)

    def _answer(self, kind: int, packet_id: int) -> None:
        if kind == 0x50:
            self.seen[packet_id] = 2, True
        else:
            del self.seen[packet_id]
        data = bytes((kind, 2)) + packet_id.to_bytes(2, "big")
        for packet in split(b"".join(self.tap.from_client(data[k : k + 1]) for k in range(4))):
            if packet[0] == 0x50:
                self.tap.from_session([b"\x62\x02" + packet[2:4]])
            else:
                self.at_session.remove(int.from_bytes(packet[2:4], "big"))
        self.read()


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(_STEPS, max_size=40), st.integers(1, 4), st.integers(1, 30), st.randoms(use_true_random=False))
def test_client_sees_a_stream_that_mqtt_allows_and_every_broker_its_acknowledgements(
    steps: list[Any], receive_max: int, cut: int, random: Any
) -> None:
    client = Client(receive_max, cut)
    for number, step in enumerate(steps):
        match step:
            case ["share", qos]:
                client.share(b"%d" % number, qos)
            case ["session", qos, packet_id]:
                client.session(b"%d" % number, qos, packet_id)
            case ["ping"]:
                client.tap.from_session([b"\xd0\x00"])
                client.read()
            case _ if client.seen:
                client.acknowledge(random.choice(sorted(client.seen)))
    while client.seen:
        client.acknowledge(min(client.seen))
    assert sorted(client.got) == sorted(client.sent)
    assert not client.at_session
    assert client.tap.waiting == 0
    told = [broker_id for _, broker_id, _ in client.brokers.acknowledged]
    assert len(told) == len(set(told)) == sum(1 for step in steps if step[0] == "share" and step[1])
