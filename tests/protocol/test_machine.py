"""Corner cases of the machine that no single rule names."""

from typing import Any

from tests.protocol.net import Desk, Network

from hanse.protocol.effects import EMITTED, CloseLink, Send
from hanse.protocol.events import LinkDown, Ranked, Subscribed, Tick, Unsubscribed
from hanse.protocol.grouping import Grouping
from hanse.protocol.messages import (
    Announcement,
    ClaimChange,
    ClaimDelta,
    ClaimPart,
    ClaimRequest,
    HandOver,
    SetDelta,
    SetStep,
    Solicit,
)
from hanse.protocol.settings import EPOCH_MAX, MANAGEMENT_GROUP


def behind(desk: Desk, peer: int, core: int = 9, *, sequence: int = 1, distance: int = 1, version: int = 0) -> None:
    desk.say(peer, announcements=(Announcement(core, 1_000, sequence, distance, version),))


def test_cores_agrees_with_core_of_for_every_group() -> None:
    net = Network(4, [(0, 1), (1, 2), (2, 3)])
    net.run(3)
    net.subscribe(0, "g")
    net.subscribe(3, "g")
    net.subscribe(2, "h")
    net.run(0.015)  # two claim the first, because neither has heard of the other
    for machine in net.machines.values():
        assert machine.cores() == {group: machine.core_of(group) for group in machine.groups()}
    net.run(1.0)
    assert [machine.cores() for machine in net.machines.values()] == [net.machines[0].cores()] * 4
    assert net.machines[3].cores()["g"] == 0


def test_a_rank_from_the_manager_is_claimed_and_moves_the_core() -> None:
    net = Network(3, [(0, 1), (1, 2)])
    net.run(3)
    net.step(2, Ranked("g", 7))
    net.subscribe(0, "g")
    net.run(0.3)
    net.subscribe(2, "g")
    net.run(0.3)
    assert net.cores("g") == {0}  # 2 need not claim what is claimed
    net.step(0, Ranked("g", 900))
    net.step(0, Ranked("g", 900))
    net.run(0.3)
    assert net.claimants("g") == [0]
    assert net.machines[2]._claims.sets[0].groups["g"].rank == 900


def test_a_filter_subscribed_twice_is_one_interest() -> None:
    desk = Desk(peers=())
    desk.step(Subscribed("g"))
    desk.step(Subscribed("g"))
    desk.step(Unsubscribed("g"))
    assert desk.machine.core_of("g") is None


def test_a_group_is_wanted_while_one_of_its_filters_is() -> None:
    desk = Desk(peers=(), grouping=Grouping.parse("prefix:1"))
    desk.step(Subscribed("a/b"))
    desk.step(Subscribed("a/c"))
    desk.step(Unsubscribed("a/b"))
    assert desk.machine.core_of("a/#") == 5
    desk.step(Unsubscribed("a/c"))
    assert desk.machine.core_of("a/#") is None


def test_a_federator_that_was_stopped_for_a_while_does_one_round() -> None:
    desk = Desk(peers=(1,))
    desk.now = 57.3
    desk.step(Tick())
    assert desk.machine.deadline > 57.3
    frames = [effect for effect in desk.step(Tick()) if isinstance(effect, Send)]
    assert frames == []


def test_a_neighbour_that_is_down_can_still_be_removed() -> None:
    desk = Desk(peers=(1,))
    desk.step(LinkDown(1))
    assert 1 in desk.machine._neighbours
    desk.step(LinkDown(1, is_removed=True))
    assert 1 not in desk.machine._neighbours


def test_a_fetch_ends_with_its_link() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(2)
    behind(desk, 1, version=3)
    desk.step(Subscribed("g"))
    assert desk.machine.core_of("g") is None  # not before the claims are here
    desk.step(LinkDown(1))
    desk.wait(1.1, talking=(2,))
    assert desk.machine.core_of("g") == 5


def test_an_unanswered_request_is_sent_again_a_round_later() -> None:
    desk = Desk(peers=(1,))
    desk.wait(0.5)
    behind(desk, 1, version=3)
    desk.wait(0.6)  # a round, but half an interval since we asked
    behind(desk, 1, sequence=2, version=3)
    assert sum(len(frame.claim_requests) for frame in desk.frames[1]) == 1
    desk.wait(1.0)
    behind(desk, 1, sequence=3, version=3)
    assert desk.last_to(1).claim_requests == (ClaimRequest(9, 0, 0, -1, 0),)


def test_a_part_of_an_older_set_than_ours_ends_the_fetch_and_changes_nothing() -> None:
    desk = Desk(peers=(1,))
    desk.say(1, claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 1), ClaimChange("h", 1))),))
    behind(desk, 1, version=5)
    desk.say(1, claim_parts=(ClaimPart(9, 1_000, 1, 0, 1, (ClaimChange("x", 1),)),))
    assert desk.machine.core_of("x") is None
    assert desk.machine.core_of("h") == 9
    desk.say(1, claim_parts=(ClaimPart(9, 1_000, 9, 0, 2, (ClaimChange("x", 1),)),))
    assert desk.machine.counters["ignored_claim_part"] == 1


def test_a_newer_whole_set_that_comes_unasked_counts_and_is_passed_on_unasked() -> None:
    desk = Desk(peers=(1, 2))
    whole = ClaimPart(9, 1_000, 9, 0, 1, (ClaimChange("x", 1),))
    desk.say(1, announcements=(Announcement(9, 1_000, 1, 1, 9),), claim_parts=(whole,))
    assert desk.machine.core_of("x") == 9
    assert desk.last_to(2).claim_parts == (whole,)
    desk.say(2, claim_parts=(ClaimPart(9, 1_000, 8, 0, 1, (ClaimChange("y", 1),)),))
    assert desk.machine.core_of("y") is None
    desk.say(2, claim_parts=(ClaimPart(desk.machine.identity, 1_000, 99, 0, 1, (ClaimChange("z", 1),)),))
    assert desk.machine.counters["ignored_claim_part"] == 1


def test_whole_sets_of_cores_beyond_the_limit_are_refused() -> None:
    desk = Desk(peers=(1,), cores_max=1)
    desk.say(1, claim_parts=(ClaimPart(8, 1_000, 1, 0, 1, (ClaimChange("x", 1),)),))
    desk.say(1, claim_parts=(ClaimPart(9, 1_000, 1, 0, 1, (ClaimChange("y", 1),)),))
    assert desk.machine.is_known("x")
    assert not desk.machine.is_known("y")
    assert desk.machine.counters["ignored_claim_part"] == 1


def test_fetching_an_empty_set_ends_the_core() -> None:
    desk = Desk(peers=(1, 2))
    behind(desk, 1, version=5)
    assert desk.machine.distance_to(9) == 2
    desk.say(1, claim_parts=(ClaimPart(9, 1_000, 5, 0, 0, ()),))
    assert desk.machine.distance_to(9) is None
    behind(desk, 1, sequence=2, version=5)  # a late announcement of it
    assert desk.machine.distance_to(9) is None


def test_groups_beyond_the_limit_are_kept_neither_from_a_part_nor_from_ourselves() -> None:
    desk = Desk(peers=(1,), groups_max=3)
    for core, groups in ((8, "ab"), (9, "cd")):
        behind(desk, 1, core, version=2)
        claims = tuple(ClaimChange(group, 1) for group in groups)
        desk.say(1, claim_parts=(ClaimPart(core, 1_000, 2, 0, 2, claims),))
    assert desk.machine.groups() == [MANAGEMENT_GROUP, "a", "b", "c"]
    assert sorted(desk.machine._claims.sets[9].groups) == ["c"]
    desk.step(Subscribed("mine"))
    desk.wait(1.0, talking=(1,))
    assert desk.machine._claims.own.groups == {}
    assert desk.emitted("limit_reached")


def test_a_second_hand_over_to_an_heir_changes_nothing() -> None:
    desk = Desk(peers=(1,))
    desk.say(
        1,
        announcements=(Announcement(1, 1_000, 1, 0, 1),),
        claim_deltas=(ClaimDelta(1, 1_000, 0, (ClaimChange("g", 100),)),),
    )
    desk.step(Subscribed("g"))
    desk.say(1, hand_overs=(HandOver(1, "g"),))
    version = desk.machine._claims.own.version
    desk.say(1, hand_overs=(HandOver(1, "g"),))
    assert desk.machine._claims.own.version == version == 1


def test_a_longer_route_through_the_same_parent_is_passed_on() -> None:
    desk = Desk(peers=(1, 2))
    behind(desk, 1)
    behind(desk, 1, sequence=2, distance=4)
    assert (desk.machine.distance_to(9), desk.machine.parents_of(9)) == (5, (1,))
    assert desk.last_to(2).announcements == (Announcement(9, 1_000, 2, 5, 0),)


def test_two_neighbours_that_wait_for_the_same_number_cause_one_request() -> None:
    desk = Desk(peers=(1, 2, 3))
    behind(desk, 1, sequence=5)
    desk.say(2, solicits=(Solicit(9, 1_000, 6),))
    desk.say(3, solicits=(Solicit(9, 1_000, 6),))
    assert sum(len(frame.solicits) for frame in desk.frames[1]) == 1


def test_a_core_that_stays_away_is_forgotten_with_its_claims() -> None:
    desk = Desk(peers=(1, 2), absence_s=5.0)
    desk.say(
        1,
        announcements=(Announcement(9, 1_000, 5, 1, 1),),
        claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 100),)),),
    )
    behind(desk, 2, core=8, sequence=5, distance=2)  # whose claims never came
    behind(desk, 2, sequence=5, distance=2, version=1)  # not feasible: it may lead through us
    desk.step(LinkDown(1))
    desk.step(LinkDown(2))
    desk.wait(4)
    assert desk.machine.groups() == [MANAGEMENT_GROUP, "g"]
    desk.wait(3)
    assert desk.machine.groups() == [MANAGEMENT_GROUP]
    assert desk.machine.host_subscriptions() == frozenset()
    assert desk.machine.core_epoch(9) is None


def test_a_core_is_forgotten_when_its_last_useless_announcement_expires() -> None:
    desk = Desk(peers=(1, 2), absence_s=5.0)
    behind(desk, 1, sequence=5)
    behind(desk, 2, sequence=5, distance=2)  # not feasible
    desk.step(LinkDown(1))
    for _ in range(7):
        desk.wait(1.0, talking=(2,))
    assert desk.machine.core_epoch(9) is None


def test_announcements_are_per_group_in_the_form_of_the_papers() -> None:
    net = Network(3, [(0, 1), (1, 2)], announcements="per_group")
    net.run(3)
    net.subscribe(0, "a", "b", "c")
    net.run(0.5)
    net.subscribe(2, "a")
    net.run(2.5)
    begin = net.now
    net.run(1.0)
    said = [
        (announcement.core, announcement.group)
        for sent in net.control_since(begin)
        if sent.control is not None and (sent.source, sent.target) == (0, 1)
        for announcement in sent.control.announcements
    ]
    assert sorted(said) == [(0, MANAGEMENT_GROUP), (0, "a"), (0, "b"), (0, "c")]
    frames = [s.control for s in net.control_since(begin) if (s.source, s.target) == (0, 1) and s.control is not None]
    assert [frame.number - frames[0].number for frame in frames] == [0, 1, 2, 3]
    assert net.cores("a") == {0}
    net.publish(2, "b")
    net.run(0.1)
    assert net.got(0) == ["b"]


def test_per_group_announcements_name_no_group_if_the_cores_claims_are_unknown() -> None:
    desk = Desk(peers=(1, 2), announcements="per_group")
    behind(desk, 1, version=3)
    assert desk.last_to(2).announcements == (Announcement(9, 1_000, 1, 2, 0),)


def test_every_emitted_event_is_documented() -> None:
    net = Network(4, [(0, 1), (1, 2), (2, 3)])
    net.run(2)
    net.subscribe(0, "g")
    net.run(0.2)
    net.subscribe(3, "g")
    net.run(1)
    net.unsubscribe(0, "g")
    net.crash(1)
    net.run(6)
    net.restart(1, [0, 2], wall_s=1, stored_epoch=5_000)
    net.run(3)
    names = {emitted.emit.name for emitted in net.emitted}
    assert names <= EMITTED.keys()
    assert {"core_elected", "core_withdrawn", "core_lost", "parents_changed", "member_joined"} <= names


def test_the_same_events_give_the_same_effects() -> None:
    def story() -> list[object]:
        net = Network(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
        net.subscribe(1, "b", "a", "c/#")
        net.subscribe(3, "c/+", "a")
        net.run(2)
        net.publish(0, "c/d")
        net.cut(0, 1)
        net.run(2)
        return [*net.sent, *net.deliveries, *net.emitted]

    assert story() == story()


def test_a_child_that_leaves_takes_its_membership_along() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(1)
    desk.step(Subscribed("g"))
    both = SetDelta(1, 0, 0, (SetStep(True, 5, "g"),))
    desk.say(1, memberships=both)
    desk.say(2, memberships=both)
    desk.say(1, is_leaving=True)
    assert desk.machine.mesh_neighbours("g") == (2,)
    assert [emit.neighbour for emit in desk.emitted("neighbour_left")] == [1]


def test_the_route_to_a_restarted_core_is_chosen_from_the_new_epochs_announcements() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(1, announcements=(Announcement(9, 1_000, 1, 1, 0),))
    assert desk.machine.parents_of(9) == (1,)
    desk.say(2, announcements=(Announcement(9, 2_000, 1, 5, 0),))
    assert (desk.machine.parents_of(9), desk.machine.distance_to(9)) == ((2,), 6)
    desk.say(1, announcements=(Announcement(9, 2_000, 2, 1, 0),))
    assert (desk.machine.parents_of(9), desk.machine.distance_to(9)) == ((1,), 2)


def test_a_neighbour_that_never_answers_a_claim_request_is_not_waited_for() -> None:
    desk = Desk(peers=(1,))
    desk.say(1)
    behind(desk, 1, version=3)
    desk.step(Subscribed("g"))
    assert desk.machine.core_of("g") is None
    desk.wait(2.1, talking=(1,))
    assert desk.machine.core_of("g") == 5


def test_a_new_neighbour_is_told_which_cores_claim_nothing_any_longer() -> None:
    desk = Desk(peers=(1,))
    desk.say(1, claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 1), ClaimChange("g", None))),))
    desk.up(2)
    desk.say(2)
    assert [frame.claim_parts for frame in desk.frames[2] if frame.claim_parts] == [(ClaimPart(9, 1_000, 2, 0, 0, ()),)]


def test_claims_are_told_once() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(1)
    desk.say(2)
    desk.say(1, claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 1),)),))
    assert not desk.machine._changes.claims
    assert sum(len(frame.claim_deltas) for frame in desk.frames[2]) == 1


def test_a_frame_per_group_never_says_that_it_is_full() -> None:
    desk = Desk(peers=(1,), announcements="per_group")
    desk.say(1)
    desk.step(Subscribed("g"))
    desk.wait(2.0, talking=(1,))
    assert desk.frames[1]
    assert not any(frame.is_full for frame in desk.frames[1])


def test_a_group_that_was_claimed_is_no_longer_among_those_that_wait() -> None:
    desk = Desk(peers=(1,))
    desk.step(Subscribed("g"))  # the neighbour has not told its claims yet
    assert desk.machine._election._unclaimed == {"g"}
    desk.say(1)
    assert desk.machine.core_of("g") == 5
    assert not desk.machine._election._unclaimed


def test_only_a_group_that_others_joined_is_left_to_others() -> None:
    for has_joined, grouping in ((False, ""), (True, "left")):
        desk = Desk(peers=(1,))
        desk.say(1)
        desk.step(Subscribed("g"))
        if has_joined:
            desk.say(1, memberships=SetDelta(1, 0, 0, (SetStep(True, 5, "g"),)))
        desk.step(Unsubscribed("g"))
        if has_joined:
            assert desk.machine.core_of("g") == 5  # for the member, until an heir is found
            desk.say(1, memberships=SetDelta(1, 1, 1, (SetStep(False, 5, "g"),)))
        assert desk.machine.core_of("g") is None
        (withdrawal,) = [
            change
            for frame in desk.frames[1]
            for delta in frame.claim_deltas
            for change in delta.changes
            if change.group == "g" and change.rank is None
        ]
        assert withdrawal.grouping == grouping


def test_a_membership_that_found_no_parent_is_placed_with_the_first_that_comes() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(2)
    desk.say(
        1,
        announcements=(Announcement(9, 1_000, 1, 1, 1),),
        claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 1),)),),
    )
    desk.step(LinkDown(1, is_removed=True))
    desk.say(2, memberships=SetDelta(1, 0, 0, (SetStep(True, 9, "g"),)))
    desk.up(3)
    desk.say(3, announcements=(Announcement(9, 1_000, 2, 1, 1),))
    assert (9, "g") in desk.machine._neighbours[3].joining.keys


def test_publications_without_an_edge_wait_while_the_mesh_has_a_core_elsewhere() -> None:
    desk = Desk(peers=(1,))
    desk.say(
        1,
        announcements=(Announcement(9, 1_000, 1, 1, 1),),
        claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 1),)),),
    )
    desk.step(Subscribed("g"))
    assert desk.machine._mesh.own_core("g") == 9
    desk.step(LinkDown(1, is_removed=True))
    assert desk.machine.hops("g") == ((), True)


def test_one_neighbour_too_many_is_turned_away() -> None:
    desk = Desk(peers=(1,), neighbours_max=1)
    effects = desk.up(2)
    assert [effect.neighbour for effect in effects if isinstance(effect, CloseLink)] == [2]
    assert desk.machine.neighbours() == (1,)


def test_a_membership_that_nobody_wants_any_longer_is_not_placed_with_a_parent_that_comes() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(2)
    desk.say(
        1,
        announcements=(Announcement(9, 1_000, 1, 1, 1),),
        claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 1),)),),
    )
    desk.step(Subscribed("g"))
    desk.step(LinkDown(1, is_removed=True))
    desk.step(Unsubscribed("g"))
    assert not desk.machine._mesh._joined_under.get(9)


def test_an_epoch_that_was_raised_is_told_to_those_who_watch() -> None:
    desk = Desk(peers=(1,))
    desk.say(1, echo_epoch=5_000, echo_number=1)
    assert desk.machine.epoch > 5_000
    assert [emit.detail for emit in desk.emitted("epoch_raised")] == [str(desk.machine.epoch)]
    assert desk.machine.counters["epochs_raised"] == 1


def test_an_epoch_that_cannot_be_raised_is_counted_and_stays() -> None:
    desk = Desk(peers=(1,), wall_s=EPOCH_MAX)
    assert desk.machine.epoch == EPOCH_MAX
    desk.say(1, echo_epoch=EPOCH_MAX, echo_number=1_000)
    assert desk.machine.epoch == EPOCH_MAX
    assert desk.machine.counters["rejected_epoch"] == 1
    assert desk.machine.counters["epochs_raised"] == 0
    assert not desk.emitted("epoch_raised")


def test_a_membership_is_sent_again_only_after_a_whole_round_without_an_answer() -> None:
    desk = Desk(peers=(1,))
    desk.say(
        1,
        announcements=(Announcement(9, 1_000, 1, 1, 1),),
        claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 1),)),),
    )
    desk.wait(0.9)
    desk.step(Subscribed("g"))  # shortly before the next round
    assert _times_sent(desk, "g") == 1
    desk.wait(0.2)  # the round that finds the step unanswered for the first time
    assert _times_sent(desk, "g") == 1
    desk.wait(1.0)
    assert _times_sent(desk, "g") == 2


def claimed(core: int, sequence: int = 1, *, rank: int = 1) -> dict[str, Any]:
    """Return the parts of a frame that tells of a core one hop beyond the neighbour, with a claim on group g."""
    return {
        "announcements": (Announcement(core, 1_000, sequence, 1, 1),),
        "claim_deltas": (ClaimDelta(core, 1_000, 0, (ClaimChange("g", rank),)),),
    }


def test_a_membership_kept_for_a_change_of_cores_ends_with_the_interest() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(2)
    desk.say(1, **claimed(9, rank=2))
    desk.step(Subscribed("g"))
    desk.say(2, **claimed(8, rank=1))
    assert desk.machine._mesh.own_core("g") == 8
    assert (9, "g") in desk.machine._neighbours[1].joining.keys  # until the mesh of 8 is known to be reached
    desk.step(Unsubscribed("g"))
    assert not desk.machine._neighbours[1].joining.keys
    assert not desk.machine._neighbours[2].joining.keys


def test_a_membership_that_lost_one_of_two_parents_is_still_placed_with_the_next_that_comes() -> None:
    desk = Desk(peers=(1, 2), redundancy=2)
    desk.say(1, **claimed(9))
    desk.say(2, **claimed(9))
    desk.step(Subscribed("g"))
    assert all((9, "g") in desk.machine._neighbours[peer].joining.keys for peer in (1, 2))
    desk.step(LinkDown(1, is_removed=True))
    desk.up(3)
    desk.say(3, announcements=(Announcement(9, 1_000, 2, 1, 1),))
    assert (9, "g") in desk.machine._neighbours[3].joining.keys


def test_a_request_for_a_later_number_is_passed_on_although_one_is_waited_for() -> None:
    desk = Desk(peers=(1, 2, 3))
    behind(desk, 1, sequence=5)
    desk.say(2, solicits=(Solicit(9, 1_000, 7),))
    desk.say(3, solicits=(Solicit(9, 1_000, 8),))
    wished = [solicit.sequence for frame in desk.frames[1] for solicit in frame.solicits]
    assert wished == [7, 8]


def _times_sent(desk: Desk, group: str) -> int:
    """Return how many times neighbour 1 was sent the membership of a group."""
    deltas = [frame.memberships for frame in desk.frames[1] if frame.memberships is not None]
    return sum(step.group == group for delta in deltas for step in delta.steps)


def test_announcements_are_counted_as_they_are_sent() -> None:
    desk = Desk(peers=(1,))
    desk.step(Subscribed("g"))
    desk.wait(3.0, talking=(1,))
    sent = sum(len(frame.announcements) for frame in desk.frames[1])
    assert desk.machine.counters["announcements"] == sent > 0


def test_a_core_that_claims_again_keeps_the_memberships_under_it() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(1, **claimed(9))
    desk.say(2, memberships=SetDelta(1, 0, 0, (SetStep(True, 9, "g"),)))
    desk.say(1, claim_deltas=(ClaimDelta(9, 1_000, 1, (ClaimChange("g", None),)),))
    desk.say(1, claim_deltas=(ClaimDelta(9, 1_000, 2, (ClaimChange("g", 1),)),))
    for number in range(10, 30):
        desk.wait(1.0)
        desk.say(1, announcements=(Announcement(9, 1_000, number, 1, 3),))
        desk.say(2)
    assert desk.machine.mesh_neighbours("g") == (1, 2)
