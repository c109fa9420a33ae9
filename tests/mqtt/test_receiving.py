"""Publications from a peer, from their arrival until their acknowledgement."""

import pytest

from hanse.mqtt.counters import Counters
from hanse.mqtt.publication import Publication
from hanse.mqtt.receiving import Receiving
from hanse.mqtt.refusal import Refusal


def one(receiving: Receiving, packet_id: int, qos: int = 1, *, dup: bool = False, packet: bytes = b"") -> Publication:
    return Publication(packet, "t", qos, False, dup, receiving.receipt_base + packet_id if qos else 0, ())


def make(receive_max: int = 10) -> Receiving:
    receiving = Receiving(Counters(), receive_max=receive_max)
    receiving.attach(session_present=False)
    return receiving


def test_puback_and_pubrec_wait_for_the_caller() -> None:
    receiving = make()
    publications = [one(receiving, 1), one(receiving, 2, 2), one(receiving, 0, 0)]
    assert receiving.admit(publications) == (publications, b"")
    assert receiving.ack([p.receipt for p in publications]) == b"\x40\x02\x00\x01\x50\x02\x00\x02"
    assert receiving.release([2]) == b"\x70\x02\x00\x02"
    assert receiving.held == 0


def test_a_qos_2_duplicate_is_acknowledged_again_and_not_delivered() -> None:
    receiving = make()
    receiving.admit([one(receiving, 5, 2)])
    receiving.ack([receiving.receipt_base + 5])
    assert receiving.admit([one(receiving, 5, 2, dup=True)]) == ([], b"\x50\x02\x00\x05")
    receiving.release([5])
    fresh, _ = receiving.admit([one(receiving, 5, 2)])
    assert len(fresh) == 1


def test_attack_the_same_identifier_for_ever_costs_nothing() -> None:
    receiving = make()
    receiving.admit([one(receiving, 5, 2)])
    for _ in range(100_000):
        assert receiving.admit([one(receiving, 5, 2, dup=True)]) == ([], b"")
    assert receiving.held == 1


def test_an_unknown_pubrel_is_answered_with_not_found() -> None:
    assert make().release([9]) == b"\x70\x03\x00\x09\x92"


def test_a_publication_that_the_caller_holds_is_not_handed_over_twice() -> None:
    receiving = make()
    receiving.admit([one(receiving, 5), one(receiving, 6, 2)])
    receiving.detach()
    receiving.attach(session_present=True)
    assert receiving.admit([one(receiving, 5, dup=True), one(receiving, 6, 2, dup=True)]) == ([], b"")
    assert receiving.ack([receiving.receipt_base + 5]) == b"\x40\x02\x00\x05"


def test_an_ack_without_a_connection_is_sent_when_the_peer_sends_again() -> None:
    receiving = make()
    receiving.admit([one(receiving, 5), one(receiving, 6, 2), one(receiving, 7)])
    receiving.detach()
    assert receiving.ack([receiving.receipt_base + n for n in (5, 6, 7)]) == b""
    receiving.attach(session_present=True)
    again = [one(receiving, 5, dup=True), one(receiving, 6, 2, dup=True)]
    assert receiving.admit(again) == ([], b"\x40\x02\x00\x05\x50\x02\x00\x06")
    # Without DUP: the broker has forgotten the old publication and means another.
    fresh, _ = receiving.admit([one(receiving, 7)])
    assert len(fresh) == 1


def test_a_receipt_of_a_lost_session_acknowledges_nothing() -> None:
    counters = Counters()
    receiving = Receiving(counters, receive_max=10)
    receiving.attach(session_present=False)
    old = one(receiving, 5)
    receiving.admit([old])
    receiving.attach(session_present=False)
    receiving.admit([one(receiving, 5)])
    assert receiving.ack([old.receipt]) == b""
    assert counters.refusals == {"stale_receipt": 1}
    assert receiving.held == 1


def test_an_identifier_that_the_peer_uses_twice_names_two_publications() -> None:
    counters = Counters()
    receiving = Receiving(counters, receive_max=10)
    receiving.attach(session_present=True)
    first, second, third = (one(receiving, 5) for _ in range(3))
    assert receiving.admit([first]) == ([first], b"")
    assert receiving.admit([second, third]) == ([second, third], b"")
    assert receiving.held == 3
    assert counters.refusals == {"identifier_reused": 2}
    assert receiving.ack([first.receipt, 0]) == b"\x40\x02\x00\x05"
    # After a cut, the peer sends again any of those that are still held.
    assert receiving.admit([one(receiving, 5, dup=True)]) == ([], b"")
    assert receiving.ack([second.receipt, third.receipt]) == b"\x40\x02\x00\x05" * 2
    assert receiving.held == 0
    assert receiving.ack([third.receipt]) == b""
    assert counters.refusals["stale_receipt"] == 1


def test_attack_one_identifier_used_without_end_ends_the_connection() -> None:
    receiving = make(receive_max=3)
    with pytest.raises(Refusal) as caught:
        receiving.admit([one(receiving, 5) for _ in range(4)])
    assert caught.value.reason_code == 0x93


def test_attack_more_than_the_receive_maximum_ends_the_connection() -> None:
    receiving = make(receive_max=3)
    with pytest.raises(Refusal) as caught:
        receiving.admit([one(receiving, n) for n in range(1, 5)])
    assert caught.value.reason_code == 0x93


@pytest.mark.parametrize("dup", [False, True])
@pytest.mark.parametrize(("qos", "answer"), [(1, b"\x40\x02\x00\x05"), (2, b"\x50\x02\x00\x05")])
def test_a_broker_that_forgot_a_release_gives_its_identifier_to_another(qos: int, answer: bytes, dup: bool) -> None:
    """A killed broker with old state on disk reuses identifiers. A PUBREC for QoS 1 made it close every connection."""
    receiving = make()
    receiving.admit([one(receiving, 5, 2, packet=b"old")])
    receiving.ack([receiving.receipt_base + 5])
    receiving.detach()
    receiving.attach(session_present=True)
    another = one(receiving, 5, qos, dup=dup, packet=b"new")
    assert receiving.admit([another]) == ([another], b"")
    assert receiving.ack([another.receipt]) == answer


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [(2, 1, b"\x40\x02\x00\x05"), (2, 2, b"\x50\x02\x00\x05"), (1, 2, b"\x50\x02\x00\x05")],
)
def test_the_ack_of_a_publication_that_the_broker_has_forgotten_sends_nothing(
    old: int, new: int, answer: bytes
) -> None:
    receiving = make()
    receiving.admit([one(receiving, 5, old, packet=b"old")])
    receiving.detach()
    receiving.attach(session_present=True)
    another = one(receiving, 5, new, packet=b"new")
    assert receiving.admit([another]) == ([another], b"")
    assert receiving.ack([another.receipt]) == b""
    assert receiving.ack([another.receipt]) == answer


def test_a_second_publication_with_the_same_identifier_on_one_connection_is_dropped_and_counted() -> None:
    """The broker holds both, and would read the acknowledgement of the second as that of the first."""
    receiving = make()
    receiving.admit([one(receiving, 5, 2, packet=b"first")])
    assert receiving.admit([one(receiving, 5, 2, packet=b"second")]) == ([], b"")
    assert receiving._counters.drops["held_already"] == 1


def test_forgetting_twice_swallows_two_acks() -> None:
    receiving = make()
    for packet in (b"first", b"second", b"third"):
        receiving.admit([one(receiving, 5, 2, packet=packet)])
        receiving.detach()
        receiving.attach(session_present=True)
    receipt = receiving.receipt_base + 5
    assert [receiving.ack([receipt]) for _ in range(3)] == [b"", b"", b"\x50\x02\x00\x05"]
