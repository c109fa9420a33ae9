"""Publications to a peer, until their acknowledgement."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.errors import LocalError, Unavailable
from hanse.mqtt import publication
from hanse.mqtt.counters import Counters
from hanse.mqtt.limits import PUBLISH_ID_MAX
from hanse.mqtt.publication import encode
from hanse.mqtt.refusal import Refusal
from hanse.mqtt.sending import Sending


class Wire:
    """Bytes that left, as packets."""

    def __init__(self) -> None:
        self.data = b""
        self.waiting = 0

    def write(self, data: bytes | bytearray) -> None:
        self.data += data

    def take(self) -> list[tuple[str, int, int, bool]]:
        """Return (kind or payload, QoS, packet identifier, DUP) of the packets written since the last call."""
        data, self.data = self.data, b""
        found: list[tuple[str, int, int, bool]] = []
        i = 0
        while i < len(data):
            end = i + 2 + data[i + 1]
            if data[i] >> 4 == 3:
                at = publication._id_at(data, i)
                qos = data[i] >> 1 & 3
                packet_id = data[at] << 8 | data[at + 1] if qos else 0
                body = data[at + (3 if qos else 1) : end].decode()
                found.append((body, qos, packet_id, data[i] & 8 == 8))
            else:
                found.append(("PUBREL", 0, data[i + 2] << 8 | data[i + 3], False))
            i = end
        return found


def make(wire: Wire, receive_max: int = 100) -> Sending:
    sending = Sending(Counters())
    sending.attach(wire.write, lambda: wire.waiting, receive_max=receive_max)
    return sending


def run(*payloads: str, qos: int = 1) -> bytes:
    return b"".join(encode("t", payload.encode(), qos=qos) for payload in payloads)


def test_a_run_of_qos_0_is_written_unchanged() -> None:
    wire = Wire()
    sending = make(wire)
    data = run("a", "b", qos=0)
    assert sending.publish_run(data, qos=0) == 0
    assert wire.data == data
    assert sending.held == 0
    assert sending.publish_run(b"") == 0
    assert (sending.held, wire.data) == (0, data)


def test_a_mixed_run_keeps_its_order_and_numbers_only_what_is_acknowledged() -> None:
    wire = Wire()
    sending = make(wire)
    first = sending.publish_run(run("a", qos=0) + run("b", qos=1) + run("c", qos=0) + run("d", qos=2))
    assert wire.take() == [("a", 0, 0, False), ("b", 1, 1, False), ("c", 0, 0, False), ("d", 2, 2, False)]
    assert first == 1
    assert sending.acknowledge([1]) == [1]
    assert sending.received([2]) == b"\x62\x02\x00\x02"
    assert sending.complete([2]) == [2]
    assert (sending.held, sending.held_bytes, sending.in_flight) == (0, 0, 0)


def test_the_peers_receive_maximum_is_kept() -> None:
    wire = Wire()
    sending = make(wire, receive_max=3)
    sending.publish_run(run("a", "b", "c", "d", "e", "f", "g"))
    assert [body for body, *_ in wire.take()] == ["a", "b", "c"]
    assert sending.acknowledge([1, 2]) == [1, 2]
    sending.proceed()
    assert [body for body, *_ in wire.take()] == ["d", "e"]
    assert sending.acknowledge([3, 4, 5]) == [3, 4, 5]
    sending.proceed()
    assert [(body, packet_id) for body, _, packet_id, _ in wire.take()] == [("f", 6), ("g", 7)]


def test_qos_2_counts_against_the_window_until_pubcomp() -> None:
    wire = Wire()
    sending = make(wire, receive_max=1)
    sending.publish_run(run("a", "b", qos=2))
    sending.received([1])
    sending.proceed()
    assert [body for body, *_ in wire.take()] == ["a"]
    assert sending.complete([1]) == [1]
    sending.proceed()
    assert [body for body, *_ in wire.take()] == ["b"]


def test_unacknowledged_publications_are_sent_again_in_order_with_dup_after_a_reconnect() -> None:
    wire = Wire()
    sending = make(wire)
    sending.publish_run(run("a", "b", "c"))
    sending.publish_run(run("d", "e", qos=2))
    sending.acknowledge([2])
    sending.received([4])
    sending.detach()
    wire.take()
    assert sending.publish_run(run("f")) == 6
    assert wire.take() == []
    sending.attach(wire.write, lambda: 0, receive_max=100, session_present=True)
    assert wire.take() == [
        ("a", 1, 1, True),
        ("c", 1, 3, True),
        ("e", 2, 5, True),
        ("PUBREL", 0, 4, False),
        ("f", 1, 6, False),
    ]
    assert sending.acknowledge([1, 3, 6]) == [1, 3, 6]


def test_a_lost_session_resends_without_dup_and_reports_what_is_unknown() -> None:
    wire = Wire()
    sending = make(wire)
    sending.publish_run(run("a", "b", qos=2))
    sending.publish_run(run("c"))
    sending.received([1])
    sending.detach()
    wire.take()
    sending.attach(wire.write, lambda: 0, receive_max=100, session_present=False)
    assert [(body, dup) for body, _, _, dup in wire.take()] == [("b", False), ("c", False)]
    assert sending.take_outcomes() == [(1, 0x92)]
    assert sending.held == 2
    assert sending.acknowledge([sending._next_id - 1]) == [3]


def test_qos_0_is_dropped_and_counted_without_a_connection_and_behind_a_slow_peer() -> None:
    counters = Counters()
    wire = Wire()
    sending = Sending(counters, write_bytes_max=1000)
    sending.publish_run(run("a", qos=0), qos=0)
    sending.attach(wire.write, lambda: wire.waiting, receive_max=10)
    wire.waiting = 1001
    sending.publish_run(run("b", "c", qos=0))
    sending.publish_run(run("d", qos=0) + run("e", qos=1))
    assert counters.drops == {"disconnected": 1, "slow_peer": 3}
    assert [body for body, *_ in wire.take()] == ["e"]


@pytest.mark.parametrize("limits", [{"packets_max": 4}, {"bytes_max": 30}])
def test_without_credit_a_run_is_refused_as_a_whole_and_credit_is_announced_at_half(limits: dict[str, int]) -> None:
    told: list[int] = []
    wire = Wire()
    sending = Sending(Counters(), **limits, on_credit=lambda: told.append(sending.credit))  # type: ignore[arg-type]
    sending.attach(wire.write, lambda: 0, receive_max=100)
    sending.publish_run(run("a", "b", "c", "d"))
    assert sending.credit == 0
    with pytest.raises(Unavailable, match="credit"):
        sending.publish_run(run("x", qos=0) + run("y"))
    assert len(wire.take()) == 4
    sending.acknowledge([1])
    sending.proceed()
    assert told == []
    sending.acknowledge([2, 3, 4])
    sending.proceed()
    assert len(told) == 1
    assert told[0] > 0
    sending.publish_run(run("y"))


def test_an_unmatched_acknowledgement_is_counted_and_one_of_the_wrong_kind_is_a_protocol_error() -> None:
    counters = Counters()
    sending = Sending(counters)
    sending.attach(Wire().write, lambda: 0, receive_max=10)
    sending.publish_run(run("a") + run("b", qos=2))
    assert sending.acknowledge([9]) == []
    assert sending.complete([9]) == []
    assert sending.received([9]) == b"\x62\x03\x00\x09\x92"
    assert sending.refuse(9, qos=1) == 0
    assert counters.refusals == {"unknown_acknowledgement": 4}
    with pytest.raises(Refusal, match="PUBREC was expected"):
        sending.acknowledge([2])
    with pytest.raises(Refusal, match="PUBACK was expected"):
        sending.received([1])


def test_a_publication_that_the_peer_refuses_is_given_up() -> None:
    sending = make(Wire())
    sending.publish_run(run("a", "b"))
    assert sending.refuse(1, qos=1) == 1
    assert sending.held == 1
    assert sending.acknowledge([2]) == [2]
    assert sending.held_bytes == 0


def test_publications_beyond_the_peers_limits_are_adapted_or_given_up() -> None:
    wire = Wire()
    told: list[int] = []
    sending = Sending(Counters(), on_outcomes=lambda: told.append(1))
    sending.attach(wire.write, lambda: 0, receive_max=9, packet_bytes_max=20, qos_max=1, retain_available=False)
    data = encode("t", b"a", qos=2, retain=True) + encode("t", b"x" * 50, qos=1) + encode("t", b"c", qos=1)
    assert sending.publish_run(data) == 1
    assert wire.data[0] == 0x32
    assert [(body, qos) for body, qos, *_ in wire.take()] == [("a", 1), ("c", 1)]
    assert told == [1]
    assert sending.take_outcomes() == [(2, 0x95)]
    assert sending.acknowledge([1, 2]) == [1, 3]
    assert sending.held_bytes == 0
    sending.detach()
    assert sending.publish_run(encode("t", b"d", qos=1)) == 4
    sending.attach(wire.write, lambda: 0, receive_max=9, qos_max=0)
    assert [(body, qos) for body, qos, *_ in wire.take()] == [("d", 0)]
    assert sending.take_outcomes() == [(4, 0)]
    assert sending.held == 0


def test_the_journal_records_identifiers_before_publish_and_receipt_before_pubrel() -> None:
    events: list[object] = []
    sending = Sending(
        Counters(),
        on_assigned=lambda *what: events.append(("assigned", *what)),
        on_received=lambda pairs: events.append(("received", pairs)),
    )
    sending.attach(lambda data: events.append(data[:1].hex()), lambda: 0, receive_max=9)
    sending.publish_run(run("a", "b", qos=2))
    sending.received([1, 2])
    assert events == [("assigned", 1, 1, 2), "34", ("received", [(1, 1), (2, 2)])]


def test_the_state_of_a_former_process_is_resumed() -> None:
    wire = Wire()
    sending = Sending(Counters())
    assert sending.resume([(7, encode("t", b"a", qos=2)), (9, None)]) == [1, 2]
    with pytest.raises(LocalError, match="call it first"):
        sending.resume([(1, None)])
    sending.attach(wire.write, lambda: 0, receive_max=10, session_present=True)
    sending.publish_run(run("b"))
    assert wire.take() == [("a", 2, 7, True), ("PUBREL", 0, 9, False), ("b", 1, 10, False)]
    assert sending.complete([9]) == [2]


class Peer:
    """Peer that acknowledges in any order, one step at a time."""

    def __init__(self, wire: Wire, sending: Sending) -> None:
        self.wire = wire
        self.sending = sending
        self.has: dict[int, tuple[str, int]] = {}
        self.received: set[int] = set()
        self.done: list[tuple[int, str]] = []

    def listen(self) -> None:
        for body, qos, packet_id, _dup in self.wire.take():
            if qos:
                assert self.has.get(packet_id, (body, qos)) == (body, qos), (
                    "an identifier was used for two publications"
                )
                self.has[packet_id] = (body, qos)

    def answer(self, packet_id: int) -> None:
        body, qos = self.has[packet_id]
        if qos == 2 and packet_id not in self.received:
            self.sending.received([packet_id])
            self.received.add(packet_id)
            return
        self.received.discard(packet_id)
        del self.has[packet_id]
        finish = self.sending.acknowledge if qos == 1 else self.sending.complete
        self.done += [(number, body) for number in finish([packet_id])]
        self.sending.proceed()


@given(st.data())
@settings(max_examples=examples(60))
def test_nothing_is_lost_or_renumbered_over_reconnects_and_wraps(data: st.DataObject) -> None:
    wire = Wire()
    sending = Sending(Counters())
    sending._next_id = data.draw(st.sampled_from([1, 64_505]))
    receive_max = data.draw(st.integers(1, 12))
    sending.attach(wire.write, lambda: 0, receive_max=receive_max)
    peer = Peer(wire, sending)
    sent: list[tuple[int, str]] = []
    for turn in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["publish", "answer", "cut"]))
        if step == "publish":
            bodies = [(f"m{turn}.{i}", qos) for i, qos in enumerate(data.draw(st.lists(st.integers(0, 2), max_size=6)))]
            first = sending.publish_run(b"".join(encode("t", body.encode(), qos=qos) for body, qos in bodies))
            sent += [(first + i, body) for i, body in enumerate(body for body, qos in bodies if qos)]
        elif step == "cut":
            sending.detach()
            sending.attach(wire.write, lambda: 0, receive_max=receive_max, session_present=True)
        peer.listen()
        assert len(peer.has) <= receive_max
        if step == "answer" and peer.has:
            peer.answer(data.draw(st.sampled_from(sorted(peer.has))))
    while sending.held:
        peer.listen()
        for packet_id in sorted(peer.has):
            peer.answer(packet_id)
    assert sorted(peer.done) == sent
    assert (sending.held_bytes, sending.in_flight, len(sending._sent)) == (0, 0, 0)


def test_a_peer_that_reconnects_with_narrower_limits_gets_only_what_fits() -> None:
    counters = Counters()
    wire = Wire()
    sending = Sending(counters)
    sending.attach(wire.write, lambda: 0, receive_max=2)
    first = sending.publish_run(run("a", "x" * 60, "b", "y" * 60, "c"))
    sending.detach()
    wire.take()
    sending.attach(wire.write, lambda: 0, receive_max=2, packet_bytes_max=30, session_present=True)
    assert [(body, dup) for body, _, _, dup in wire.take()] == [("a", True), ("b", False)]
    assert sending.take_outcomes() == [(first + 1, 0x95), (first + 3, 0x95)]
    assert counters.drops == {"too_large_for_peer": 2}
    assert sending.acknowledge([1]) == [first]
    sending.proceed()
    assert [body for body, *_ in wire.take()] == ["c"]
    assert sending.held == 2


def test_identifiers_in_use_are_skipped_and_the_last_is_followed_by_the_first() -> None:
    wire = Wire()
    sending = make(wire)
    sending._next_id = 64_510
    sending.publish_run(run("a", "b", "c", "d"))
    assert [packet_id for _, _, packet_id, _ in wire.take()] == [64_510, 64_511, 1, 2]
    sending._next_id = 64_509
    sending.publish_run(run("e", "f", "g"))
    assert [packet_id for _, _, packet_id, _ in wire.take()] == [64_509, 3, 4]
    assert sending.acknowledge([1, 2, 3, 4, 64_509, 64_510, 64_511]) == [3, 4, 6, 7, 5, 1, 2]


def test_a_resumed_identifier_that_is_repeated_or_out_of_range_is_refused() -> None:
    for entries in ([(0, None)], [(64_512, None)], [(1, None), (1, None)]):
        with pytest.raises(LocalError, match="cannot be resumed"):
            Sending(Counters()).resume(entries)


@given(st.integers(8, 30), st.data())
def test_a_read_of_acknowledgements_settles_each_of_them_once(count: int, data: st.DataObject) -> None:
    wire = Wire()
    sending = make(wire)
    first = sending.publish_run(run(*(f"{n:02}" for n in range(count))), qos=1)
    more = sending.publish_run(run("x", "y"), qos=1)
    wire.take()
    ids = data.draw(st.lists(st.integers(1, count + 4), max_size=3 * count))
    numbers = sending.acknowledge(ids)
    known = [packet_id for k, packet_id in enumerate(ids) if packet_id <= count + 2 and packet_id not in ids[:k]]
    assert numbers == [first + packet_id - 1 for packet_id in known]
    assert more == first + count
    assert sending.held == count + 2 - len(known)


def test_a_puback_for_qos_2_leaves_the_acknowledgements_before_it_for_a_repeat() -> None:
    wire = Wire()
    sending = make(wire)
    sending.publish_run(run("a") + run("b", qos=2) + run("c"))
    with pytest.raises(Refusal, match="which is of QoS 2"):
        sending.acknowledge([2, 3])
    assert sending.acknowledge([3]) == [3]


# --- publications of a former process that are sent again -------------------------------------------------------------


def test_a_reserved_identifier_is_for_nobody_else() -> None:
    wire = Wire()
    sending = make(wire)
    sending.reserve([2, 3])
    sending.publish_run(run("a", "b", "c"))
    assert [(body, packet_id) for body, _, packet_id, _ in wire.take()] == [("a", 1), ("b", 4), ("c", 5)]


def test_a_repeated_publication_goes_out_under_its_reserved_identifier_with_dup() -> None:
    wire = Wire()
    assigned: list[tuple[int, int, int]] = []
    sending = Sending(Counters(), on_assigned=lambda *told: assigned.append(told))
    sending.reserve([7, 9])
    sending.attach(wire.write, lambda: 0, receive_max=10)
    assert sending.publish_again(run("a", "b", "c", qos=2), [9, 0, 7]) == 1
    assert wire.take() == [("a", 2, 9, True), ("b", 2, 1, False), ("c", 2, 7, True)]
    assert assigned == [(1, 9, 1), (2, 1, 1), (3, 7, 1)]
    assert (sending.held, sending.in_flight, sending.next_number) == (3, 3, 4)
    sending.received([9, 1, 7])
    assert sending.complete([7, 9, 1]) == [3, 1, 2]
    assert (sending.held, sending.held_bytes, sending.in_flight) == (0, 0, 0)


def test_a_reserved_identifier_is_free_after_its_acknowledgement() -> None:
    wire = Wire()
    sending = make(wire)
    sending.reserve([1])
    sending.publish_again(run("a", qos=2), [1])
    sending.publish_run(run("b"))
    sending.received([1])
    sending.complete([1])
    sending.acknowledge([2])
    wire.take()
    sending._next_id = 1  # as after using all identifiers once
    sending.publish_run(run("c"))
    assert [packet_id for _, _, packet_id, _ in wire.take()] == [1]


def test_a_publication_repeated_before_any_connection_goes_out_with_the_first_one() -> None:
    wire = Wire()
    sending = Sending(Counters())
    sending.reserve([7])
    sending.publish_again(run("a", "b", qos=2), [7, 0])
    assert wire.take() == []
    sending.attach(wire.write, lambda: 0, receive_max=10, session_present=True)
    assert wire.take() == [("a", 2, 7, True), ("b", 2, 1, False)]


def test_a_repeated_publication_is_new_to_a_peer_that_has_lost_the_session() -> None:
    wire = Wire()
    assigned: list[tuple[int, int, int]] = []
    sending = Sending(Counters(), on_assigned=lambda *told: assigned.append(told))
    sending.reserve([7])
    sending.publish_again(run("a", qos=2), [7])
    sending.attach(wire.write, lambda: 0, receive_max=10, session_present=False)
    assert wire.take() == [("a", 2, 1, False)]
    assert assigned == [(1, 7, 1), (1, 1, 1)]


def test_repeated_publications_wait_for_credit_as_a_whole() -> None:
    wire = Wire()
    told: list[int] = []
    sending = Sending(Counters(), packets_max=2, on_credit=lambda: told.append(1))
    sending.attach(wire.write, lambda: 0, receive_max=10)
    sending.reserve([7])
    sending.publish_run(run("a", "b"))
    wire.take()
    with pytest.raises(Unavailable, match="Wait for credit"):
        sending.publish_again(run("c", "d", qos=2), [7, 0])
    assert (wire.take(), sending.next_number, sending.held) == ([], 3, 2)
    sending.acknowledge([1, 2])
    sending.proceed()
    assert told == [1]
    # A single run may exceed the limit.
    assert sending.publish_again(run("c", "d", "e", qos=2), [7, 0, 0]) == 3
    assert [body for body, *_ in wire.take()] == ["c", "d", "e"]


def test_a_repeated_publication_that_is_too_large_for_the_peer_is_reported_as_refused() -> None:
    wire = Wire()
    told: list[int] = []
    sending = Sending(Counters(), on_outcomes=lambda: told.append(1))
    sending.attach(wire.write, lambda: 0, receive_max=10, packet_bytes_max=20)
    sending.reserve([7])
    assert sending.publish_again(run("a", "b" * 30, qos=2), [7, 0]) == 1
    assert wire.take() == [("a", 2, 7, True)]
    assert (told, sending.take_outcomes()) == ([1], [(2, 0x95)])


def test_a_queue_stops_when_only_reserved_identifiers_are_left() -> None:
    """With all identifiers but three reserved, the fourth publication waits, whatever the peer's window is."""
    wire = Wire()
    sending = make(wire, receive_max=65_535)
    sending.reserve(range(4, PUBLISH_ID_MAX + 1))
    sending.publish_run(run("a", "b", "c", "d"))
    assert [packet_id for _, _, packet_id, _ in wire.take()] == [1, 2, 3]
    sending.acknowledge([2])
    sending.proceed()
    assert [(body, packet_id) for body, _, packet_id, _ in wire.take()] == [("d", 2)]
