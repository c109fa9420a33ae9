"""The session that can be moved, packet by packet: one test per rule that the simulated world does not state."""

import pytest
from tests.gateway import packets as p

from hanse.gateway.session import BrokerLimits, Counters, Session, Settings, Subscription, new_session
from hanse.gateway.session.events import (
    Accepted,
    BrokerRefused,
    BrokerWanted,
    Close,
    CloseBroker,
    Ended,
    MoveAsked,
    ReadyToMove,
    Redial,
    ReplayWanted,
    Settled,
    Subscribed,
)
from hanse.gateway.session.replayed import Replayed, read_replayed
from hanse.gateway.session.settings import LATE_BYTES_MAX, RESTORE_TIMEOUT_S

GOODBYE = b"\xe0\x00"
WILL = (b"w", b"gone", 1)


def taken(out: list[bytes]) -> bytes:
    found = b"".join(out)
    out.clear()
    return found


def holds_client(session: Session) -> bool:
    return session.holds_client


def holds_broker(session: Session) -> bool:
    return session.holds_broker


def events(session: Session) -> list[object]:
    found: list[object] = [*session.events]
    session.events.clear()
    return found


def live(version: int = 5, options: Settings | None = None, limits: bytes = b"", **more: object) -> Session:
    session = new_session(options or Settings(), Counters(), 0.0)
    session.start(p.connect(version, **more), b"", 0.0)  # type: ignore[arg-type]
    session.attach(0.0)
    session.broker_data(p.connack(version, properties=limits), 0.1)
    for out in (session.to_client, session.to_broker, session.events):
        out.clear()
    return session


def subscribed(session: Session, *filters: tuple[bytes, int], version: int = 5) -> None:
    session.client_data(p.subscribe(9, *filters, version=version), 0.2)
    session.broker_data(p.suback(9, *(options & 3 for _, options in filters), version=version), 0.2)
    for out in (session.to_client, session.to_broker, session.events):
        out.clear()


def moved(session: Session, version: int = 5, now: float = 1.0) -> bytes:
    """Take a session to another broker, up to its SUBACK; return the bytes for that broker after CONNECT."""
    session.detach(now)
    session.attach(now)
    session.to_broker.clear()
    session.broker_data(p.connack(version), now)
    return taken(session.to_broker)


def replayed(*packets: bytes, time: float = 0.9) -> list[Replayed]:
    found = [read_replayed(packet, time) for packet in packets]
    return [one for one in found if one is not None]


# --- CONNECT and CONNACK ----------------------------------------------------------------------------------------------


def test_no_broker_gets_the_will_and_no_alias_is_allowed() -> None:
    session = new_session(Settings(), Counters(), 0.0)
    session.start(p.connect(5, will=WILL, properties=b"\x22\0\x05"), b"", 0.0)
    session.attach(0.0)
    assert taken(session.to_broker) == p.connect(5, properties=b"\x22\0\0").packet


def test_the_client_gets_the_promises_that_every_broker_keeps() -> None:
    session = new_session(Settings(), Counters(), 0.0)
    session.start(p.connect(5), b"", 0.0)
    session.attach(0.0, BrokerLimits(receive_max=10, keep_alive_s=30))
    session.broker_data(p.connack(5, properties=b"\x21\0\x14\x22\0\x0a\x24\x01"), 0.1)
    assert taken(session.to_client) == p.connack(5, properties=b"\x13\0\x1e\x21\0\x0a\x24\x01")
    assert events(session) == [Accepted(session_present=False)]


def test_a_broker_that_offers_less_than_was_promised_is_left() -> None:
    session = live(limits=b"\x21\0\x14")
    session.detach(1.0)
    session.attach(1.0)
    session.broker_data(p.connack(5, properties=b"\x21\0\x05"), 1.1)
    (found,) = events(session)
    assert isinstance(found, BrokerRefused)
    assert (found.code, found.is_final) == (0x9B, False)
    assert "Receive Maximum 5" in found.text
    assert session.is_moving


def test_a_client_gets_the_refusal_of_its_repeated_connect() -> None:
    session = live()
    session.detach(1.0)
    session.attach(1.0)
    session.broker_data(p.connack(5, 0x87), 1.1)
    assert taken(session.to_client) == p.disconnect(0x87)
    assert events(session) == [Close(0x87, "refused_after_move")]


def test_a_client_with_enhanced_authentication_is_closed_and_not_moved() -> None:
    session = live(properties=b"\x15\0\x05SCRAM")
    session.detach(1.0)
    assert taken(session.to_client) == p.disconnect(0x8B)
    assert events(session) == [Close(0x8B, "not_movable")]


def test_a_lasting_session_of_mqtt_3_begins_empty_at_another_broker() -> None:
    session = live(4, clean=False)
    session.detach(1.0)
    session.attach(1.0)
    assert taken(session.to_broker) == p.connect(4, clean=False).packet
    # A former session is there. It is emptied by a clean connection, and then begun again.
    session.broker_data(p.connack(4, present=True), 1.1)
    assert (taken(session.to_broker), events(session)) == (GOODBYE, [Redial()])
    session.attach(1.2)
    assert taken(session.to_broker) == p.connect(4, clean=True).packet
    session.broker_data(p.connack(4), 1.3)
    assert (taken(session.to_broker), events(session)) == (GOODBYE, [Redial()])
    session.attach(1.4)
    assert taken(session.to_broker) == p.connect(4, clean=False).packet
    session.broker_data(p.connack(4), 1.5)
    assert [type(one) for one in events(session)] == [Settled]


# --- publications of the client ---------------------------------------------------------------------------------------


def test_unacknowledged_publications_are_sent_again_in_order_without_dup_before_new_ones() -> None:
    session = live()
    first, second, third = p.publish(b"t", b"1", 1, 5), p.publish(b"t", b"2", 2, 3), p.publish(b"t", b"3", 1, 4)
    session.client_data(first + second, 0.2)
    assert taken(session.to_broker) == first + second
    session.detach(1.0)
    session.client_data(third, 1.0)
    session.attach(1.1)
    session.to_broker.clear()
    session.broker_data(p.connack(5), 1.2)
    assert taken(session.to_broker) == first + second + third
    session.broker_data(p.ack(0x40, 5) + p.ack(0x50, 3), 1.3)
    assert taken(session.to_client) == p.ack(0x40, 5) + p.ack(0x50, 3)


def test_a_publication_acknowledged_a_moment_ago_is_sent_again_and_its_acknowledgement_swallowed() -> None:
    session = live()
    session.client_data(p.publish(b"t", b"old", 1, 5), 0.2)
    session.broker_data(p.ack(0x40, 5), 0.3)
    session.client_data(p.publish(b"t", b"new", 1, 6), 1.8)
    session.broker_data(p.ack(0x40, 6), 2.0)
    session.tick(2.1)
    session.to_client.clear()
    assert moved(session, now=2.5) == p.publish(b"t", b"new", 1, 65_535)
    assert session.is_moving
    session.broker_data(p.ack(0x40, 65_535), 2.6)
    assert not session.to_client
    assert not session.is_moving


def test_qos_2_that_the_client_has_released_is_finished_by_the_gateway_and_counted_as_doubtful() -> None:
    session = live()
    packet = p.publish(b"t", b"1", 2, 5)
    session.client_data(packet, 0.2)
    session.broker_data(p.ack(0x50, 5), 0.3)
    session.client_data(p.ack(0x62, 5), 0.4)
    session.to_client.clear()
    assert moved(session) == packet
    session.broker_data(p.ack(0x50, 5), 1.2)
    assert (taken(session.to_broker), taken(session.to_client)) == (p.ack(0x62, 5), b"")
    session.broker_data(p.ack(0x70, 5), 1.3)
    assert taken(session.to_client) == p.ack(0x70, 5)
    assert session.counters.moves["in_doubt"] == 1


def test_a_doubtful_publication_closes_the_client_if_configured() -> None:
    session = live(options=Settings(qos2_in_doubt="close"))
    session.client_data(p.publish(b"t", b"1", 2, 5), 0.2)
    session.broker_data(p.ack(0x50, 5), 0.3)
    session.client_data(p.ack(0x62, 5), 0.4)
    session.to_client.clear()
    moved(session)
    assert taken(session.to_client) == p.disconnect(0x8B)
    assert session.events[-1] == Close(0x8B, "in_doubt")


def test_resends_respect_the_brokers_receive_maximum() -> None:
    session = live(limits=b"\x21\0\x02")
    sent = [p.publish(b"t", b"%d" % k, 1, k) for k in (1, 2)]
    session.client_data(b"".join(sent), 0.2)
    session.broker_data(p.ack(0x40, 1) + p.ack(0x40, 2), 0.3)
    session.client_data(b"".join(sent), 0.4)
    session.to_client.clear()
    session.detach(0.5)
    session.attach(0.5)
    session.to_broker.clear()
    session.broker_data(p.connack(5, properties=b"\x21\0\x02"), 0.6)
    own = [p.publish(b"t", b"1", 1, 65_535), p.publish(b"t", b"2", 1, 65_534)]
    assert taken(session.to_broker) == b"".join(own)
    session.broker_data(p.ack(0x40, 65_535), 0.7)
    assert taken(session.to_broker) == sent[0]
    session.broker_data(p.ack(0x40, 65_534) + p.ack(0x40, 1), 0.8)
    assert taken(session.to_broker) == sent[1]


def test_a_publication_that_was_outstanding_when_two_brokers_died_goes_to_no_third_one() -> None:
    session = live()
    session.client_data(p.publish(b"t", b"deadly", 1, 5), 0.2)
    assert moved(session, now=1.0) == p.publish(b"t", b"deadly", 1, 5)
    assert moved(session, now=2.0) == b""
    assert taken(session.to_client) == p.disconnect(0x80)
    assert session.events[-1] == Close(0x80, "suspect_publication")
    assert session.counters.drops == {"suspect": 1}


def test_an_orderly_move_waits_for_acknowledgements_and_sends_nothing_again() -> None:
    session = live(properties=b"\x11\0\0\0\x3c")
    session.client_data(p.publish(b"t", b"1", 1, 5), 0.2)
    session.broker_data(p.ack(0x40, 5), 0.3)
    session.client_data(p.publish(b"t", b"2", 1, 6), 0.4)
    session.to_broker.clear()
    session.begin_move(0.5)
    session.client_data(p.publish(b"t", b"3", 1, 7), 0.6)
    assert not session.to_broker, "new packets wait"
    assert not session.events
    session.broker_data(p.ack(0x40, 6), 0.7)
    assert events(session) == [ReadyToMove()]
    assert session.detach(0.8) == b"\xe0\x07\x00\x05\x11\0\0\0\0", "the old session ends"
    session.attach(0.9)
    session.to_broker.clear()
    session.broker_data(p.connack(5), 1.0)
    assert taken(session.to_broker) == p.publish(b"t", b"3", 1, 7)


def test_an_orderly_move_does_not_wait_for_ever() -> None:
    session = live()
    session.client_data(p.publish(b"t", b"1", 1, 5), 0.2)
    session.begin_move(0.5)
    session.tick(2.4)
    assert not session.events
    session.tick(2.6)
    assert events(session) == [ReadyToMove()]
    assert session.counters.moves == {"not_settled": 1}


def test_a_half_sent_qos_0_publication_is_dropped_and_the_next_packet_is_not_a_part_of_it() -> None:
    session = live(options=Settings(hold_bytes=100))
    large = p.publish(b"t", bytes(300))
    session.client_data(large[:150], 0.2)
    assert taken(session.to_broker) == large[:150]
    assert session.detach(1.0) == b"", "a goodbye would be a part of the packet"
    session.attach(1.1)
    session.to_broker.clear()
    after = p.publish(b"t", b"after")
    session.client_data(large[150:] + after, 1.2)
    session.broker_data(p.connack(5), 1.3)
    assert taken(session.to_broker) == after
    assert session.counters.drops == {"half_sent": 1}


def test_a_publication_that_is_too_large_to_keep_closes_its_client_when_the_broker_dies() -> None:
    session = live(options=Settings(hold_bytes=100, kept_bytes_max=200))
    large = p.publish(b"t", bytes(300), 1, 7)
    session.client_data(large[:150], 0.2)
    session.client_data(large[150:], 0.2)
    assert taken(session.to_broker) == large
    session.detach(1.0)
    assert session.events[-1] == Close(0x8B, "not_movable")


def test_such_a_publication_is_forgotten_once_it_is_acknowledged() -> None:
    session = live(options=Settings(hold_bytes=100, kept_bytes_max=200))
    large = p.publish(b"t", bytes(300), 1, 7)
    session.client_data(large[:150], 0.2)
    session.client_data(large[150:], 0.2)
    session.broker_data(p.ack(0x40, 7), 0.3)
    assert taken(session.to_client) == p.ack(0x40, 7)
    session.detach(1.0)
    assert not session.events


def test_the_client_is_not_read_while_too_much_waits() -> None:
    session = live(options=Settings(kept_bytes_max=1_000))
    for k in range(1, 5):
        session.client_data(p.publish(b"t", bytes(300), 1, k), 0.2)
    assert holds_client(session)
    session.broker_data(p.ack(0x40, 1) + p.ack(0x40, 2), 0.3)
    assert not holds_client(session)
    session.detach(1.0)
    for _ in range(300):
        session.client_data(p.publish(b"t", bytes(1_000)), 1.0)
    assert holds_client(session)


# --- publications for the client --------------------------------------------------------------------------------------


def test_the_replay_comes_first_and_without_publications_that_the_client_has() -> None:
    session = live()
    subscribed(session, (b"t/#", 2))
    session.broker_data(p.publish(b"t/1", b"had", 1, 1), 0.9)
    session.client_data(p.ack(0x40, 1), 0.9)
    session.to_client.clear()
    assert moved(session) == p.subscribe(65_535, (b"t/#", 0x22))
    session.broker_data(p.suback(65_535, 2), 1.1)
    (wanted,) = events(session)
    assert isinstance(wanted, ReplayWanted)
    assert wanted.filters == (b"t/#",)
    session.broker_data(p.publish(b"t/1", b"live", 2, 4), 1.2)
    session.client_data(p.publish(b"x", b"waits"), 1.2)
    assert (taken(session.to_client), taken(session.to_broker)) == (b"", b"")
    session.replayed(replayed(p.publish(b"t/1", b"had", 1), p.publish(b"t/2", b"missed", 2)), 1.3)
    session.replay_ended(1.3, True)
    assert taken(session.to_client) == p.publish(b"t/2", b"missed", 2, 65_535) + p.publish(b"t/1", b"live", 2, 4)
    assert taken(session.to_broker) == p.publish(b"x", b"waits")
    (settled,) = events(session)
    assert isinstance(settled, Settled)
    assert (settled.replayed, settled.removed) == (1, 1)
    # The gateway finishes the exchange of a publication that it sent itself.
    session.client_data(p.ack(0x50, 65_535), 1.4)
    assert (taken(session.to_client), taken(session.to_broker)) == (p.ack(0x62, 65_535), b"")
    session.client_data(p.ack(0x70, 65_535), 1.5)
    assert (taken(session.to_client), taken(session.to_broker)) == (b"", b"")


def test_a_replayed_publication_has_the_granted_qos_and_the_clients_subscription_identifiers() -> None:
    session = live()
    session.client_data(p.subscribe(9, (b"t/#", 1), properties=b"\x0b\x07"), 0.2)
    session.broker_data(p.suback(9, 1), 0.2)
    session.to_client.clear()
    moved(session)
    session.broker_data(p.suback(65_535, 1), 1.1)
    # Another broker's identifier is of no use here, and RETAIN is 0 for a subscription that was there before.
    made = p.publish(b"t/1", b"x", 2, 1, retain=True, properties=b"\x0b\x05\x03\0\1c")
    session.replayed(replayed(made), 1.3)
    session.replay_ended(1.3, True)
    assert taken(session.to_client) == p.publish(b"t/1", b"x", 1, 65_535, properties=b"\x03\0\1c\x0b\x07")


def test_a_publication_from_before_the_subscription_is_not_replayed() -> None:
    session = live()
    session.client_data(p.subscribe(9, (b"t/#", 1)), 10.0)
    session.broker_data(p.suback(9, 1), 10.0)
    session.to_client.clear()
    moved(session, now=11.0)
    session.broker_data(p.suback(65_535, 1), 11.0)
    session.replayed(replayed(p.publish(b"t/1", b"before", 1), time=8.0), 11.1)
    session.replayed(replayed(p.publish(b"t/1", b"after", 1), time=10.5), 11.1)
    session.replay_ended(11.1, True)
    assert taken(session.to_client) == p.publish(b"t/1", b"after", 1, 65_535)


def test_the_clients_own_publications_are_not_replayed_under_no_local() -> None:
    session = live()
    subscribed(session, (b"t", 0x05))
    session.client_data(p.publish(b"t", b"own", 1, 3), 0.8)
    session.broker_data(p.ack(0x40, 3), 0.8)
    session.tick(2.5)
    session.to_client.clear()
    moved(session, now=2.6)
    session.broker_data(p.suback(65_535, 1), 2.7)
    session.replayed(replayed(p.publish(b"t", b"own", 1), p.publish(b"t", b"other", 1)), 2.8)
    session.replay_ended(2.8, True)
    assert taken(session.to_client) == p.publish(b"t", b"other", 1, 65_535)


def test_retained_messages_of_a_repeated_subscription_are_swallowed_before_mqtt_5() -> None:
    session = live(4)
    subscribed(session, (b"t/#", 1), version=4)
    assert moved(session, 4) == p.subscribe(65_535, (b"t/#", 1), version=4)
    session.broker_data(p.suback(65_535, 1, version=4), 1.1)
    session.replay_ended(1.1, False)
    session.broker_data(p.publish(b"t/1", b"old", 1, 1, version=4, retain=True), 1.2)
    session.broker_data(p.publish(b"t/1", b"old", 2, 2, version=4, retain=True), 1.2)
    assert (taken(session.to_client), taken(session.to_broker)) == (b"", p.ack(0x40, 1) + p.ack(0x50, 2))
    session.broker_data(p.ack(0x62, 2), 1.3)
    assert (taken(session.to_client), taken(session.to_broker)) == (b"", p.ack(0x70, 2))
    # The client's own subscription brings them again.
    session.client_data(p.subscribe(4, (b"t/#", 1), version=4), 1.4)
    session.broker_data(p.suback(4, 1, version=4), 1.4)
    taken(session.to_client)
    retained = p.publish(b"t/1", b"old", 1, 3, version=4, retain=True)
    session.broker_data(retained, 1.5)
    assert taken(session.to_client) == retained


def test_a_filter_that_another_broker_refuses_closes_the_client() -> None:
    session = live()
    subscribed(session, (b"t/#", 1))
    moved(session)
    session.broker_data(p.suback(65_535, 0x87), 1.1)
    assert taken(session.to_client) == p.disconnect(0x87)
    assert events(session) == [Close(0x87, "filter_refused_after_move")]


def test_an_unanswered_request_of_the_client_is_repeated_with_its_identifier() -> None:
    session = live()
    request = p.subscribe(9, (b"t/#", 1))
    session.client_data(request, 0.2)
    assert moved(session) == request
    session.broker_data(p.suback(9, 1), 1.2)
    assert taken(session.to_client) == p.suback(9, 1)
    assert events(session)[-1] == Subscribed(9, (Subscription(b"t/#", 1, 1, 0),))


def test_a_large_publication_goes_in_pieces_and_closes_the_client_if_the_broker_dies_inside() -> None:
    session = live(options=Settings(hold_bytes=100))
    subscribed(session, (b"t", 1))
    large = p.publish(b"t", bytes(300), 1, 7)
    for start in range(0, len(large), 50):
        session.broker_data(large[start : start + 50], 0.3)
    assert taken(session.to_client) == large
    session.broker_data(large[:150], 0.4)
    assert taken(session.to_client) == large[:150]
    session.detach(1.0)
    assert not session.to_client, "nothing can be said inside a packet"
    assert events(session) == [Close(0x8B, "cut_packet")]


def test_smaller_packets_go_whole_so_a_dying_broker_leaves_nothing_unfinished() -> None:
    session = live()
    packet = p.publish(b"t", bytes(1_000), 1, 7)
    session.broker_data(packet[:700], 0.3)
    assert not session.to_client
    moved(session)
    assert not session.to_client
    assert session.is_accepted


def test_a_large_publication_waits_for_the_replay() -> None:
    session = live(options=Settings(hold_bytes=100))
    subscribed(session, (b"t", 1))
    moved(session)
    session.broker_data(p.suback(65_535, 1), 1.1)
    large = p.publish(b"t", bytes(300), 1, 7)
    session.broker_data(large[:200], 1.2)
    assert holds_broker(session)
    session.replayed(replayed(p.publish(b"t", b"missed", 1)), 1.3)
    session.replay_ended(1.3, True)
    assert taken(session.to_client) == p.publish(b"t", b"missed", 1, 65_535) + large[:200]
    assert not holds_broker(session)
    session.broker_data(large[200:], 1.4)
    assert taken(session.to_client) == large[200:]


def test_publications_that_wait_for_the_replay_are_bounded() -> None:
    session = live()
    subscribed(session, (b"t", 1))
    moved(session)
    session.broker_data(p.suback(65_535, 1), 1.1)
    size = 60_000
    for k in range(1, LATE_BYTES_MAX // size + 2):
        assert not holds_broker(session)
        session.broker_data(p.publish(b"t", bytes(size), 1, k), 1.2)
    assert holds_broker(session)
    session.tick(1.1 + Settings().replay_timeout_s + 0.1)
    assert not holds_broker(session)
    assert len(taken(session.to_client)) > LATE_BYTES_MAX
    assert session.counters.moves["replay_incomplete"] == 1


# --- DISCONNECT, pings, time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0x8B, 0x9C, 0x9D])
def test_a_broker_that_sends_its_clients_away_moves_them(code: int) -> None:
    session = live()
    session.broker_data(p.disconnect(code), 0.3)
    assert events(session) == [MoveAsked(code)]
    assert not session.to_client


def test_any_other_disconnect_reaches_the_client() -> None:
    session = live()
    session.broker_data(p.disconnect(0x95), 0.3)
    session.broker_lost(0.4)
    assert taken(session.to_client) == p.disconnect(0x95)
    assert events(session) == [Close(0x88, "closed_by_broker")]


def test_the_gateway_answers_pings_while_there_is_no_broker() -> None:
    session = live()
    session.client_data(b"\xc0\x00", 0.2)
    assert taken(session.to_broker) == b"\xc0\x00"
    session.detach(1.0)
    assert taken(session.to_client) == b"\xd0\x00", "the lost broker's answer"
    session.client_data(b"\xc0\x00", 1.1)
    assert taken(session.to_client) == b"\xd0\x00"


def test_the_gateway_pings_for_the_broker_and_watches_the_client_itself() -> None:
    session = live(limits=b"\x13\0\x0a")
    session.tick(5.0)
    assert not session.to_broker
    session.tick(5.2)
    assert taken(session.to_broker) == b"\xc0\x00"
    session.client_data(b"\xc0\x00", 5.3)
    session.broker_data(b"\xd0\x00\xd0\x00", 5.4)
    assert taken(session.to_client) == b"\xd0\x00", "the first one was the gateway's own"
    session.tick(20.4)
    assert taken(session.to_client) == p.disconnect(0x8D)
    assert events(session) == [Close(0x8D, "keep_alive")]


def test_a_broker_that_does_not_answer_connect_or_subscribe_is_left() -> None:
    session = live()
    subscribed(session, (b"t", 1))
    for now, answers in ((1.0, b""), (20.0, p.connack(5))):
        session.detach(now)
        session.attach(now)
        session.broker_data(answers, now)
        session.tick(now + RESTORE_TIMEOUT_S + 0.1)
        (found,) = events(session)
        assert isinstance(found, BrokerRefused)
        assert not found.is_final
        assert session.is_moving


# --- wills ------------------------------------------------------------------------------------------------------------


def test_a_client_that_dies_has_its_will_published_through_its_session() -> None:
    session = live(will=WILL)
    session.client_lost(1.0)
    assert taken(session.to_broker) == p.publish(b"w", b"gone", 1, 65_535)
    assert not session.events
    session.broker_data(p.publish(b"t", b"ignored", 1, 4) + p.ack(0x40, 65_535), 1.1)
    assert taken(session.to_broker) == GOODBYE
    assert events(session) == [CloseBroker(), Ended("published")]


def test_a_goodbye_cancels_the_will_unless_it_asks_for_it() -> None:
    for goodbye, told, will in ((GOODBYE, GOODBYE, "none"), (b"\xe0\x01\x04", b"\xe0\x01\x00", "published")):
        session = live(will=(b"w", b"gone", 0))
        session.client_data(goodbye, 1.0)
        assert events(session) == [Close(0, "goodbye")]
        session.client_lost(1.1)
        published = p.publish(b"w", b"gone") if will == "published" else b""
        assert taken(session.to_broker) == published + told
        assert events(session) == [CloseBroker(), Ended(will)]


def test_a_will_waits_for_its_delay_and_is_cancelled_by_a_later_connection() -> None:
    for taken_over in (False, True):
        session = live(will=(b"w", b"gone", 0), will_properties=b"\x18\0\0\0\x05", properties=b"\x11\0\0\0\x3c")
        session.client_lost(1.0)
        session.tick(5.9)
        assert not session.to_broker
        if taken_over:
            session.broker_data(p.disconnect(0x8E), 5.95)
            assert events(session)[-1] == Ended("cancelled")
        else:
            session.tick(6.1)
            assert taken(session.to_broker) == p.publish(b"w", b"gone") + GOODBYE
            assert events(session)[-1] == Ended("published")


def test_a_will_is_published_at_another_broker_when_its_own_is_lost() -> None:
    session = live(will=WILL)
    session.client_lost(1.0)
    session.to_broker.clear()
    session.detach(1.1)
    assert session.is_moving
    session.attach(1.2)
    assert taken(session.to_broker) == p.connect(5, properties=b"\x11\0\0\0\0\x22\0\0").packet
    session.broker_data(p.connack(5), 1.3)
    assert taken(session.to_broker) == p.publish(b"w", b"gone", 1, 65_535)
    session.broker_data(p.ack(0x40, 65_535), 1.4)
    assert events(session)[-1] == Ended("published")


def test_a_client_that_its_broker_ends_has_its_will_published_elsewhere() -> None:
    session = live(will=WILL)
    session.broker_data(p.disconnect(0x95), 0.9)
    session.broker_lost(1.0)
    assert events(session) == [Close(0x88, "closed_by_broker")]
    session.client_lost(1.0)
    assert events(session) == [BrokerWanted()]


def test_a_client_that_another_connection_replaces_has_no_will() -> None:
    session = live(will=WILL)
    session.broker_data(p.disconnect(0x8E), 0.9)
    session.broker_lost(1.0)
    session.client_lost(1.0)
    assert events(session)[-1] == Ended("cancelled")


def test_a_will_that_no_broker_takes_is_lost_and_counted() -> None:
    session = live(will=WILL)
    session.client_lost(1.0)
    for _ in range(3):
        session.broker_lost(1.1)
        assert events(session) == [BrokerWanted()]
        session.attach(1.2)
    session.broker_lost(1.3)
    assert events(session)[-1] == Ended("lost")


def test_a_will_stays_with_the_broker_if_configured() -> None:
    session = new_session(Settings(will="broker"), Counters(), 0.0)
    session.start(p.connect(5, will=WILL), b"", 0.0)
    session.attach(0.0)
    assert taken(session.to_broker) == p.connect(5, will=WILL, properties=b"\x22\0\0").packet
    session.broker_data(p.connack(5), 0.1)
    session.client_lost(1.0)
    assert events(session)[-1] == Ended("broker")


def test_a_repetition_at_qos_1_is_delivered_and_counted_and_at_qos_2_removed() -> None:
    session = live()
    subscribed(session, (b"t/#", 2))
    moved(session)
    session.broker_data(p.suback(65_535, 2), 1.1)
    once, twice = p.publish(b"t/1", b"once", 2), p.publish(b"t/1", b"twice", 1)
    session.replayed(replayed(once, twice), 1.3)
    session.replay_ended(1.3, True)
    taken(session.to_client)
    session.broker_data(p.publish(b"t/1", b"once", 2, 1) + p.publish(b"t/1", b"twice", 1, 2), 1.5)
    assert taken(session.to_client) == p.publish(b"t/1", b"twice", 1, 2)
    assert session.counters.moves["repeated"] == session.counters.moves["removed"] == 1


def test_a_client_that_has_no_broker_for_long_is_counted() -> None:
    session = live()
    session.detach(1.0)
    session.attach(3.1)
    session.broker_data(p.connack(5), 3.2)
    assert session.counters.moves["attached_late"] == 1


def test_a_client_that_dies_inside_a_large_packet_has_its_will_published_by_another_connection() -> None:
    session = live(options=Settings(hold_bytes=100), will=WILL)
    large = p.publish(b"t", bytes(300))
    session.client_data(large[:150], 0.2)
    session.to_broker.clear()
    session.client_lost(1.0)
    assert not session.to_broker, "it would be a part of the packet"
    assert events(session) == [CloseBroker(), BrokerWanted()]
    session.attach(1.1)
    session.to_broker.clear()
    session.broker_data(p.connack(5), 1.2)
    assert taken(session.to_broker) == p.publish(b"w", b"gone", 1, 65_535)


def test_a_will_that_is_published_in_passing_leaves_a_lasting_session_as_it_is() -> None:
    session = live(4, clean=False, will=WILL)
    session.broker_lost(1.0)
    session.client_lost(1.0)
    session.attach(1.1)
    assert taken(session.to_broker) == p.connect(4, clean=False).packet
    session.broker_data(p.connack(4, present=True) + p.publish(b"t", b"queued", 1, 3, version=4), 1.2)
    assert taken(session.to_broker) == p.publish(b"w", b"gone", 1, 65_535, version=4)
    session.broker_data(p.ack(0x40, 65_535), 1.3)
    assert taken(session.to_broker) == GOODBYE


def test_a_replay_that_is_too_large_is_cut_counted_and_not_complete() -> None:
    session = live()
    subscribed(session, (b"t/#", 1))
    moved(session)
    session.broker_data(p.suback(65_535, 1), 1.1)
    size = 1 << 20
    session.replayed(replayed(*[p.publish(b"t/%d" % k, bytes(size), 1) for k in range(9)]), 1.2)
    session.replay_ended(1.2, True)
    assert session.counters.drops == {"replay_overflow": 2}
    assert session.counters.moves["replay_incomplete"] == 1
