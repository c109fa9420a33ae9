"""Wanted, accepted and removed neighbours: the rules of `roster`, in their order."""

from hanse.federator.roster import BELIEVED_DEAD_S, FIRST_TIME_FACTOR, FRESH_S, GUESTS_MAX, HOLD_S, Roster
from hanse.federator.words import Announcement, OverlayMap, Peer, Word

EXPIRY_S = 3.0


def peer(identity: int) -> Peer:
    return Peer(identity, f"mqtt://127.0.0.1:{10_000 + identity}", f"mqtt://127.0.0.1:{20_000 + identity}")


def word(epoch: int, *neighbours: int) -> Word:
    return Word(1, epoch, epoch, "up", tuple(map(peer, neighbours)))


def overlay(epoch: int, *links: tuple[int, int]) -> OverlayMap:
    return OverlayMap(epoch, {one: peer(one) for link in links for one in link}, frozenset(links))


def ring_of_six() -> Roster:
    """Return federator 1 of the ring 0 to 5, with both of its links up."""
    roster = Roster(1, EXPIRY_S)
    roster.take(0, word(10, 0, 2))
    roster.take_map(0, overlay(10, (0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5)))
    roster.link_up(0, 0)
    roster.link_up(0, 2)
    return roster


def test_an_older_epoch_is_ignored() -> None:
    roster = ring_of_six()
    assert not roster.take(1, word(9, 4))
    assert not roster.take(1, Announcement(9, (peer(4),)))
    assert not roster.take_map(1, overlay(9, (1, 4)))
    assert set(roster.wanted(1)) == {0, 2}
    assert roster.stale == 3
    assert roster.take(1, Announcement(11, (peer(4), peer(1))))
    assert (set(roster.wanted(1)), roster.epoch, roster.changed_epoch) == ({4}, 11, 11)


def test_a_neighbour_of_the_manager_is_wanted_whether_it_answers_or_not() -> None:
    roster = ring_of_six()
    roster.link_down(1, 0)
    assert set(roster.wanted(100)) == {0, 2}
    assert roster.lost(1 + EXPIRY_S - 0.1) == []
    assert roster.lost(1 + EXPIRY_S) == [0]
    roster.link_up(5, 0)
    assert roster.lost(100) == []


def test_a_neighbour_that_was_never_reached_is_lost_after_a_longer_time() -> None:
    roster = Roster(1, EXPIRY_S)
    roster.take(0, word(10, 0))
    roster.take(2, word(11, 0))
    assert roster.lost(EXPIRY_S) == []
    assert roster.lost(FIRST_TIME_FACTOR * EXPIRY_S) == [0]
    assert roster.linked() == []


def test_no_own_links_are_made_while_the_manager_answers() -> None:
    roster = ring_of_six()
    roster.link_down(1, 0)
    assert set(roster.wanted(60)) == {0, 2}


def test_without_a_manager_the_ring_closes_around_the_dead_and_opens_when_they_return() -> None:
    roster = ring_of_six()
    roster.lose_manager()
    roster.link_down(1, 0)
    assert set(roster.wanted(1 + EXPIRY_S - 0.1)) == {0, 2}
    assert set(roster.wanted(4)) == {0, 2, 5}
    assert set(roster.own) == {5}
    roster.link_up(4.5, 5)
    assert [one.id for one in roster.linked()] == [2, 5]
    roster.link_up(5, 0)
    assert set(roster.wanted(5)) == {0, 2, 5}, "not at once: the neighbour may flap"
    assert set(roster.wanted(4 + HOLD_S)) == {0, 2}


def test_another_dead_federator_is_bypassed_and_tried_again_later() -> None:
    roster = ring_of_six()
    roster.lose_manager()
    roster.link_down(0, 0)
    assert set(roster.wanted(3)) == {0, 2, 5}
    assert set(roster.wanted(3 + EXPIRY_S)) == {0, 2, 4}, "5 did not answer either"
    assert set(roster.wanted(5 + EXPIRY_S)) == {0, 2, 4}
    roster.link_up(6 + EXPIRY_S, 4)
    assert 5 in roster.wanted(3 + EXPIRY_S + BELIEVED_DEAD_S)


def test_when_the_manager_returns_own_links_stay_until_it_answers_a_report_of_them() -> None:
    roster = ring_of_six()
    roster.lose_manager()
    roster.link_down(0, 0)
    roster.wanted(4)
    roster.link_up(4, 5)
    roster.find_manager()
    assert roster.take(5, word(11, 0, 2)), "a poll's answer: the manager had not been told"
    assert set(roster.wanted(5)) == {0, 2, 5}
    assert roster.take(6, word(12, 0, 2), reported={2, 5})
    assert set(roster.wanted(6)) == {0, 2}


def test_an_own_link_that_the_manager_adopts_is_a_neighbour() -> None:
    roster = ring_of_six()
    roster.lose_manager()
    roster.link_down(0, 0)
    roster.wanted(4)
    roster.find_manager()
    roster.take(5, word(11, 2, 5), reported={2, 5})
    assert set(roster.wanted(5)) == {2, 5}
    assert roster.own == {}


def test_neighbours_are_admitted_and_strangers_are_not() -> None:
    roster = ring_of_six()
    assert roster.admit(0, 0) is None
    assert "is not among the neighbours" in str(roster.admit(0, 99))


def test_a_known_peer_is_a_guest_if_the_map_is_fresh_or_no_manager_answers() -> None:
    roster = ring_of_six()
    assert roster.admit(FRESH_S, 4) is None
    assert "is being fetched" in str(roster.admit(FRESH_S + 1, 4))
    roster.lose_manager()
    assert roster.admit(FRESH_S + 1, 4) is None
    roster.link_up(FRESH_S + 1, 4)
    assert set(roster.guests) == {4}
    assert [one.id for one in roster.linked()] == [0, 2, 4], "the manager is told of it"
    assert set(roster.wanted(FRESH_S + 1)) == {0, 2}, "and it is not dialled"
    roster.take(20, word(11, 0, 2), reported={0, 2, 4})
    assert roster.guests == {}


def test_a_peer_that_writes_through_the_broker_is_a_guest_before_its_link_is_up() -> None:
    roster = ring_of_six()
    roster.lose_manager()
    assert roster.invite(4)
    assert not roster.invite(4)
    assert not roster.invite(0), "a neighbour"
    assert not roster.invite(99), "a stranger"
    assert set(roster.guests) == {4}


def test_a_guest_that_leaves_is_forgotten_and_guests_are_limited() -> None:
    roster = Roster(1, EXPIRY_S)
    roster.take_map(0, overlay(1, *((0, one) for one in range(2, 30))))
    for identity in range(2, 2 + GUESTS_MAX):
        assert roster.admit(0, identity) is None
        roster.link_up(0, identity)
    assert f"{GUESTS_MAX} such are linked" in str(roster.admit(0, 29))
    roster.link_down(1, 2)
    assert roster.admit(1, 29) is None


def test_attack_a_revoked_federator_is_not_readmitted_by_its_former_neighbours() -> None:
    roster = ring_of_six()
    roster.take(1, word(11, 2))
    assert roster.admit(1, 0) is not None, "the map that still names it is older than the word"
    roster.lose_manager()
    assert roster.admit(1, 0) is not None
    roster.take_map(2, overlay(12, (1, 2), (2, 3)))
    assert roster.admit(2, 0) is not None
    roster.take_map(3, overlay(13, (1, 2), (0, 2)))
    assert roster.admit(3, 0) is None, "a newer map has it back"


def test_only_the_nearest_part_of_a_large_map_is_kept() -> None:
    roster = Roster(0, EXPIRY_S)
    roster.take_map(0, overlay(1, *((one, one + 1) for one in range(100))))
    kept = roster.nearest(10)
    assert set(kept.peers) == set(range(11))
    assert len(kept.links) == 10
