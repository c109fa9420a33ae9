"""Two books of links by broker against each other; both brokers are a list of publications."""

import asyncio
from typing import cast

import pytest

from hanse.errors import RemoteError, Unavailable
from hanse.federator import broker_link, links_by_broker
from hanse.federator.broker_link import Kind
from hanse.federator.links import CONTROL_TOPIC, DATA_TOPIC
from hanse.federator.links_by_broker import BrokerLinkBook, _Neighbour
from hanse.mqtt.client import Client, ClientSettings
from hanse.mqtt.counters import Counters
from hanse.mqtt.link import Frame
from hanse.mqtt.publication import Publication, encode, qos_of, topic_of
from hanse.protocol import codec
from hanse.protocol.messages import Announcement, ControlFrame, SetDelta, Summary


class BrokerSession:
    """Session at a neighbour's broker, and the broker: publications stay there until they are read."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.is_full = False
        self.is_slow = False
        self.is_aborted = False
        self.counters = Counters()

    def publish_run(self, run: bytes, *, qos: int | None = None, count: int | None = None) -> int:
        if self.is_full:
            raise Unavailable("full")
        assert count == 1
        assert qos == qos_of(run)
        if self.is_slow and not qos:
            self.counters.drop("slow_peer")
            return 0
        self.packets.append(run)
        return 1

    @property
    def credit(self) -> int:
        return 0 if self.is_full else 1

    def abort(self) -> None:
        self.is_aborted = True


class Federator:
    def __init__(self, identity: int, neighbour: int) -> None:
        self.identity, self.other = identity, neighbour
        self.epoch = 100 * identity
        self.frames: list[Frame] = []
        self.taken: list[int] = []
        self.up: list[int] = []
        self.down: list[int] = []
        self.acks_at_once = True
        self.book = BrokerLinkBook(
            identity,
            ClientSettings("mqtt://127.0.0.1", f"hanse-{identity}"),
            epoch=lambda: self.epoch,
            on_up=self.up.append,
            on_down=self.down.append,
            on_frames=self._take,
            on_taken=self._note_taken,
            client_id_at=lambda other: f"hanse-{identity}-at-{other}",
        )
        settings = ClientSettings("mqtt://127.0.0.1", f"hanse-{identity}-at-{neighbour}")
        self.neighbour = self.book._neighbours[neighbour] = _Neighbour(self.book, neighbour, settings)
        self.session = BrokerSession()
        self.neighbour.client = cast("Client", self.session)

    def _take(self, neighbour: int, frames: list[Frame]) -> None:
        self.frames += frames
        if self.acks_at_once:
            for frame in frames:
                self.book.ack(neighbour, frame.receipt)

    def _note_taken(self, neighbour: int, tokens: list[int]) -> None:
        assert neighbour == self.other
        self.taken += tokens

    def send(self, token: int, payload: bytes = b"\x01\x02") -> bool:
        return self.book.send_data(self.other, payload, 1, token)

    def hear_from(self, other: "Federator") -> list[str]:
        """Handle the other one's publications at our broker; return the topics."""
        packets, other.session.packets = other.session.packets, []
        for packet in packets:
            assert self.hear(topic_of(packet), packet)
        return [topic_of(packet) for packet in packets]

    def hear(self, topic: str, packet: bytes, *, retain: bool = False) -> bool:
        return self.book.hear(Publication(packet, topic, qos_of(packet), retain, False, 0, (1,)))


@pytest.fixture
def pair() -> tuple[Federator, Federator]:
    async def make() -> tuple[Federator, Federator]:
        one, two = Federator(1, 2), Federator(2, 1)
        one.neighbour.on_connected(False)
        two.neighbour.on_connected(False)
        return one, two

    return asyncio.run(make())


Pair = tuple[Federator, Federator]


def test_a_link_is_up_while_the_session_at_the_neighbours_broker_is_connected(pair: Pair) -> None:
    one, _ = pair
    assert one.up == [2]
    one.neighbour.on_disconnected(None)
    one.neighbour.on_disconnected(None)  # a failed attempt is not a second end
    assert one.down == [2]


def test_there_is_capacity_while_the_neighbours_broker_accepts_frames(pair: Pair) -> None:
    one, _ = pair
    assert one.book.has_room(2)
    assert not one.book.has_room(3)
    one.session.is_full = True
    assert not one.book.has_room(2)
    one.session.is_full = False
    one.neighbour.on_disconnected(None)
    assert not one.book.has_room(2)


def test_control_frames_go_to_the_topics_of_the_papers(pair: Pair) -> None:
    one, two = pair
    one.book.send_control(2, ControlFrame(1, 100, 1, 0, 0, announcements=(Announcement(1, 100, 1, 0, 0),)))
    one.book.send_control(2, ControlFrame(1, 100, 2, 0, 0, memberships=SetDelta(1, 0, 0, ())))
    assert two.hear_from(one) == ["federator/core_ann/2/1", "federator/memb_ann/2/1"]
    assert [frame.topic for frame in two.frames] == [CONTROL_TOPIC] * 2


def test_a_token_is_reported_with_the_neighbours_acknowledgement(pair: Pair) -> None:
    one, two = pair
    assert one.send(7)
    assert two.hear_from(one) == ["federator/routing/2/1"]
    assert (two.frames[0].topic, two.frames[0].payload) == (DATA_TOPIC, b"\x01\x02")
    assert (one.taken, one.book.owed(2)) == ([], 1)
    assert one.hear_from(two) == ["federator/ack/1/2"]
    assert (one.taken, one.book.owed(2)) == ([7], 0)


def test_summaries_are_sent_and_acknowledged_like_data_frames(pair: Pair) -> None:
    one, two = pair
    payload = codec.encode_summaries((Summary("g", 1_000),))
    assert one.send(7, payload)
    two.hear_from(one)
    assert [(frame.topic, frame.payload) for frame in two.frames] == [(DATA_TOPIC, payload)]
    one.hear_from(two)
    assert one.taken == [7]


def test_a_data_frame_of_qos_0_requests_no_acknowledgement(pair: Pair) -> None:
    one, two = pair
    assert one.book.send_data(2, b"\x01\x02", 1, 0)
    two.hear_from(one)
    assert two.frames[0].receipt == 0
    assert two.session.packets == []


def test_an_acknowledgement_for_a_former_run_is_ignored(pair: Pair) -> None:
    one, two = pair
    one.send(7)
    (payload,) = broker_link.encode_acknowledgements(one.epoch - 1, [1])
    topic = broker_link.topic_for(Kind.ACKNOWLEDGEMENT, 1, 2)
    one.hear(topic, encode(topic, payload))
    assert one.taken == []
    two.hear_from(one)
    one.hear_from(two)
    assert one.taken == [7]


def test_raising_the_epoch_within_a_run_keeps_frames_under_way(pair: Pair) -> None:
    one, two = pair
    one.send(7)
    one.epoch += 1
    one.send(8)
    two.hear_from(one)
    one.hear_from(two)
    assert one.taken == [7, 8]


def test_attack_an_acknowledgement_of_an_unsent_number_has_no_effect(pair: Pair) -> None:
    one, _ = pair
    one.send(7)
    (payload,) = broker_link.encode_acknowledgements(one.epoch, [9, 10])
    topic = broker_link.topic_for(Kind.ACKNOWLEDGEMENT, 1, 2)
    one.hear(topic, encode(topic, payload))
    assert not any(one.taken)
    assert one.book.owed(2) == 1


def test_frames_that_the_session_cannot_accept_are_counted_unless_they_have_a_token(pair: Pair) -> None:
    """A frame with a token is in custody and is sent again."""
    one, _ = pair
    one.session.is_full = True
    assert one.send(7)
    assert one.book.owed(2) == 0
    assert not one.book.send_data(2, b"\x01\x02", 4, 0)
    assert one.book.drops == {"link_full": 4}


def test_drops_for_a_slow_broker_are_counted_by_publications(pair: Pair) -> None:
    one, _ = pair
    one.session.is_slow = True
    assert one.send(7)
    assert not one.book.send_data(2, b"\x01\x02", 4, 0)
    assert (one.book.drops, len(one.session.packets)) == ({"link_full": 4}, 1)
    assert one.book.send_control(2, ControlFrame(1, 100, 1, 0, 0)) == 0
    assert one.book.drops == {"link_full": 4, "control_link_full": 1}


def test_frames_that_are_never_acknowledged_are_held_within_a_limit(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest are forgotten, and sent again under other numbers."""
    monkeypatch.setattr(links_by_broker, "_OWED_MAX", 3)
    one, two = pair
    assert all(one.send(token) for token in (11, 12, 13, 14, 15))
    assert one.book.owed(2) == 3
    two.hear_from(one)
    one.hear_from(two)
    assert [token for token in one.taken if token] == [13, 14, 15]


def test_frames_under_way_at_the_end_of_the_session_are_up_to_the_protocol(pair: Pair) -> None:
    one, two = pair
    one.send(7)
    one.neighbour.on_disconnected(None)
    assert (one.taken, one.book.owed(2), one.book.drops) == ([], 0, {})
    assert not one.send(8)
    assert one.book.drops == {"link_down": 1}
    two.hear_from(one)
    one.neighbour.on_connected(True)
    assert one.send(9)
    one.hear_from(two)  # of the previous session: its number is not that of token 9
    assert not any(one.taken)
    assert one.book.owed(2) == 1


def test_a_neighbour_with_a_new_epoch_owes_nothing(pair: Pair) -> None:
    """Its session is new: frames that waited at its broker are gone, and our session there did not notice."""
    one, _ = pair
    one.book.note_epoch(2, 200)
    one.send(7)
    one.book.note_epoch(2, 200)
    assert one.book.owed(2) == 1
    one.book.note_epoch(2, 201)
    assert (one.book.owed(2), one.taken) == (0, [])


def test_acknowledgements_for_a_neighbours_former_run_are_not_sent(pair: Pair) -> None:
    one, two = pair
    two.acks_at_once = False
    two.book.note_epoch(1, 100)
    one.send(7)
    two.hear_from(one)
    two.book.note_epoch(1, 101)
    two.book.ack(1, two.frames[0].receipt)
    assert two.session.packets == []


def test_a_neighbour_that_is_lost_or_left_owes_nothing(pair: Pair) -> None:
    one, _ = pair
    one.send(7)
    one.book.forgive(2)
    assert one.book.owed(2) == 0
    one.send(8)
    one.book.note_left(2)
    assert (one.book.owed(2), one.taken) == (0, [])
    one.book.forgive(9)
    one.book.note_left(9)
    one.book.note_epoch(9, 1)
    assert one.book.owed(9) == 0


def test_a_neighbour_that_left_and_is_back_is_up_again(pair: Pair) -> None:
    """Our session at its broker stayed connected all the time."""
    one, _ = pair
    one.book.note_epoch(2, 200)
    one.book.note_left(2)
    one.book.note_epoch(2, 200)
    assert (one.up, one.down) == ([2], [])
    one.book.note_epoch(2, 201)
    assert (one.up, one.down) == ([2, 2], [2])


def test_an_acknowledgement_waits_while_the_session_is_away(pair: Pair) -> None:
    one, two = pair
    two.acks_at_once = False
    for token in (11, 12, 13):
        one.send(token)
    two.hear_from(one)
    two.neighbour.on_disconnected(None)
    for frame in two.frames:
        two.book.ack(1, frame.receipt)
    assert two.session.packets == []
    two.neighbour.on_connected(True)
    assert one.hear_from(two) == ["federator/ack/1/2"]
    assert one.taken == [11, 12, 13]


def test_acknowledgements_that_wait_are_held_within_a_limit(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = pair
    two.acks_at_once = False
    for token in (11, 12, 13):
        one.send(token)
    two.hear_from(one)
    monkeypatch.setattr(links_by_broker, "_OWED_MAX", 2)
    two.neighbour.on_disconnected(None)
    for frame in two.frames:
        two.book.ack(1, frame.receipt)
    assert two.book.drops == {"acknowledgements_untold": 1}
    two.neighbour.on_connected(True)
    one.hear_from(two)
    assert one.taken == [11, 12]


def test_a_frame_is_acknowledged_once(pair: Pair) -> None:
    one, two = pair
    one.send(7)
    two.hear_from(one)
    assert len(two.session.packets) == 1
    two.book.ack(1, two.frames[0].receipt)
    assert len(two.session.packets) == 1


def test_a_repeated_frame_has_its_own_receipt(pair: Pair) -> None:
    one, two = pair
    two.acks_at_once = False
    one.send(7)
    one.send(7)
    two.hear_from(one)
    first, again = [frame.receipt for frame in two.frames]
    assert first != again
    two.book.ack(1, again)
    one.hear_from(two)
    assert one.taken == [7]


def test_a_message_that_belongs_to_no_link_is_left_to_others(pair: Pair) -> None:
    one, _ = pair
    assert not one.hear("federator/beacon/a", encode("federator/beacon/a", b""))
    assert not one.hear("a", encode("a", b""))


@pytest.mark.parametrize(
    ("topic", "payload", "retain", "says"),
    [
        ("federator/core_ann/1/9", b"\x01\x01", False, "not a connected neighbour"),
        ("federator/core_ann/1/1", b"\x01\x01", False, "as its sender"),
        ("federator/core_ann/3/2", b"\x01\x01", False, "addressed to 3"),
        ("federator/core_ann/1/2", b"\x01\x01", True, "retained"),
        ("federator/core_ann/1/2", b"\x07", False, "begins with 07"),
        ("federator/routing/1/2", b"\x01", False, "begins with 01"),
        ("federator/ack/1/2", b"\x01\x04\x05", False, "cut short"),
        ("federator/core_ann/1/2/3", b"", False, "unknown"),
    ],
)
def test_attack_a_forged_control_message_is_refused(
    pair: Pair, topic: str, payload: bytes, retain: bool, says: str
) -> None:
    one, _ = pair
    with pytest.raises(RemoteError, match=says):
        one.hear(topic, encode(topic, payload), retain=retain)
    assert one.frames == []


def test_a_neighbour_that_broke_a_rule_is_cut_off(pair: Pair) -> None:
    one, _ = pair
    one.book.close(2, "it broke a rule")
    assert one.session.is_aborted
    one.book.close(9, "it is unknown")


def test_the_host_session_subscribes_only_to_topics_of_this_federator(pair: Pair) -> None:
    assert pair[0].book.filters() == [
        "federator/core_ann/1/+",
        "federator/memb_ann/1/+",
        "federator/routing/1/+",
        "federator/ack/1/+",
        "federator/probe/1/+",
    ]
