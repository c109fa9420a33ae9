"""One test, or a few, for each rule of docs/protocol.md, in its order. Each fails when its rule is broken."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.protocol.net import Desk, Network, packet, publication

from hanse.protocol.effects import (
    Acknowledge,
    CloseLink,
    Deliver,
    Effect,
    Emit,
    Send,
    SendRuns,
    SendSummaries,
    Store,
    StoreEpoch,
    SubscribeHost,
    UnsubscribeHost,
)
from hanse.protocol.events import Appointed, Leave, LinkDown, LinkUp, Received, Subscribed, Summarised, Unsubscribed
from hanse.protocol.grouping import Grouping
from hanse.protocol.identity import boot_epoch, claim_delay_s, election_key
from hanse.protocol.machine import Machine
from hanse.protocol.messages import (
    HOST,
    UNREACHABLE,
    Announcement,
    ClaimChange,
    ClaimDelta,
    ClaimPart,
    ClaimRequest,
    HandOver,
    Run,
    SetAck,
    SetDelta,
    SetStep,
    Solicit,
    Summary,
)
from hanse.protocol.packets import split
from hanse.protocol.seen import EPOCHS_MAX
from hanse.protocol.settings import MANAGEMENT_GROUP, RANK_DEFAULT, Settings
from hanse.protocol.topics import covers

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "protocol.md").read_text()

# The overlay of the 2020 paper's figures.
PAPER = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 3), (3, 4), (3, 5), (4, 5)]
LINE = [(0, 1), (1, 2), (2, 3)]
A = 1.0
K = 3


def core_known(desk: Desk, peer: int, core: int, groups: tuple[str, ...] = ("g",), *, sequence: int = 1) -> Any:
    """Let a peer tell of a core: the route to it and its claims. Return the effects."""
    distance = 0 if peer == core else 1
    changes = tuple(ClaimChange(group, RANK_DEFAULT) for group in groups)
    return desk.say(
        peer,
        announcements=(Announcement(core, 1_000, sequence, distance, len(changes)),),
        claim_deltas=(ClaimDelta(core, 1_000, 0, changes),),
    )


def joined(group: str, core: int, *, generation: int = 1, start: int = 0) -> SetDelta:
    return SetDelta(generation, start, 0, (SetStep(True, core, group),))


def left(group: str, core: int, *, start: int) -> SetDelta:
    return SetDelta(1, start, 0, (SetStep(False, core, group),))


def sends(effects: list[Effect]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]


def steps_to(desk: Desk, peer: int, name: str = "memberships") -> list[SetStep]:
    """Return all steps of a set that the machine has told a peer."""
    deltas = (getattr(frame, name) for frame in desk.frames.get(peer, ()))
    return [step for delta in deltas if delta is not None for step in delta.steps]


# --- identity and frames ---------------------------------------------------------------------------------------------


def test_r01_the_epoch_of_a_boot_is_larger_than_any_that_disk_clock_or_neighbours_know() -> None:
    assert boot_epoch(stored=7, wall_s=3) == 8
    assert boot_epoch(stored=3, wall_s=7) == 7
    assert boot_epoch(stored=3, wall_s=4, heard=9) == 10
    machine = Machine(1, Settings(), now=0.0, wall_s=5, stored_epoch=40)
    assert machine.start(0.0)[0] == StoreEpoch(41)


def test_r02_an_echo_of_more_than_we_sent_raises_the_epoch() -> None:
    desk = Desk()
    effects = desk.say(1, echo_epoch=2_000, echo_number=3)
    assert effects[0] == StoreEpoch(2_001)  # on disk before anything is sent under it
    assert desk.machine.epoch == 2_001
    assert desk.last_to(1).epoch == 2_001
    effects = desk.say(1, echo_epoch=2_001, echo_number=10**6)
    assert effects[0] == StoreEpoch(2_002)


def test_r02_an_announcement_of_ourselves_that_we_never_made_raises_the_epoch() -> None:
    desk = Desk()
    desk.say(1, announcements=(Announcement(5, 3_000, 9, 4, 0),))
    assert desk.machine.epoch == 3_001
    assert desk.emitted("identity_conflict")


def test_r02_ids_restart_under_a_raised_epoch() -> None:
    desk = Desk()
    core_known(desk, 1, 1)
    first = desk.machine.publish(0.0, [publication("g")]).frames[1][0]
    desk.say(1, echo_epoch=2_000, echo_number=3)
    second = desk.machine.publish(0.0, [publication("g")]).frames[1][0]
    assert (first.epoch, first.first, second.epoch, second.first) == (1_000, 0, 2_001, 0)


def test_r03_a_control_frame_counts_only_if_it_is_newer_than_the_last() -> None:
    desk = Desk()
    late = desk.frame(1, announcements=(Announcement(9, 1_000, 1, 1, 0),))
    core_known(desk, 1, 8)
    for stale in (late, desk.frame(1, number=2, announcements=late.announcements)):
        assert desk.step(Received(1, stale)) == []
    assert desk.machine.counters["ignored_stale_frame"] == 2
    assert desk.machine.distance_to(9) is None
    desk.say(1, epoch=1_001, number=1, announcements=late.announcements)  # a newer epoch begins at 1 again
    assert desk.machine.distance_to(9) == 2


def test_r04_frames_count_only_from_a_neighbour_whose_link_is_up() -> None:
    desk = Desk(peers=(1,))
    desk.epochs[9] = 1_000
    word = (Announcement(9, 1_000, 1, 0, 0),)
    desk.say(9, announcements=word)
    desk.say(1, sender=9, announcements=word)
    desk.step(LinkDown(1))
    desk.say(1, announcements=(Announcement(1, 1_000, 1, 0, 0),))
    run = Run(9, 1_000, 0, 1, 0, 1, ("g",), packet("g"))
    assert desk.machine.forward(0.0, 9, [run])[:2] == ({}, [])
    assert desk.machine.forward(0.0, 1, [run])[:2] == ({}, [])
    assert desk.machine.counters["rejected_stranger"] == 5
    assert desk.machine.distance_to(9) is desk.machine.distance_to(1) is None


def test_r05_a_link_to_our_own_id_or_a_second_one_to_a_neighbour_is_refused_with_an_alarm() -> None:
    desk = Desk(identity=5, peers=(1,))
    for identity in (5, 1):
        effects = desk.up(identity)
        assert [type(effect) for effect in effects] == [Emit, CloseLink]
        assert isinstance(effects[0], Emit)
        assert effects[0].name == "identity_conflict"
    assert desk.machine.neighbours() == (1,)


def test_r06_distance_0_counts_only_from_the_core_and_the_core_counts_only_with_distance_0() -> None:
    desk = Desk()
    desk.say(1, announcements=(Announcement(9, 1_000, 1, 0, 0), Announcement(1, 1_000, 1, 1, 0)))
    assert desk.machine.counters["rejected_distance"] == 2
    assert desk.machine.distance_to(9) is desk.machine.distance_to(1) is None
    desk.say(1, announcements=(Announcement(9, 1_000, 1, 1, 0), Announcement(1, 1_000, 1, 0, 0)))
    assert (desk.machine.distance_to(9), desk.machine.distance_to(1)) == (2, 1)


def test_r07_a_neighbour_that_does_not_echo_us_is_no_parent_until_it_does() -> None:
    desk = Desk(peers=(1,))
    core_known(desk, 1, 9)
    for sequence in range(2, 7):
        desk.wait(A)
        desk.say(1, echo_epoch=0, echo_number=0, announcements=(Announcement(9, 1_000, sequence, 1, 1),))
    assert desk.machine.parents_of(9) == ()
    assert [emit.neighbour for emit in desk.emitted("neighbour_lost")] == [1]
    desk.say(1)  # with an echo
    assert desk.machine.parents_of(9) == (1,)


def test_r07_a_neighbour_that_is_silent_for_k_intervals_is_no_parent() -> None:
    desk = Desk(peers=(1,))
    core_known(desk, 1, 9)
    desk.wait(K * A)
    assert desk.machine.parents_of(9) == (1,)
    desk.wait(A)
    assert desk.machine.parents_of(9) == ()


# --- cores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("election", "winner"), [("smallest", 1), ("largest", 7)])
def test_r08_the_core_is_the_live_claimant_with_the_best_key(election: str, winner: int) -> None:
    desk = Desk(peers=(1, 7), election=election)
    core_known(desk, 1, 1)
    core_known(desk, 7, 7)
    assert desk.machine.core_of("g") == winner
    other = 8 - winner
    better = ClaimDelta(other, 1_000, 1, (ClaimChange("g", RANK_DEFAULT - 1),))
    desk.say(other, claim_deltas=(better,))
    assert desk.machine.core_of("g") == other  # rank goes before id


def test_r09_a_core_counts_for_an_interval_after_the_last_route_to_it_is_lost() -> None:
    desk = Desk(peers=(1, 2))
    core_known(desk, 1, 9)
    desk.wait(0.5)
    desk.step(LinkDown(1))
    desk.wait(0.9 * A)
    assert desk.machine.core_of("g") == 9
    desk.wait(0.2 * A)
    assert desk.machine.core_of("g") is None
    assert [emit.core for emit in desk.emitted("core_lost")] == [9]
    core_known(desk, 2, 9, sequence=5)
    assert desk.machine.core_of("g") == 9  # and again as soon as there is a route


def test_r10_a_group_that_nobody_claims_is_claimed_at_once() -> None:
    alone = Desk(peers=())
    alone.step(Subscribed("g"))
    assert alone.machine.core_of("g") == 5
    desk = Desk(peers=(1, 2))
    desk.say(1)
    desk.say(2)
    desk.step(Subscribed("g"))
    assert desk.machine.core_of("g") == 5


def test_r10_nothing_is_claimed_before_the_neighbours_have_told_their_claims() -> None:
    desk = Desk(peers=(1, 2))
    desk.step(Subscribed("g"))
    desk.step(Subscribed("h"))
    desk.say(2)
    assert desk.machine.core_of("g") is None
    desk.say(1, announcements=(Announcement(1, 1_000, 1, 0, 1),))  # it has claims, and we ask for them
    assert desk.machine.core_of("g") is None
    desk.say(1, claim_deltas=(ClaimDelta(1, 1_000, 0, (ClaimChange("g", RANK_DEFAULT),)),))
    assert desk.machine.core_of("g") == 1
    assert desk.machine.core_of("h") == 5


def test_r10_a_silent_neighbour_is_awaited_no_longer_than_an_interval() -> None:
    desk = Desk(peers=(1,))
    desk.step(Subscribed("g"))
    desk.wait(A)
    assert desk.machine.core_of("g") is None
    desk.wait(A)
    assert desk.machine.core_of("g") == 5


def test_r11_a_lost_cores_group_is_claimed_after_a_delay_that_grows_with_the_id() -> None:
    delays = [
        claim_delay_s(election_key(RANK_DEFAULT, identity, "smallest"), A) for identity in (0, 1, 2, 100, 2**32 - 1)
    ]
    assert delays == sorted(set(delays))
    assert delays[0] == 0.0
    assert delays[-1] < A / 2
    desk = Desk(peers=(1, 2))
    core_known(desk, 1, 1)
    desk.say(2)
    desk.step(Subscribed("g"))
    desk.say(1, claim_deltas=(ClaimDelta(1, 1_000, 1, (ClaimChange("g", None),)),))
    delay_s = claim_delay_s(election_key(RANK_DEFAULT, 5, "smallest"), A)
    desk.wait(delay_s * 0.99)
    assert desk.machine.core_of("g") is None
    desk.wait(delay_s * 0.02)
    assert desk.machine.core_of("g") == 5


def test_r11_the_smallest_id_claims_first_after_a_lost_core_and_the_others_stay_silent() -> None:
    net = Network(5, [(0, i) for i in range(1, 5)] + [(i, j) for i in range(1, 5) for j in range(i + 1, 5)])
    net.run(3)
    for broker in range(5):
        net.subscribe(broker, "g")
        net.run(0.2)
    assert net.cores("g") == {0}
    net.crash(0)
    net.run((K + 1) * A)
    assert net.cores("g") == {1}
    elected = [e.broker for e in net.emitted if e.emit.name == "core_elected" and e.emit.group == "g"]
    assert elected == [0, 1]


def test_r12_the_loser_withdraws_when_it_is_connected_to_the_winners_mesh() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(1)
    desk.say(2)
    desk.step(Subscribed("g"))
    core_known(desk, 1, 1)
    assert desk.machine.core_of("g") == 1
    assert "g" in desk.machine._claims.own.groups  # not yet
    assert SetStep(True, 1, "g") in steps_to(desk, 1)
    desk.say(1, connections=joined("g", 1))
    assert "g" not in desk.machine._claims.own.groups


def test_r12_a_loser_with_neither_interest_nor_members_withdraws_at_once() -> None:
    desk = Desk(peers=(1,))
    desk.say(1)
    desk.step(Subscribed("g"))
    desk.step(Unsubscribed("g"))
    assert "g" not in desk.machine._claims.own.groups


def test_r12_two_cores_become_one_within_two_rounds_after_a_partition_heals() -> None:
    net = Network(4, LINE)
    net.run(3)
    net.cut(1, 2)
    for broker in (1, 2):
        net.subscribe(broker, "g")
    net.run(3)
    assert net.claimants("g") == [1, 2]
    net.link(1, 2)
    net.run(2 * A)
    assert net.claimants("g") == [1]
    assert net.cores("g") == {1}


def test_r13_a_core_without_interest_stays_while_it_has_members() -> None:
    desk = Desk(peers=(1,))
    desk.say(1)
    desk.step(Subscribed("g"))
    desk.say(1, memberships=joined("g", 5))
    desk.step(Unsubscribed("g"))
    assert HandOver(5, "g") in desk.last_to(1).hand_overs
    desk.say(1)
    desk.wait(A, talking=(1,))
    assert not desk.last_to(1).hand_overs  # asked a moment ago
    desk.wait(A, talking=(1,))
    assert HandOver(5, "g") in desk.last_to(1).hand_overs  # asked again every round
    assert "g" in desk.machine._claims.own.groups
    core_known(desk, 1, 1)
    assert "g" not in desk.machine._claims.own.groups


def test_r13_a_core_without_interest_or_members_withdraws_at_once() -> None:
    desk = Desk(peers=(1,))
    desk.say(1)
    desk.step(Subscribed("g"))
    desk.say(1, memberships=joined("g", 5))
    desk.step(Unsubscribed("g"))
    assert "g" in desk.machine._claims.own.groups
    desk.say(1, memberships=left("g", 5, start=1))
    assert "g" not in desk.machine._claims.own.groups


def test_r14_a_core_without_interest_hands_over_to_a_member_and_loses_nothing() -> None:
    net = Network(4, LINE)
    net.run(3)
    net.subscribe(0, "g")
    net.run(0.2)
    net.subscribe(3, "g")
    net.run(0.5)
    net.unsubscribe(0, "g")
    for _ in range(40):
        net.publish(1, "g")
        net.run(0.01)
    net.run(1)
    assert net.claimants("g") == [3]  # the heir keeps it although 0 has the better key
    assert net.got(3) == ["g"] * 40
    assert net.cores("g") == {3}


def test_r14_a_hand_over_is_passed_down_the_mesh_to_one_with_interest() -> None:
    desk = Desk(peers=(1, 2))
    core_known(desk, 1, 1)
    desk.say(2, memberships=joined("g", 1))
    desk.say(1, hand_overs=(HandOver(1, "g"),))
    assert desk.last_to(2).hand_overs == (HandOver(1, "g"),)
    assert "g" not in desk.machine._claims.own.groups
    desk.step(Subscribed("g"))
    desk.say(1, hand_overs=(HandOver(1, "g"),))
    assert "g" in desk.machine._claims.own.groups
    desk.say(1, connections=joined("g", 1))
    assert "g" in desk.machine._claims.own.groups  # the heir keeps it although 1 has the better key
    desk.say(1, claim_deltas=(ClaimDelta(1, 1_000, 1, (ClaimChange("g", None),)),))
    assert desk.machine.core_of("g") == 5


def test_r15_an_heir_that_loses_its_interest_stays_until_the_old_core_has_gone() -> None:
    desk = Desk(peers=(1,))
    core_known(desk, 1, 1)
    desk.step(Subscribed("g"))
    desk.say(1, hand_overs=(HandOver(1, "g"),))
    desk.step(Unsubscribed("g"))
    # If it withdrew because 1 claims the group too, both would withdraw, each for the other.
    assert "g" in desk.machine._claims.own.groups
    desk.say(1, claim_deltas=(ClaimDelta(1, 1_000, 1, (ClaimChange("g", None),)),))
    assert desk.machine.core_of("g") == 5
    desk.wait((K + 2) * A, talking=(1,))
    assert desk.machine.core_of("g") is None  # nobody came


def test_r16_an_appointed_federator_claims_while_another_claim_lives_and_does_not_hand_over() -> None:
    desk = Desk(peers=(1, 7))
    desk.step(Appointed("g"))
    assert desk.machine.core_of("g") is None  # nobody wants it
    core_known(desk, 7, 7)
    assert desk.machine.core_of("g") == 5
    desk.say(1, memberships=joined("g", 5))
    desk.say(7, claim_deltas=(ClaimDelta(7, 1_000, 1, (ClaimChange("g", None),)),))
    desk.wait(A, talking=(1, 7))
    assert desk.machine.core_of("g") == 5  # it stays for its members
    assert not any(frame.hand_overs for frame in desk.frames[1])
    desk.say(1, memberships=left("g", 5, start=1))
    assert desk.machine.core_of("g") is None


def test_r16_an_appointment_that_ends_leaves_an_ordinary_core() -> None:
    desk = Desk(peers=(1, 7))
    desk.step(Appointed("g"))
    core_known(desk, 7, 7)
    desk.step(Appointed("g", is_appointed=False))
    assert desk.machine.core_of("g") == 7


def test_r17_the_management_group_spans_all_and_only_the_smallest_visible_id_claims_it() -> None:
    net = Network(6, PAPER)
    net.run(3)
    assert net.cores(MANAGEMENT_GROUP) == {0}
    elected = [e.broker for e in net.emitted if e.emit.name == "core_elected"]
    assert elected == [0]
    reached = {broker for link in net.mesh_links(MANAGEMENT_GROUP) for broker in link}
    assert reached == set(range(6))


@pytest.mark.parametrize(("peer", "claimant"), [(1, None), (7, 5)])
def test_r17_a_neighbour_with_a_smaller_id_keeps_us_from_claiming_the_management_group(
    peer: int, claimant: int | None
) -> None:
    desk = Desk(identity=5, peers=(peer,))
    desk.wait(4 * A, talking=(peer,))
    assert desk.machine.core_of(MANAGEMENT_GROUP) == claimant


def test_r17_the_management_groups_claim_advertises_the_grouping() -> None:
    net = Network(2, [(0, 1)], grouping=Grouping.parse("prefix:2"))
    net.run(2)
    controls = [sent.control for sent in net.sent if sent.source == 0 and sent.control is not None]
    told = [change for control in controls for delta in control.claim_deltas for change in delta.changes]
    told += [claim for control in controls for part in control.claim_parts for claim in part.claims]
    assert ClaimChange(MANAGEMENT_GROUP, RANK_DEFAULT, "prefix:2") in told


# --- claims ----------------------------------------------------------------------------------------------------------


def test_r18_a_claim_is_told_at_once_and_passed_on_once_per_link() -> None:
    net = Network(6, PAPER)
    net.subscribe(5, "f")  # so that the core is known, and only the change is new
    net.run(3.5)
    begin = net.now
    net.subscribe(5, "g")
    net.run(0.1)  # the largest distance is 3 hops of 10 ms
    assert net.cores("g") == {5}
    told = [
        (sent.source, sent.target)
        for sent in net.control_since(begin - 1e-9)
        if sent.control is not None
        for delta in sent.control.claim_deltas
        if any(change.group == "g" for change in delta.changes)
    ]
    assert len(told) == len(set(told)) <= 2 * len(PAPER)


def test_r19_a_federator_with_fewer_claims_than_announced_asks_the_neighbour_that_announced_them() -> None:
    desk = Desk()
    core_known(desk, 1, 9)
    desk.say(2, announcements=(Announcement(9, 1_000, 2, 2, 3),))
    assert desk.last_to(2).claim_requests == (ClaimRequest(9, 1_000, 1, -1, 0),)
    assert not any(frame.claim_requests for frame in desk.frames[1])


def test_r19_an_asker_gets_remembered_changes_or_else_the_whole_set_in_parts() -> None:
    desk = Desk(peers=(1,), claim_log_max=2, items_per_frame_max=3)
    desk.say(1)
    for number in range(6):
        desk.step(Subscribed(f"g{number}"))
    version = desk.machine._claims.own.version
    desk.say(1, claim_requests=(ClaimRequest(5, 1_000, version - 1, -1, 0),))
    assert desk.last_to(1).claim_deltas == (ClaimDelta(5, 1_000, version - 1, (ClaimChange("g5", RANK_DEFAULT),)),)
    got: list[ClaimChange] = []
    snapshot = -1
    while True:
        desk.say(1, claim_requests=(ClaimRequest(5, 0, 0, snapshot, len(got)),))
        (part,) = desk.last_to(1).claim_parts
        assert (part.version, part.offset) == (version, len(got))
        assert 0 < len(part.claims) <= 3
        got += part.claims
        snapshot = part.version
        if len(got) == part.total:
            break
    assert [change.group for change in got] == [f"g{number}" for number in range(6)]


def test_r20_the_old_claims_hold_until_a_new_epochs_set_is_whole() -> None:
    desk = Desk(peers=(1,))
    core_known(desk, 1, 9, ("a", "b"))
    desk.say(1, announcements=(Announcement(9, 1_001, 1, 1, 2),))
    assert (desk.machine.core_of("a"), desk.machine.core_of("b")) == (9, 9)
    assert desk.last_to(1).claim_requests == (ClaimRequest(9, 1_000, 2, -1, 0),)
    first = ClaimPart(9, 1_001, 2, 0, 2, (ClaimChange("b", 7),))
    desk.say(1, claim_parts=(first,))
    assert (desk.machine.core_of("a"), desk.machine.core_of("b")) == (9, 9)
    desk.say(1, claim_parts=(ClaimPart(9, 1_001, 2, 1, 2, (ClaimChange("c", 7),)),))
    assert [desk.machine.core_of(group) for group in "abc"] == [None, 9, 9]


def test_r21_a_group_given_up_while_wanted_counts_as_claimed_for_a_while() -> None:
    desk = Desk(5, (1,), announcement_interval_s=0.1)
    core_known(desk, 1, 9, ("g", "h"))
    ended = (ClaimChange("g", None, "left"), ClaimChange("h", None))
    desk.say(1, claim_deltas=(ClaimDelta(9, 1_000, 2, ended),))
    assert (desk.machine.is_known("g"), desk.machine.is_known("h")) == (True, False)
    desk.wait(desk.machine.settings.retention_s_max - 0.2, talking=[1])
    assert desk.machine.is_known("g")
    desk.wait(0.4, talking=[1])
    assert not desk.machine.is_known("g")


@pytest.mark.parametrize(("members", "note"), [((), ""), ((joined("g", 5),), "left")])
def test_r21_a_core_that_leaves_says_whether_it_had_members(members: tuple[SetDelta, ...], note: str) -> None:
    desk = Desk(5, (1,))
    desk.say(1)
    desk.step(Subscribed("g"))
    for step in members:
        desk.say(1, memberships=step)
    desk.step(Leave())
    (delta,) = desk.last_to(1).claim_deltas
    assert [change for change in delta.changes if change.group == "g"] == [ClaimChange("g", None, note)]


def test_r22_a_new_neighbour_is_told_which_cores_claim_nothing_any_longer() -> None:
    desk = Desk(5, (1,))
    core_known(desk, 1, 9)
    desk.say(1, claim_deltas=(ClaimDelta(9, 1_000, 1, (ClaimChange("g", None),)),))
    desk.up(2)
    desk.say(2)
    told = [part for frame in desk.frames[2] for part in frame.claim_parts]
    assert told == [ClaimPart(9, 1_000, 2, 0, 0, ())]


def test_r22_neighbours_are_asked_for_the_claims_of_cores_that_nobody_announces() -> None:
    desk = Desk(5, (1, 2))
    core_known(desk, 1, 9)
    desk.say(2)
    desk.step(LinkDown(1))
    desk.wait((2 * K + 1) * A, talking=[2])
    asked = [request for frame in desk.frames[2] for request in frame.claim_requests]
    assert set(asked) == {ClaimRequest(9, 1_000, 1, -1, 0)}


def test_r22_a_restarted_federator_that_claims_nothing_says_so() -> None:
    for stored_epoch, told in ((0, []), (7, [(ClaimChange(MANAGEMENT_GROUP, None),)])):
        desk = Desk(5, ())
        desk.machine = Machine(5, Settings(), now=0.0, wall_s=1_000, stored_epoch=stored_epoch)
        desk.up(1)
        desk.say(1)
        desk.wait(3 * A, talking=[1])
        assert [delta.changes for frame in desk.frames[1] for delta in frame.claim_deltas] == told


# --- routes ----------------------------------------------------------------------------------------------------------


def test_r23_a_core_announces_itself_every_interval_with_the_next_number_and_nobody_else_does() -> None:
    net = Network(2, [(0, 1)])
    net.run(2.5)
    begin = net.now
    net.run(4 * A)
    said = [
        (sent.source, announcement.core, announcement.sequence)
        for sent in net.control_since(begin)
        if sent.control is not None
        for announcement in sent.control.announcements
        if announcement.distance == 0
    ]
    first = said[0][2]
    assert said == [(0, 0, first + k) for k in range(4)]  # 1 claims nothing, so it is no core
    net.subscribe(1, "g")
    net.run(0.1)
    assert net.machines[0].distance_to(1) == 1


def test_r24_a_late_announcement_of_a_core_that_gave_everything_up_is_ignored_in_any_epoch() -> None:
    # An announcement of the epoch before made a route that late announcements of the newer epoch did not end.
    desk = Desk(peers=(1, 2))
    desk.say(1, claim_parts=(ClaimPart(9, 1_002, 6, 0, 0, ()),))
    for epoch, version in ((1_001, 9), (1_002, 6), (1_002, 0)):
        desk.say(2, announcements=(Announcement(9, epoch, 5, 1, version),))
        assert desk.machine.distance_to(9) is None
    desk.say(2, announcements=(Announcement(9, 1_002, 5, 1, 7),))
    assert desk.machine.distance_to(9) == 2


def test_r25_an_announcement_whose_number_stands_still_counts_for_k_intervals_and_one_per_hop() -> None:
    desk = Desk(peers=(1,))
    desk.say(1, announcements=(Announcement(9, 1_000, 1, 2, 0),))
    for _ in range(K + 2):
        desk.wait(A)
        desk.say(1, announcements=(Announcement(9, 1_000, 1, 2, 0),))
    assert desk.machine.distance_to(9) == 3
    desk.wait(A)
    assert desk.machine.distance_to(9) is None


def test_r25_an_announcement_whose_number_advances_keeps_counting() -> None:
    desk = Desk(peers=(1,))
    for sequence in range(1, 20):
        desk.say(1, announcements=(Announcement(9, 1_000, sequence, 2, 0),))
        desk.wait(A)
    assert desk.machine.distance_to(9) == 3


def test_r26_a_neighbour_counts_only_if_its_route_cannot_lead_through_us() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(1, announcements=(Announcement(9, 1_000, 5, 1, 0),))
    assert desk.machine.distance_to(9) == 2  # and so we announced at number 5
    desk.say(2, announcements=(Announcement(9, 1_000, 5, 2, 0),))
    desk.step(LinkDown(1))
    assert desk.machine.distance_to(9) is None  # 2 may have it from us
    desk.say(2, announcements=(Announcement(9, 1_000, 5, 1, 0),))
    assert desk.machine.distance_to(9) == 2  # nearer than we have been
    desk.step(LinkDown(2))
    desk.up(1)
    desk.say(1, announcements=(Announcement(9, 1_000, 6, 4, 0),))
    assert desk.machine.distance_to(9) == 5  # a number that we have never announced


def test_r27_the_parents_are_the_nearest_whoever_announced_first() -> None:
    desk = Desk(peers=(1, 2, 3, 4), redundancy=2)
    for peer, distance in ((4, 1), (1, 2), (3, 1), (2, 1)):
        desk.say(peer, announcements=(Announcement(9, 1_000, 1, distance, 0),))
    assert desk.machine.parents_of(9) == (2, 3)  # smaller ids first, at most two
    assert desk.machine.distance_to(9) == 2
    desk.say(4, announcements=(Announcement(9, 1_000, 8, 1, 0),))
    assert desk.machine.parents_of(9) == (2, 3)


def test_r27_the_number_announced_is_the_newest_among_the_nearest() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(1, announcements=(Announcement(9, 1_000, 4, 1, 0),))
    desk.say(2, announcements=(Announcement(9, 1_000, 7, 1, 0),))
    desk.wait(A)
    assert desk.last_to(1).announcements == (Announcement(9, 1_000, 7, 2, 0),)


def test_r28_a_change_goes_out_at_once_and_a_refresh_with_the_round() -> None:
    desk = Desk(peers=(1, 2))
    effects = desk.say(1, announcements=(Announcement(9, 1_000, 1, 1, 0),))
    assert {send.neighbour for send in sends(effects)} == {1, 2}
    assert not sends(desk.say(1, announcements=(Announcement(9, 1_000, 2, 1, 0),)))
    desk.wait(A)
    assert desk.last_to(2).announcements == (Announcement(9, 1_000, 2, 2, 0),)


def test_r28_changes_within_the_coalescing_time_travel_together() -> None:
    desk = Desk(peers=(1, 2), coalescing_s=0.005)
    desk.wait(0.5)
    begin = len(desk.frames[2])
    for core in (7, 8, 9):
        desk.say(1, announcements=(Announcement(core, 1_000, 1, 1, 0),))
    desk.wait(0.01)
    said = [[announcement.core for announcement in frame.announcements] for frame in desk.frames[2][begin:]]
    assert said == [[7], [8, 9]]


def test_r28_a_quiet_round_costs_one_frame_per_link_and_direction() -> None:
    net = Network(6, PAPER)
    net.subscribe(1, "a", "b", "c")
    net.subscribe(4, "c", "d")
    net.run(5.5)
    begin = net.now
    net.run(10 * A)
    ways = [(sent.source, sent.target) for sent in net.control_since(begin)]
    assert sorted(ways) == sorted([link for a, b in PAPER for link in ((a, b), (b, a))] * 10)


def test_r29_a_full_frame_withdraws_announcements_of_cores_that_it_does_not_list() -> None:
    desk = Desk(peers=(1,))
    desk.say(1, announcements=(Announcement(8, 1_000, 1, 1, 0), Announcement(9, 1_000, 1, 1, 0)))
    desk.say(1, announcements=(Announcement(8, 1_000, 2, 1, 0),))
    assert desk.machine.distance_to(9) == 2
    desk.say(1, is_full=True, announcements=(Announcement(8, 1_000, 3, 1, 0),))
    assert (desk.machine.distance_to(8), desk.machine.distance_to(9)) == (2, None)


def test_r30_a_federator_that_loses_its_last_parent_retracts_and_solicits_at_once() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(1, announcements=(Announcement(9, 1_000, 5, 1, 0),))
    desk.step(LinkDown(1))
    frame = desk.last_to(2)
    assert frame.announcements == (Announcement(9, 1_000, 6, UNREACHABLE, 0),)
    assert frame.solicits == (Solicit(9, 1_000, 6),)


def test_r30_the_solicit_asks_for_the_newest_number_that_waiting_neighbours_need() -> None:
    # 20 brokers in a ring whose core was lost on one side asked one after the other, one round trip each.
    desk = Desk(peers=(1, 2, 3))
    desk.say(1, announcements=(Announcement(9, 1_000, 5, 1, 0),))
    desk.say(2, solicits=(Solicit(9, 1_000, 8),))
    desk.step(LinkDown(1))
    assert desk.last_to(3).solicits == (Solicit(9, 1_000, 8),)


def test_r30_a_federator_without_a_route_solicits_a_neighbour_whose_route_is_too_old() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(1, announcements=(Announcement(9, 1_000, 5, 1, 0),))
    desk.step(LinkDown(1))
    desk.step(LinkDown(2))
    desk.wait(2 * K * A)  # long after the solicits at the loss
    desk.step(LinkUp(2))
    desk.say(2, announcements=(Announcement(9, 1_000, 4, 12, 0),))
    assert desk.machine.distance_to(9) is None
    assert desk.last_to(2).solicits == (Solicit(9, 1_000, 6),)
    desk.wait(A, talking=(2,))
    assert desk.last_to(2).solicits == (Solicit(9, 1_000, 6),)
    desk.say(2, announcements=(Announcement(9, 1_000, 6, 12, 0),))
    assert desk.machine.distance_to(9) == 13


def test_r31_a_neighbour_with_a_route_answers_a_solicit_at_once() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(1, announcements=(Announcement(9, 1_000, 5, 1, 0),))
    desk.say(1, announcements=(Announcement(9, 1_000, 6, 1, 0),))
    effects = desk.say(2, solicits=(Solicit(9, 1_000, 6),))
    (send,) = sends(effects)
    assert send.neighbour == 2
    assert send.frame.announcements == (Announcement(9, 1_000, 6, 2, 0),)


def test_r31_a_solicit_for_a_newer_number_is_passed_to_the_parents_and_answered_when_the_number_comes() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(1, announcements=(Announcement(9, 1_000, 5, 1, 0),))
    desk.say(2, solicits=(Solicit(9, 1_000, 6),))
    assert desk.last_to(1).solicits == (Solicit(9, 1_000, 6),)
    effects = desk.say(1, announcements=(Announcement(9, 1_000, 6, 1, 0),))
    assert Announcement(9, 1_000, 6, 2, 0) in [
        a for s in sends(effects) if s.neighbour == 2 for a in s.frame.announcements
    ]


def test_r31_the_core_honours_a_solicit_for_its_next_number_and_no_larger_one() -> None:
    desk = Desk(peers=(1,))
    desk.say(1)
    desk.step(Subscribed("g"))
    desk.wait(A, talking=(1,))
    number = desk.last_to(1).announcements[0].sequence
    desk.say(1, solicits=(Solicit(5, 1_000, number + 1),))
    assert desk.last_to(1).announcements[0].sequence == number + 1
    desk.say(1, solicits=(Solicit(5, 1_000, number + 1_000),))
    assert desk.last_to(1).announcements[0].sequence == number + 1


def test_r31_a_cut_link_is_healed_through_others_within_a_fraction_of_a_round() -> None:
    net = Network(6, PAPER)
    net.run(3.5)
    net.subscribe(0, "g")
    net.run(0.2)
    net.cut(0, 1)  # 1's only route to 0: the others must be asked for a newer one
    net.run(0.2)
    assert net.machines[1].distance_to(0) == 3
    assert net.machines[1].parents_of(0) == (3,)


# --- the mesh --------------------------------------------------------------------------------------------------------


def test_r32_interest_sends_a_membership_to_all_parents_towards_the_core() -> None:
    desk = Desk(peers=(1, 2, 3), redundancy=2)
    for peer in (1, 2, 3):
        core_known(desk, peer, 9)
    desk.step(Subscribed("g"))
    assert [SetStep(True, 9, "g") in steps_to(desk, peer) for peer in (1, 2, 3)] == [True, True, False]
    desk.step(Unsubscribed("g"))
    assert [SetStep(False, 9, "g") in steps_to(desk, peer) for peer in (1, 2, 3)] == [True, True, False]


def test_r33_a_neighbours_membership_is_passed_on_but_never_to_a_parent_for_its_own_sake() -> None:
    desk = Desk(peers=(1, 2, 3))
    core_known(desk, 1, 9)
    core_known(desk, 2, 9)
    desk.say(1, memberships=joined("g", 9))
    assert SetStep(True, 9, "g") in steps_to(desk, 2)
    assert SetStep(True, 9, "g") not in steps_to(desk, 1)
    desk.say(3, memberships=joined("g", 9))
    assert SetStep(True, 9, "g") in steps_to(desk, 1)


def test_r34_a_child_is_told_connected_when_the_parent_is_the_core_or_is_itself_connected() -> None:
    desk = Desk(peers=(1, 2))
    core_known(desk, 1, 9)
    desk.say(2, memberships=joined("g", 9))
    assert steps_to(desk, 2, "connections") == []
    desk.say(1, connections=joined("g", 9))
    assert steps_to(desk, 2, "connections") == [SetStep(True, 9, "g")]
    desk.step(LinkDown(1))
    assert steps_to(desk, 2, "connections") == [SetStep(True, 9, "g"), SetStep(False, 9, "g")]
    core = Desk(peers=(1,))
    core.say(1)
    core.step(Subscribed("g"))
    core.say(1, memberships=joined("g", 5))
    assert steps_to(core, 1, "connections") == [SetStep(True, 5, "g")]


def test_r35_a_former_parent_keeps_the_membership_until_the_new_one_is_connected() -> None:
    desk = Desk(peers=(1, 2), redundancy=1)
    desk.step(Subscribed("g"))
    desk.say(2)
    changes = (ClaimChange("g", RANK_DEFAULT),)
    desk.say(2, announcements=(Announcement(9, 1_000, 1, 2, 1),), claim_deltas=(ClaimDelta(9, 1_000, 0, changes),))
    desk.say(2, connections=joined("g", 9))
    assert desk.machine.mesh_neighbours("g") == (2,)
    desk.say(1, announcements=(Announcement(9, 1_000, 1, 1, 1),))
    assert desk.machine.parents_of(9) == (1,)
    assert desk.machine.mesh_neighbours("g") == (1, 2)  # made, not yet broken
    assert SetStep(False, 9, "g") not in steps_to(desk, 2)
    desk.say(1, connections=joined("g", 9))
    assert desk.machine.mesh_neighbours("g") == (1,)
    assert SetStep(False, 9, "g") in steps_to(desk, 2)


def test_r35_a_former_cores_mesh_is_left_only_when_the_new_core_is_connected() -> None:
    desk = Desk(peers=(7, 1))
    core_known(desk, 7, 7)
    desk.say(1)
    desk.step(Subscribed("g"))
    desk.say(7, connections=joined("g", 7))
    core_known(desk, 1, 1)
    assert desk.machine.core_of("g") == 1
    assert desk.machine.mesh_neighbours("g") == (1, 7)
    desk.say(1, connections=joined("g", 1))
    assert desk.machine.mesh_neighbours("g") == (1,)


def test_r36_memberships_of_others_hold_for_a_while_after_a_core_gives_a_group_up() -> None:
    desk = Desk(peers=(1, 2))
    core_known(desk, 1, 9, ("g", "h"))
    desk.say(2, memberships=joined("g", 9))
    assert desk.machine.mesh_neighbours("g") == (1, 2)
    desk.say(1, claim_deltas=(ClaimDelta(9, 1_000, 2, (ClaimChange("g", None),)),))

    def talk(rounds: int) -> None:
        for _ in range(rounds):
            sequence = int(desk.now) + 10
            desk.wait(A)
            desk.say(1, announcements=(Announcement(9, 1_000, sequence, 1, 3),))
            desk.say(2)

    talk(2 * K)
    assert desk.machine.mesh_neighbours("g") == (1, 2)
    talk(2)
    assert desk.machine.mesh_neighbours("g") == (2,)
    assert SetStep(False, 9, "g") in steps_to(desk, 1)


def test_r36_a_member_that_becomes_the_core_stays_in_the_former_mesh_until_the_others_find_it() -> None:
    desk = Desk(peers=(1,))
    core_known(desk, 1, 1)
    desk.step(Subscribed("g"))
    desk.say(1, hand_overs=(HandOver(1, "g"),))
    desk.say(1, claim_deltas=(ClaimDelta(1, 1_000, 1, (ClaimChange("g", None),)),))
    assert desk.machine.core_of("g") == 5
    assert desk.machine.mesh_neighbours("g") == (1,)
    desk.wait((K + 2) * A, talking=(1,))
    assert desk.machine.mesh_neighbours("g") == ()
    assert steps_to(desk, 1)[-1] == SetStep(False, 1, "g")


def test_r37_leaving_is_one_frame_that_ends_claims_and_memberships() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(1)
    desk.say(2)
    desk.step(Subscribed("g"))
    effects = desk.step(Leave())
    assert {send.neighbour for send in sends(effects)} == {1, 2}
    for send in sends(effects):
        assert send.frame.is_leaving
        assert [change for delta in send.frame.claim_deltas for change in delta.changes][-1] == ClaimChange("g", None)
    assert desk.step(Subscribed("h")) == []  # it has stopped


def test_r37_a_neighbour_that_leaves_is_forgotten_with_its_memberships_and_claims() -> None:
    net = Network(3, [(0, 1), (1, 2)])
    net.run(3)
    net.subscribe(2, "g")
    net.run(0.2)
    net.subscribe(0, "g")
    net.run(0.5)
    net.leave(2)
    assert net.machines[1].neighbours() == (0,)
    assert 2 not in net.machines[1].mesh_neighbours("g")
    net.run(A)
    assert net.cores("g") == {0}


def test_r38_a_link_lost_without_a_goodbye_leaves_the_memberships_in_place_for_a_time() -> None:
    desk = Desk(peers=(1,), absence_s=30.0)
    desk.say(1)
    desk.step(Subscribed("g"))
    desk.say(1, memberships=joined("g", 5))
    desk.step(LinkDown(1))
    desk.wait(29)
    desk.step(Unsubscribed("g"))
    assert desk.machine.core_of("g") == 5  # for the absent member
    desk.wait(2)
    assert desk.machine.core_of("g") is None


def test_r38_after_a_restart_the_memberships_hold_until_the_new_set_is_whole() -> None:
    desk = Desk(peers=(1,))
    desk.say(1)
    desk.step(Subscribed("g"))
    desk.step(Subscribed("h"))
    desk.say(1, memberships=SetDelta(1, 0, 0, (SetStep(True, 5, "g"), SetStep(True, 5, "h"))))
    desk.epochs[1] = 1_001
    desk.say(1)
    desk.say(1, memberships=SetDelta(1, 0, 2, (SetStep(True, 5, "g"),)))
    assert (desk.machine.mesh_neighbours("g"), desk.machine.mesh_neighbours("h")) == ((1,), (1,))
    desk.say(1, memberships=SetDelta(1, 1, 2, (SetStep(True, 5, "i"),)))
    assert (desk.machine.mesh_neighbours("g"), desk.machine.mesh_neighbours("h")) == ((1,), ())


@pytest.mark.parametrize("policy", ["filter", "prefix:1", "prefix:2", "single"])
def test_r39_a_group_covers_its_filters_so_nothing_is_lost_under_any_policy(policy: str) -> None:
    grouping = Grouping.parse(policy)
    for filter_ in ("a", "a/b/c", "a/+/c", "+/b", "#", "$share/s/a/b/c", "$hanse/telemetry/x"):
        assert covers(grouping.group_of(filter_), filter_)
    net = Network(3, [(0, 1), (1, 2)], grouping=grouping)
    net.run(3)
    net.subscribe(0, "a/b/c")
    net.subscribe(2, "a/+/c")
    net.run(1)
    net.publish(1, "a/b/c")
    net.run(0.1)
    assert net.got(0) == net.got(2) == ["a/b/c"]


def test_r39_a_federator_whose_grouping_differs_from_the_advertised_one_reports_it() -> None:
    desk = Desk(peers=(1,))
    desk.say(
        1,
        announcements=(Announcement(1, 1_000, 1, 0, 1),),
        claim_deltas=(ClaimDelta(1, 1_000, 0, (ClaimChange(MANAGEMENT_GROUP, RANK_DEFAULT, "prefix:2"),)),),
    )
    assert [(emit.core, emit.detail) for emit in desk.emitted("grouping_differs")] == [(1, "prefix:2")]


def test_r40_steps_are_sent_again_until_they_are_acknowledged() -> None:
    desk = Desk(peers=(1,))
    core_known(desk, 1, 1)
    desk.step(Subscribed("g"))

    def times() -> int:
        return steps_to(desk, 1).count(SetStep(True, 1, "g"))

    assert times() == 1
    desk.wait(2 * A, talking=(1,))
    assert times() == 2
    desk.say(1, memberships_ack=SetAck(1, 1), announcements=(Announcement(1, 1_000, 9, 0, 1),))
    desk.wait(2 * A)
    assert times() == 2


def test_r41_a_restarted_neighbour_gets_the_whole_set_in_a_new_generation() -> None:
    desk = Desk(peers=(1,))
    core_known(desk, 1, 1, ("g", "h"))
    desk.step(Subscribed("g"))
    desk.step(Subscribed("h"))
    desk.say(1, memberships_ack=SetAck(1, 2))
    desk.epochs[1] = 1_001
    desk.say(1)
    assert desk.last_to(1).memberships == SetDelta(2, 0, 2, (SetStep(True, 1, "g"), SetStep(True, 1, "h")))


# --- publications ----------------------------------------------------------------------------------------------------


def three_neighbours(**settings: Any) -> Desk:
    """Return federator 5, in the meshes of `g` (1 and 2) and `+` (2), outsider to `h` (core 9, behind 1 and 3)."""
    desk = Desk(peers=(1, 2, 3), **settings)
    core_known(desk, 1, 1, ("g",))
    desk.say(2)
    desk.say(2, memberships=SetDelta(1, 0, 0, (SetStep(True, 1, "g"), SetStep(True, 5, "+"))))
    core_known(desk, 1, 9, ("h",))
    core_known(desk, 3, 9, ("h",))
    desk.step(Subscribed("g"))
    desk.step(Subscribed("+"))
    assert desk.machine.core_of("+") == 5
    return desk


def run_of(
    *topics: str, groups: tuple[str, ...], origin: int = 8, first: int = 0, hops: int = 1, epoch: int = 1
) -> Run:
    body = b"".join(packet(topic) for topic in topics)
    return Run(origin, epoch, first, len(topics), 0, hops, groups, body)


def test_r42_a_publication_gets_the_next_id_and_goes_once_over_each_link_with_the_groups_it_serves() -> None:
    machine = three_neighbours().machine
    routed = machine.publish(0.0, [publication("g"), publication("g"), publication("h")])
    assert {
        neighbour: [(run.first, run.length, run.groups) for run in runs] for neighbour, runs in routed.frames.items()
    } == {
        1: [(0, 2, ("g",)), (2, 1, ("h",))],
        2: [(0, 2, ("+", "g")), (2, 1, ("+",))],
        3: [(2, 1, ("h",))],
    }
    (later,) = machine.publish(0.0, [publication("g")]).frames[1]
    assert (later.origin, later.epoch, later.first, later.hops) == (5, 1_000, 3, 1)


def test_r43_in_the_mesh_a_publication_goes_to_all_mesh_neighbours_but_the_sender() -> None:
    desk = three_neighbours()
    for sender, expected in ((1, {2}), (2, {1}), (3, {1, 2})):
        run = run_of("g", groups=("g",), first=sender)
        assert set(desk.machine.forward(0.0, sender, [run]).frames) == expected


@pytest.mark.parametrize(("outsider", "expected"), [("all_parents", {1, 3}), ("one_parent", {1})])
def test_r44_an_outsiders_publication_goes_to_the_parents_towards_the_core(outsider: str, expected: set[int]) -> None:
    desk = three_neighbours(outsider=outsider)
    assert set(desk.machine.forward(0.0, 2, [run_of("h", groups=("h",))]).frames) == expected


def test_r44_an_outsiders_publication_enters_the_mesh_at_the_first_member() -> None:
    net = Network(6, PAPER)
    net.run(3)
    net.subscribe(1, "g")
    net.run(0.3)
    net.subscribe(5, "g")
    net.run(0.3)
    begin = len(net.sent)
    net.publish(2, "g")
    net.run(0.3)
    hops = [(sent.source, sent.target) for sent in net.sent[begin:] if sent.runs]
    assert (3, 5) in hops  # not only through the core
    assert net.got(1) == net.got(5) == ["g"]


def test_r45_the_rest_of_a_former_cores_mesh_reaches_the_core_like_an_outsider() -> None:
    # 2 relays for 3 towards core 0, which both are cut off from. 4, on their own side, is the core that exists.
    net = Network(5, [(0, 1), (1, 2), (2, 3), (1, 4)], redundancy=1)
    net.run(3)
    net.subscribe(0, "g")
    net.run(0.3)
    net.subscribe(3, "g")
    net.subscribe(4, "g")
    net.run(2)
    net.cut(0, 1)
    net.cut(2, 3)
    net.run(6)
    assert net.machines[2].mesh_neighbours("g") == (1,)
    assert net.machines[2].core_of("g") == 4
    net.publish(2, "g")
    net.run(0.3)
    assert net.got(4) == ["g"]


def test_r46_a_publication_whose_only_route_is_its_sender_goes_to_the_former_cores_parents() -> None:
    # Core 7 is behind 1, core 8 behind 2. 2 has not heard yet that 7 gave the group up, and sends towards it.
    desk = Desk(peers=(1, 2))
    core_known(desk, 1, 7)
    desk.say(2)
    core_known(desk, 2, 8)
    desk.say(1, claim_deltas=(ClaimDelta(7, 1_000, 1, (ClaimChange("g", None),)),))
    assert desk.machine.parents_of(8) == (2,)
    assert set(desk.machine.forward(desk.now, 2, [run_of("g", groups=("g",))]).frames) == {1}
    assert set(desk.machine.forward(desk.now, 1, [run_of("g", groups=("g",), first=1)]).frames) == {2}
    assert desk.machine.parked_bytes == 0
    desk.wait((K + 2) * A, talking=(1, 2))
    desk.machine.forward(desk.now, 2, [run_of("g", groups=("g",), first=2)])
    assert desk.machine.parked_bytes > 0  # by now all have heard of it: the routes are changing


def test_r46_a_publication_from_a_core_to_a_former_member_has_been_served() -> None:
    """It was returned, and went through the whole mesh once more: thousands of them after a restart."""
    desk = Desk(5, (1, 2))
    core_known(desk, 1, 1)
    run = run_of("g", groups=("g",), origin=8)._replace(qos=1, body=packet("g", qos=1))
    assert Acknowledge(1, (7,)) in desk.machine.forward(desk.now, 1, [run], 7).effects
    assert desk.machine.counters["blocked"] == 0
    # An outsider on the route to the core is different: its route leads through us.
    other = Desk(5, (1, 2))
    core_known(other, 1, 9)
    assert other.machine.forward(other.now, 1, [run], 7).effects == ()
    assert other.machine.counters["blocked"] == 1


def test_r47_a_duplicate_is_forwarded_only_for_groups_that_it_was_not_served_for() -> None:
    desk = three_neighbours()
    first = desk.machine.forward(0.0, 3, [run_of("g", groups=("g",))])
    assert (set(first.frames), len(first.deliveries)) == ({1, 2}, 1)
    again = desk.machine.forward(0.0, 3, [run_of("g", groups=("g",))])
    assert again[:2] == ({}, [])
    wider = desk.machine.forward(0.0, 3, [run_of("g", groups=("+", "g"))])
    assert [run.groups for run in wider.frames[2]] == [("+",)]
    assert 1 not in wider.frames
    assert wider.deliveries == []
    assert desk.machine.counters["duplicates"] == 1


def test_r47_a_publication_that_returns_to_its_origin_is_dropped() -> None:
    desk = three_neighbours()
    assert desk.machine.forward(0.0, 1, [run_of("g", groups=("g",), origin=5)])[:2] == ({}, [])
    assert desk.machine.counters["duplicates"] == 1


def test_r47_each_subscriber_gets_one_copy_in_a_full_mesh_of_eight() -> None:
    net = Network(8, [(i, j) for i in range(8) for j in range(i)], redundancy=3)
    net.run(3)
    for broker in range(8):
        net.subscribe(broker, "g", "#")
    net.run(2)
    net.publish(4, "g")
    net.run(1)
    assert [net.got(broker) for broker in range(8)] == [[] if broker == 4 else ["g"] for broker in range(8)]


def sent_on(desk: Desk, neighbour: int, run: Run, receipt: int) -> set[int]:
    return set(desk.machine.forward(desk.now, neighbour, [run], receipt).tokens)


def test_r48_a_publication_that_comes_back_outside_a_mesh_goes_to_neighbours_that_did_not_get_it() -> None:
    """Seed 333: a federator lost its route, waited, and found one through us, but we took it for a duplicate."""
    desk = Desk(5, (1, 2, 3, 4))
    core_known(desk, 2, 9, ("g",))
    run = run_of("g", groups=("g",), origin=8)._replace(qos=1, body=packet("g", qos=1))
    assert sent_on(desk, 1, run, 11) == {2}
    assert sent_on(desk, 4, run, 12) == set()
    desk.say(2, announcements=(Announcement(9, 1_000, 2, UNREACHABLE, 0),))
    desk.say(3, announcements=(Announcement(9, 1_000, 2, 1, 1),))
    assert desk.machine.parents_of(9) == (3,)
    assert sent_on(desk, 4, run._replace(qos=0, body=packet("g")), 0) == set()
    assert sent_on(desk, 4, run, 13) == {3}
    assert sent_on(desk, 1, run, 14) == set()
    assert desk.machine.in_custody == 2
    # If there is no route at all, it waits.
    desk.say(3, announcements=(Announcement(9, 1_000, 3, UNREACHABLE, 0),))
    assert desk.machine.parents_of(9) == ()
    assert sent_on(desk, 4, run, 15) == set()
    assert desk.machine.in_custody == 3


def test_r48_a_duplicate_of_a_waiting_publication_does_not_wait_and_nothing_is_sent_twice() -> None:
    desk = Desk(5, (1, 2, 4))
    core_known(desk, 2, 9, ("g",))
    desk.say(2, announcements=(Announcement(9, 1_000, 2, UNREACHABLE, 0),))
    run = run_of("g", groups=("g",), origin=8)._replace(qos=1, body=packet("g", qos=1))
    assert sent_on(desk, 1, run, 11) == sent_on(desk, 4, run, 12) == set()
    assert desk.machine.in_custody == 1
    (sent,) = effects_of(SendRuns, desk.say(2, announcements=(Announcement(9, 1_000, 3, 1, 1),)))
    assert sent.neighbour == 2
    assert sent_on(desk, 4, run, 13) == set()


def test_r48_a_publication_that_comes_back_to_its_origin_outside_a_mesh_goes_on() -> None:
    desk = Desk(5, (1, 2))
    core_known(desk, 2, 9, ("g",))
    run = run_of("g", groups=("g",), origin=5)._replace(qos=1, body=packet("g", qos=1))
    (sent,) = effects_of(SendRuns, desk.machine.forward(0.0, 1, [run], 11).effects)
    assert (sent.neighbour, sent.runs[0].groups, sent.runs[0].is_returned) == (2, ("g",), False)
    assert desk.machine.forward(0.0, 1, [run._replace(qos=0, body=packet("g"))])[:2] == ({}, [])
    assert desk.machine.counters["duplicates"] == 1


def test_r49_a_hop_that_does_not_know_a_group_matches_the_topics_itself() -> None:
    desk = three_neighbours()
    routed = desk.machine.forward(0.0, 3, [run_of("g", "nobody/wants", groups=("new/#", "other"))])
    assert [(run.first, run.groups) for run in routed.frames[2]] == [(0, ("+", "g"))]
    assert [(run.first, run.groups) for run in routed.frames[1]] == [(0, ("g",))]
    assert [run.first for run in routed.deliveries] == [0]
    assert desk.machine.counters["dropped_unknown_group"] == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_r49_a_group_that_the_sender_serves_in_the_same_frame_does_not_go_back_to_it(order: tuple[int, int]) -> None:
    desk = three_neighbours()
    copies = [run_of("g", "g", groups=("new/#",)), run_of("g", groups=("g",), first=1)]
    routed = desk.machine.forward(0.0, 2, [copies[k] for k in order])
    # 2 did not serve `g` with the first publication, and did with the second. It served `+` with neither.
    assert sorted((run.first, run.groups) for run in routed.frames[2]) == [(0, ("+", "g")), (1, ("+",))]
    assert sorted((run.first, run.groups) for run in routed.frames[1]) == [(0, ("g",)), (1, ("g",))]
    assert sorted(run.first for run in routed.deliveries) == [0, 1]


def test_r49_publications_that_match_the_same_groups_stay_together() -> None:
    desk = three_neighbours()
    topics = ("g", "g", "g", "nobody/wants", "nobody/wants", "g")
    routed = desk.machine.forward(0.0, 3, [run_of(*topics, groups=("new/#",))])
    assert [(run.first, run.length) for run in routed.frames[1]] == [(0, 3), (5, 1)]
    assert [(run.first, run.length) for run in routed.deliveries] == [(0, 3), (5, 1)]
    assert [len(split(run.body)) for run in routed.deliveries] == [3, 1]
    assert desk.machine.counters["dropped_unknown_group"] == 2


def test_r50_a_publication_that_has_made_too_many_hops_is_dropped_and_counted() -> None:
    desk = three_neighbours()
    limit = 64  # core 9 is two hops away: the least limit holds
    assert desk.machine.forward(0.0, 3, [run_of("g", groups=("g",), hops=limit)]).frames
    assert desk.machine.forward(0.0, 3, [run_of("g", groups=("g",), first=1, hops=limit + 1)])[:2] == ({}, [])
    assert desk.machine.counters["dropped_hops"] == 1


def test_r50_the_hop_limit_grows_with_the_largest_known_distance_up_to_the_frames_maximum() -> None:
    desk = Desk(peers=(1,))
    core_known(desk, 1, 9)
    desk.say(1, announcements=(Announcement(9, 1_000, 9, 99, 1),))
    assert desk.machine.hop_limit() == 2 * 100 + 4
    desk.say(1, announcements=(Announcement(9, 1_000, 10, 999, 1),))
    assert desk.machine.hop_limit() == 254


def test_r51_a_publication_without_a_route_waits_in_order() -> None:
    desk = Desk(peers=(1, 2))
    core_known(desk, 1, 9)
    desk.step(LinkDown(1))
    for name in (b"1", b"2"):
        assert desk.machine.publish(desk.now, [publication("g", name)]).frames == {}
    routed = desk.machine.forward(desk.now, 2, [run_of("g", groups=("g",))])
    assert routed.frames == {}
    assert desk.machine.parked_bytes > 0
    effects = desk.up(1) + desk.say(1, announcements=(Announcement(9, 1_000, 9, 1, 1),))
    (sent,) = [effect for effect in effects if isinstance(effect, SendRuns)]
    assert sent.neighbour == 1
    assert [(run.origin, run.first) for run in sent.runs] == [(5, 0), (5, 1), (8, 0)]
    assert desk.machine.parked_bytes == 0


def test_r51_publications_that_wait_too_long_or_take_too_much_are_dropped_and_counted() -> None:
    desk = Desk(peers=(1, 2), parked_bytes_max=20)
    core_known(desk, 1, 9)
    desk.step(LinkDown(1))
    for _ in range(3):
        desk.machine.publish(desk.now, [publication("g", b"12")])  # 8 bytes each
    assert desk.machine.parked_bytes == 16
    assert desk.machine.counters["dropped_parked_full"] == 1
    desk.wait((K + 1.5) * A)
    assert desk.machine.parked_bytes == 16
    desk.wait(A)
    assert desk.machine.parked_bytes == 0
    assert desk.machine.counters["parked_expired"] == 2


def test_r52_ids_are_remembered_for_the_set_time_and_older_duplicates_are_refused() -> None:
    desk = three_neighbours(seen_s=10.0)
    run = run_of("g", groups=("g",), first=3)
    desk.machine.forward(0.0, 3, [run])
    desk.machine.forward(0.0, 3, [run_of("g", groups=("g",), first=5_000)])
    desk.wait(9)
    assert desk.machine.forward(desk.now, 3, [run])[:2] == ({}, [])
    assert desk.machine.counters["duplicates"] == 1
    desk.wait(12)
    assert desk.machine.forward(desk.now, 3, [run])[:2] == ({}, [])
    assert desk.machine.counters["refused_old"] == 1


def test_r52_the_newest_epochs_of_an_origin_count_and_older_ones_are_refused() -> None:
    desk = three_neighbours()
    for epoch in (2, *range(3, EPOCHS_MAX + 2), 2, EPOCHS_MAX + 2):
        desk.machine.forward(0.0, 3, [run_of("g", groups=("g",), epoch=epoch)])
    assert desk.machine.counters["duplicates"] == 1
    assert desk.machine.forward(0.0, 3, [run_of("g", groups=("g",), epoch=2, first=7)])[:2] == ({}, [])
    assert desk.machine.counters["refused_old"] == 1


def test_r53_a_federator_subscribes_only_to_what_others_want() -> None:
    desk = Desk(peers=(1,))
    desk.say(1)
    assert desk.step(Subscribed("g"))
    assert desk.machine.host_subscriptions() == set()  # only local
    effects = desk.say(1, memberships=joined("g", 5))
    assert SubscribeHost("g") in effects
    effects = desk.say(1, memberships=left("g", 5, start=1))
    assert UnsubscribeHost("g") in effects
    core_known(desk, 1, 9, ("h", "$SYS/#", "federator/#", "hanse/probe/+", "$hanse/telemetry/v1/#"))
    assert desk.machine.host_subscriptions() == {"h", "$hanse/telemetry/v1/#"}


@pytest.mark.parametrize("topic", ["federator/core_ann/1", "federated_topology_ann", "hanse/probe/1", "$SYS/uptime"])
def test_r54_closed_topics_never_cross_even_under_a_wide_filter(topic: str) -> None:
    desk = Desk(peers=(1,))
    core_known(desk, 1, 1, ("#", "federator/#", "+", "$SYS/#", "hanse/#"))
    assert desk.machine.publish(0.0, [publication(topic)]).frames == {}
    assert desk.machine.counters["parked"] == 0


# --- custody of QoS 1 and 2 ------------------------------------------------------------------------------------------


def chain(length: int = 3, **settings: Any) -> Network:
    """Return a converged line of federators, the last of them with a subscriber to g."""
    links = [(k, k + 1) for k in range(length - 1)]
    net = Network(length, links, interest={length - 1: ["g"]}, **settings)
    net.run(5)
    return net


def own(net: Network, broker: int) -> int:
    return len(net.hosts[broker].unacknowledged)


def on_disk(net: Network, broker: int) -> int:
    return sum(map(len, net.hosts[broker].outbox.values()))


def effects_of(kind: type, effects: Any) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def test_r55_the_giver_is_acknowledged_when_every_destination_has_acknowledged() -> None:
    net = chain()
    net.publish(0, "g", qos=1)
    net.run(0.015)
    assert own(net, 0) == 1
    net.run(0.1)
    assert net.got(2) == ["g"]
    assert own(net, 0) == 0
    assert [machine.in_custody for machine in net.machines.values()] == [0, 0, 0]


def test_r55_an_empty_batch_is_acknowledged_at_once() -> None:
    desk = Desk()
    desk.say(1)
    routed = desk.machine.publish(0.0, [publication("nobody", qos=1)], 7)
    assert routed.effects == [Acknowledge(HOST, (7,))]


def two_ways(**settings: Any) -> Desk:
    """Return federator 5 in the mesh of g: its core is 1, and 2 and 3 have joined through it."""
    desk = Desk(5, (1, 2, 3), **settings)
    desk.say(
        1,
        announcements=(Announcement(1, 1_000, 1, 0, 1),),
        claim_deltas=(ClaimDelta(1, 1_000, 0, (ClaimChange("g", 100),)),),
    )
    for peer in (2, 3):
        desk.say(peer, memberships=SetDelta(1, 0, 1, (SetStep(True, 1, "g"),)))
    return desk


def test_r56_a_duplicate_from_another_sender_is_acknowledged_at_once() -> None:
    desk = two_ways()
    run = run_of("g", groups=("g",), origin=8)._replace(qos=1, body=packet("g", qos=1))
    first = desk.machine.forward(0.0, 1, [run], 11)
    assert set(first.tokens) == {2, 3}
    assert first.effects == ()
    assert desk.machine.forward(0.0, 2, [run], 12).effects == [Acknowledge(2, (12,))]


def test_r56_a_duplicate_from_the_same_sender_is_acknowledged_with_the_first() -> None:
    desk = two_ways()
    run = run_of("g", groups=("g",), origin=8)._replace(qos=1, body=packet("g", qos=1))
    tokens = desk.machine.forward(0.0, 1, [run], 11).tokens
    assert desk.machine.forward(0.0, 1, [run], 12).effects == ()
    assert desk.machine.acknowledged(0.0, 2, [tokens[2]]) == []
    assert desk.machine.acknowledged(0.0, 3, [tokens[3]]) == [Acknowledge(1, (11,)), Acknowledge(1, (12,))]
    # By now it is a duplicate of something that is done.
    assert desk.machine.forward(0.0, 1, [run], 13).effects == [Acknowledge(1, (13,))]


def test_r56_a_sender_that_restarted_waits_with_its_former_process() -> None:
    desk = two_ways()
    run = run_of("g", groups=("g",), origin=8)._replace(qos=1, body=packet("g", qos=1))
    tokens = desk.machine.forward(0.0, 1, [run], 11).tokens
    desk.epochs[1] = 2_000
    desk.say(1, number=1, echo_epoch=0, echo_number=0)
    assert desk.machine.forward(0.0, 1, [run], 12).effects == ()
    assert desk.machine.acknowledged(0.0, 2, [tokens[2]]) == []
    assert Acknowledge(1, (12,)) in desk.machine.acknowledged(0.0, 3, [tokens[3]])


def test_r56_a_publication_survives_the_kill_of_its_origin_and_then_of_the_next_hop() -> None:
    """The first hop has it in memory only, and the host broker of the origin has no acknowledgement yet."""
    net = Network(3, [(0, 1), (1, 2)], interest={2: ["g"]})
    net.run(5)
    machine = net.machines[0]
    identity = (machine.epoch, machine.next_id)
    net.deaf.add((1, 2))
    net.publish(0, "g", b"x", qos=1)
    net.run(0.1)
    assert net.hosts[0].unacknowledged
    net.crash(0)
    net.restart(0, [1])
    net.run(0.1)
    net._route(0, net.machines[0].publish(net.now, [publication("g", b"x", qos=1)], 901, identity))
    net.run(0.1)
    net.hosts[0].unacknowledged.add(901)
    net.crash(1)
    net.deaf.clear()
    net.restart(1, [0, 2])
    net.run(60)
    assert net.got(2) == ["g"]


def test_r57_publications_the_host_broker_acknowledged_are_not_delivered_by_the_next_process() -> None:
    net = chain(2)
    net.publish(0, "g", qos=2)
    net.run(1)
    machine = net.machines[1]
    again = next(sent for sent in net.sent if sent.runs)
    net.crash(1)
    net.restart(1, [0])
    net.run(3)
    assert net.machines[1] is not machine
    net._route(1, net.machines[1].forward(net.now, 0, again.runs, 0))
    assert net.got(1) == ["g"]


def test_r58_publications_the_host_broker_hands_in_again_keep_their_ids() -> None:
    net = chain(2)
    machine = net.machines[0]
    epoch, number = machine.epoch, machine.next_id
    net._route(0, machine.publish(net.now, [publication("g", qos=2)], 0))
    net.run(0.1)
    net._route(0, machine.publish(net.now, [publication("g", qos=2)], 0, (epoch, number)))
    net.run(0.1)
    assert net.got(1) == ["g"]
    assert machine.next_id == number + 1


def test_r59_beyond_the_window_publications_wait_in_order() -> None:
    net = chain(2, window_bytes=1)
    for number in range(4):
        net.publish(0, "g", b"%d" % number, qos=1)
    assert len([sent for sent in net.sent if sent.runs]) == 1
    net.run(1)
    assert [delivered.packet[-1:] for delivered in net.deliveries] == [b"0", b"1", b"2", b"3"]


def test_r60_unacknowledged_publications_are_sent_again() -> None:
    net = chain(2)
    net.deaf.add((0, 1))
    net.publish(0, "g", qos=1)
    net.run(0.5)
    net.deaf.clear()
    net.run(4)
    assert net.got(1) == ["g"]
    assert net.machines[0].counters["retransmitted"] == 1


def test_r61_publications_under_way_to_a_lost_neighbour_are_rerouted_at_once() -> None:
    links = [(0, 1), (0, 2), (1, 3), (2, 3)]
    net = Network(4, links, interest={3: ["g"]}, outsider="one_parent")
    net.run(5)
    net.publish(0, "g", qos=1)
    net.cut(0, 1)
    net.run(0.1)
    assert net.got(3) == ["g"]
    assert own(net, 0) == 0


def test_r61_the_new_route_may_lead_through_a_federator_that_has_passed_it_on_already() -> None:
    """0 sends through 1 and 2 to 3, which loses its route to the core and finds one through 2."""
    links = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 5), (2, 6), (6, 7), (7, 8), (8, 5)]
    net = Network(9, links, interest={5: ["g"]})
    net.run(5)
    assert net.machines[2].parents_of(5) == (3,)
    net.deaf.add((3, 4))
    net.publish(0, "g", qos=1)
    net.run(0.2)
    assert net.got(5) == []
    net.cut(3, 4)
    net.run(5)
    assert net.got(5) == ["g"]
    assert own(net, 0) == 0


def test_r62_publications_that_were_stuck_until_on_disk_are_rerouted_too() -> None:
    """Seed 376: the record waited for a neighbour on the route, which came back when the route was another."""
    links = [(0, 1), (0, 2), (1, 3), (2, 3)]
    net = Network(4, links, interest={3: ["g"]}, outsider="one_parent")
    net.run(5)
    net.deaf.update([(0, 1), (1, 0)])
    net.publish(0, "g", qos=1)
    net.run(1.5)
    assert (net.got(3), on_disk(net, 0), own(net, 0)) == ([], 1, 0)
    net.run(4)
    assert net.got(3) == ["g"]
    # The record still waits for the neighbour. It goes as a duplicate, and then from disk.
    assert on_disk(net, 0) == 1
    rerouted = net.machines[0].counters["rerouted"]
    net.deaf.clear()
    net.run(5)
    assert (net.got(3), on_disk(net, 0)) == (["g"], 0)
    assert net.machines[0].counters["rerouted"] == rerouted == 1


def test_r63_a_publication_without_a_route_waits() -> None:
    net = chain()
    net.cut(1, 2)
    net.run(3)
    net.publish(0, "g", qos=1)
    net.run(3)
    assert net.got(2) == []
    assert sum(on_disk(net, broker) for broker in (0, 1)) >= 1
    net.link(1, 2)
    net.run(3)
    assert net.got(2) == ["g"]
    assert [on_disk(net, broker) for broker in range(3)] == [0, 0, 0]


def test_r63_publications_before_claims_are_known_wait_for_them() -> None:
    desk = Desk(5, ())
    routed = desk.machine.publish(0.0, [publication("g", qos=1), publication("h", qos=1)], 7)
    assert routed == ({}, [], {}, ())
    assert desk.machine.in_custody == 2
    desk.up(1)
    effects = desk.say(
        1,
        announcements=(Announcement(1, 1_000, 1, 0, 1),),
        claim_deltas=(ClaimDelta(1, 1_000, 0, (ClaimChange("g", 100),)),),
    )
    (sent,) = effects_of(SendRuns, effects)
    assert (sent.neighbour, sent.runs[0].groups) == (1, ("g",))
    assert desk.machine.acknowledged(0.0, 1, [sent.token]) == [Acknowledge(HOST, (7,))]


def test_r64_after_a_restart_groups_that_others_wanted_are_awaited_and_then_given_up() -> None:
    desk = Desk(5, (), announcement_interval_s=0.1)
    desk._take(desk.machine.restore(0.0, wanted=["g"]))
    assert desk.machine.host_subscriptions() == {"g"}
    desk.up(1)
    desk.say(1)
    desk.machine.publish(0.0, [publication("g", qos=1)], 7)
    assert desk.machine.in_custody == 1
    effects = desk.wait(4.0, talking=[1])
    assert desk.machine.host_subscriptions() == frozenset()
    assert effects_of(Store, effects)


def returned(desk: Desk) -> Any:
    """Let federator 5 get a run from 1 for a group whose core is now behind 1. Return the resulting effects."""
    run = run_of("g", groups=("g",), origin=8)._replace(qos=1, body=packet("g", qos=1))
    assert desk.machine.forward(0.0, 1, [run], 11).effects == ()
    (sent,) = effects_of(SendRuns, desk.wait(0.15))
    return sent


def test_r64_a_core_in_a_new_epoch_that_has_not_claimed_yet_is_awaited() -> None:
    desk = Desk(5, (1,))
    core_known(desk, 1, 9, ("g", "h"))
    desk.say(1, claim_deltas=(ClaimDelta(9, 2_000, 0, (ClaimChange("h", 100),)),))
    desk.machine.publish(desk.now, [publication("g", qos=1)], 7)
    assert desk.machine.in_custody == 1
    desk.wait(desk.machine.settings.retention_s_max + 1.0, talking=[1])
    assert not desk.machine.is_known("g")
    assert desk.machine.in_custody == 0


def test_r65_a_newcomer_waits_for_unknown_groups_that_neighbours_name() -> None:
    """Seed 354: it had lost its disk, and the only neighbour so far had no route to the core of `+`."""
    desk = Desk(5, (1, 2))
    core_known(desk, 1, 8, ("#",))
    run = run_of("g", groups=("+",), origin=7)._replace(qos=1, body=packet("g", qos=1))
    for number in range(2):
        routed = desk.machine.forward(0.0, 1, [run._replace(first=number)], 11 + number)
        # The topic is matched, too (R49), because the group that the neighbour names may no longer exist.
        assert [sent.groups for sent in routed.frames[1]] == [("#",)]
        assert Acknowledge(1, (11 + number,)) not in routed.effects
        assert (SubscribeHost("+") in routed.effects) == (number == 0)
    assert desk.machine.is_hearsay("+")
    sent = effects_of(SendRuns, core_known(desk, 2, 9, ("+",)))
    assert [(one.neighbour, one.runs[0].groups, one.runs[0].first) for one in sent] == [(2, ("+",), 0), (2, ("+",), 1)]
    assert not desk.machine.is_hearsay("+")


def test_r65_a_newcomer_waits_for_named_groups_also_if_they_came_before_claims() -> None:
    desk = Desk(5, (1, 2))
    run = run_of("g", groups=("+", "h"), origin=7)._replace(qos=1, body=packet("g", qos=1))
    desk.machine.forward(0.0, 2, [run], 11)
    assert not desk.machine.is_known("+")  # it waits to be matched
    core_known(desk, 1, 8, ("h",))
    assert desk.machine.is_hearsay("+")
    assert not desk.machine.is_hearsay("h")
    assert desk.machine.in_custody == 1
    (sent,) = effects_of(SendRuns, core_known(desk, 1, 9, ("+",)))
    assert (sent.neighbour, sent.runs[0].groups) == (1, ("+",))


def test_r65_a_newcomer_gives_up_hearsay_groups_in_time_and_waits_for_no_others() -> None:
    desk = Desk(5, (1, 2), announcement_interval_s=0.1)
    core_known(desk, 1, 8, ("h",))
    run = run_of("g", groups=("+",), origin=7)._replace(qos=1, body=packet("g", qos=1))
    desk.machine.forward(0.0, 2, [run], 11)
    assert desk.machine.in_custody == 1
    desk.wait(desk.machine.settings.retention_s_max + 0.2, talking=[1, 2])
    assert (desk.machine.is_known("+"), desk.machine.is_hearsay("+"), desk.machine.in_custody) == (False, False, 0)
    desk.machine.forward(desk.now, 2, [run._replace(first=1)], 12)
    assert desk.machine.in_custody == 0
    assert desk.machine.counters["dropped_unknown_group"] == 1


def test_r66_a_publication_whose_only_route_leads_back_is_returned() -> None:
    desk = Desk(5, (1, 2))
    desk.say(
        1,
        announcements=(Announcement(9, 1_000, 1, 1, 1),),
        claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 100),)),),
    )
    desk.say(2)
    sent = returned(desk)
    assert (sent.neighbour, sent.runs[0].is_returned, sent.runs[0].hops) == (1, True, 3)


def test_r67_a_returned_publication_goes_on_although_it_was_here_before() -> None:
    desk = Desk(5, (1, 2))
    desk.say(
        2,
        announcements=(Announcement(9, 1_000, 1, 1, 1),),
        claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 100),)),),
    )
    desk.say(1)
    run = run_of("g", groups=("g",), origin=8)._replace(qos=1, body=packet("g", qos=1))
    assert set(desk.machine.forward(0.0, 1, [run], 11).tokens) == {2}
    assert desk.machine.forward(0.0, 1, [run], 12).tokens == {}
    # Say 1 had it from us, and then the core came to lie behind 2.
    back = run._replace(is_returned=True, hops=2)
    (sent,) = effects_of(SendRuns, desk.machine.forward(0.0, 1, [back], 13).effects)
    assert (sent.neighbour, sent.runs[0].is_returned, sent.runs[0].hops) == (2, True, 3)
    assert desk.machine.counters["turned"] == 1


def test_r67_a_returned_publication_goes_on_from_its_origin_and_is_dropped_after_too_many_hops() -> None:
    desk = Desk(5, (1, 2))
    desk.say(
        2,
        announcements=(Announcement(9, 1_000, 1, 1, 1),),
        claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 100),)),),
    )
    own_run = run_of("g", groups=("g",), origin=5)._replace(qos=1, body=packet("g", qos=1), is_returned=True)
    (sent,) = effects_of(SendRuns, desk.machine.forward(0.0, 1, [own_run], 11).effects)
    assert sent.neighbour == 2
    assert desk.machine.forward(0.0, 1, [own_run._replace(hops=200)], 12).effects == [Acknowledge(1, (12,))]
    assert desk.machine.counters["dropped_hops"] == 1
    for epoch in range(2, EPOCHS_MAX + 3):
        desk.machine.forward(0.0, 1, [run_of("g", groups=("g",), epoch=epoch, origin=8)])
    old = own_run._replace(origin=8, epoch=1)
    assert desk.machine.forward(0.0, 1, [old], 13).effects == [Acknowledge(1, (13,))]
    assert desk.machine.counters["refused_old"] == 1
    desk.machine.forward(0.0, 1, [own_run._replace(qos=0, body=packet("g"))])
    assert desk.machine.counters["rejected_packet"] == 1


def test_r67_a_returned_publication_that_is_wanted_here_by_now_is_delivered_once() -> None:
    desk = Desk(5, (1, 2))
    desk.say(
        2,
        announcements=(Announcement(9, 1_000, 1, 1, 1),),
        claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 100),)),),
    )
    desk.step(Subscribed("g"))
    run = run_of("g", groups=("g",), origin=8)._replace(qos=1, body=packet("g", qos=1), is_returned=True)
    (delivered,) = effects_of(Deliver, desk.machine.forward(0.0, 1, [run], 11).effects)
    assert delivered.runs[0].groups == ("g",)
    assert not effects_of(Deliver, desk.machine.forward(0.0, 1, [run], 12).effects)


def test_r67_a_returned_publication_that_is_too_old_is_refused_and_its_sender_acknowledged() -> None:
    desk = Desk(5, (1, 2), seen_s=10.0)
    core_known(desk, 2, 9)
    desk.say(1)
    run = run_of("g", groups=("g",), origin=8)._replace(qos=1, body=packet("g", qos=1))
    for neighbour, token in desk.machine.forward(0.0, 1, [run], 11).tokens.items():
        desk.machine.acknowledged(0.0, neighbour, [token])
    desk.wait(12, talking=[1, 2])
    routed = desk.machine.forward(desk.now, 1, [run._replace(is_returned=True, hops=2)], 12)
    assert routed == ({}, [], {}, [Acknowledge(1, (12,))])
    assert desk.machine.counters["refused_old"] == 1


def test_r67_a_returned_publication_of_qos_0_is_dropped() -> None:
    desk = Desk(5, (1, 2))
    core_known(desk, 2, 9)
    desk.say(1)
    run = run_of("g", groups=("g",), origin=8, hops=2)._replace(is_returned=True)
    assert desk.machine.forward(0.0, 1, [run]) == ({}, [], {}, ())
    assert desk.machine.counters["turned"] == 0


# --- missed publications ---------------------------------------------------------------------------------------------


def test_r68_publications_are_kept_longer_while_a_groups_cores_have_not_met() -> None:
    net = Network(3, [(0, 1), (1, 2)], interest={0: ["g"], 2: ["g"]})
    net.run(5)
    net.cut(1, 2)
    net.run(5)
    assert (net.machines[0].core_of("g"), net.machines[2].core_of("g")) == (0, 2)
    net.publish(0, "g", b"1", qos=1)
    net.run(10)
    net.link(1, 2)
    net.run(3)
    assert net.got(2) == ["g"]
    assert not net.machines[1].is_contested("g")
    net.run(7)
    assert net.machines[1].retained_bytes == 0


def test_r68_retention_is_bounded_in_bytes_and_time() -> None:
    net = chain(2, retention_bytes_max=20)
    for number in range(3):
        net.publish(0, "g", b"%d" % number, qos=1)
    assert net.machines[0].retained_bytes <= 20
    assert net.machines[0].counters["retention_cut"] >= 1
    net.run(8)
    assert net.machines[0].retained_bytes == 0


def test_r69_a_new_mesh_edge_brings_missed_publications() -> None:
    net = Network(3, [(0, 1), (1, 2)], interest={0: ["g"], 2: ["g"]})
    net.run(5)
    net.cut(1, 2)
    net.publish(0, "g", b"1", qos=1)
    net.run(1)
    assert net.got(2) == []
    net.link(0, 2)
    net.run(2)
    assert net.got(2) == ["g"]
    net.link(1, 2)
    net.run(2)
    assert net.got(2) == ["g"]
    assert net.machines[0].counters["supplied"] == 1


def test_r69_publications_from_before_a_membership_reached_the_core_arrive() -> None:
    net = Network(4, [(0, 1), (1, 2), (0, 3)], interest={0: ["g"]})
    net.run(5)
    net.deaf.add((1, 0))
    net.subscribe(2, "g")
    net.run(1)
    net.publish(3, "g", b"1", qos=1)
    net.run(0.5)
    net.deaf.clear()
    net.run(5)
    assert net.got(2) == ["g"]


def test_r70_publications_older_than_the_interest_are_not_sent() -> None:
    net = Network(2, [(0, 1)], interest={0: ["g"]})
    net.run(5)
    net.subscribe(1, "other")
    net.run(1)
    net.machines[0].publish(net.now, [publication("g", qos=1)])
    net.run(1)
    net.subscribe(1, "g")
    net.run(2)
    assert net.got(1) == []


def test_r70_publications_under_way_to_the_asking_neighbour_are_not_sent_again() -> None:
    desk = two_ways()
    asked = Summarised(3, (Summary("g", 5_000),), 9)
    run = run_of("g", groups=("g",), origin=8)._replace(qos=1, body=packet("g", qos=1))
    tokens = desk.machine.forward(desk.now, 1, [run], 11).tokens
    assert effects_of(SendRuns, desk.step(asked)) == []  # it was sent there, and is not acknowledged
    desk.machine.acknowledged(desk.now, 3, (tokens[3],))
    (supplied,) = effects_of(SendRuns, desk.step(asked))
    assert (supplied.neighbour, desk.machine.counters["supplied"]) == (3, 1)
    assert effects_of(SendRuns, desk.step(asked)) == []
    desk.machine.acknowledged(desk.now, 3, (supplied.token,))
    assert len(effects_of(SendRuns, desk.step(asked))) == 1


def test_r70_summaries_of_a_stranger_are_refused() -> None:
    desk = Desk(5, (1,))
    assert desk.step(Summarised(7, (Summary("g", 1),), 3)) == []
    assert desk.machine.counters["rejected_stranger"] == 1


def asked_for(effects: list[Effect]) -> list[tuple[int, list[str]]]:
    """Return which neighbours get summaries, and of which groups."""
    found = effects_of(SendSummaries, effects)
    return [(one.neighbour, [summary.group for summary in one.summaries]) for one in found]


def test_r71_earlier_interest_makes_a_federator_ask_its_other_edges_once() -> None:
    desk = two_ways()
    desk.now = 20.0
    assert asked_for(desk.step(Summarised(2, (Summary("g", 5_000),), 9))) == [(1, ["g"]), (3, ["g"])]
    # 1 has already sent what is missing of those 5 s. 2 knows of no interest but ours.
    assert asked_for(desk.step(Summarised(3, (Summary("g", 3_000),), 9))) == [(2, ["g"])]
    assert asked_for(desk.step(Summarised(3, (Summary("g", 3_000),), 10))) == []
    assert asked_for(desk.step(Summarised(3, (Summary("g", 8_000),), 11))) == [(1, ["g"]), (2, ["g"])]


def test_r72_summaries_are_sent_again_until_they_are_acknowledged() -> None:
    desk = Desk(5, (1,))
    desk.say(1)
    desk.step(Subscribed("g"))
    desk.wait(2.0, talking=[1])
    # another federator also wanted it, and claims it: we join, and may have missed something
    core_known(desk, 1, 1)
    (asked,) = effects_of(SendSummaries, desk.effects)
    assert (asked.neighbour, [summary.group for summary in asked.summaries]) == (1, ["g"])
    desk.wait(desk.machine.settings.asking_s + 0.5, talking=[1])
    (_, again) = effects_of(SendSummaries, desk.effects)
    assert (again.neighbour, again.token) == (asked.neighbour, asked.token)
    # As far back as the first time.
    assert again.summaries[0].age_ms >= asked.summaries[0].age_ms + 1_000 * desk.machine.settings.asking_s
    desk.machine.acknowledged(desk.now, 1, (asked.token,))
    desk.wait(3 * desk.machine.settings.asking_s, talking=[1])
    assert effects_of(SendSummaries, desk.effects) == [asked, again]


def test_r72_a_federator_that_still_lacks_named_publications_a_round_later_asks_back() -> None:
    for origin, asked in ((8, [(2, "g")]), (5, [])):
        desk = two_ways()
        desk.step(Subscribed("g"))
        desk.wait(0.5)
        desk.step(Summarised(2, (Summary("g", 1, ((origin, 1, ((0, 3),)),)),), 9))
        effects = desk.wait(1.0, talking=[1, 2, 3])
        found = effects_of(SendSummaries, effects)
        assert [(one.neighbour, summary.group) for one in found for summary in one.summaries] == asked


def test_r72_summaries_within_the_coalescing_time_travel_together() -> None:
    desk = two_ways(coalescing_s=0.005)
    core_known(desk, 1, 1, ("g", "h", "i"), sequence=2)
    for number, group in enumerate(("h", "i"), start=1):
        desk.say(2, memberships=SetDelta(1, number, number + 1, (SetStep(True, 1, group),)))
    desk.wait(0.1)
    assert asked_for(desk.step(Summarised(2, (Summary("g", 5_000),), 9))) == [(1, ["g"]), (3, ["g"])]
    assert asked_for(desk.step(Summarised(2, (Summary("h", 5_000),), 10))) == []
    assert asked_for(desk.step(Summarised(2, (Summary("i", 5_000),), 11))) == []
    assert asked_for(desk.wait(0.006)) == [(1, ["h", "i"])]


def test_r73_a_leaving_federator_returns_what_the_other_cores_mesh_may_lack() -> None:
    desk = Desk(5, (1, 2))
    desk.say(1)
    desk.say(2)
    desk.step(Subscribed("g"))
    desk.step(Subscribed("h"))
    desk.wait(2.0, talking=[1, 2])
    runs = [run_of(group, groups=(group,))._replace(qos=1, body=packet(group, qos=1)) for group in ("g", "h")]
    desk.machine.forward(desk.now, 1, [runs[0], runs[1]._replace(first=1)], 11)
    # Another core claims one of the groups, and its mesh has not met ours.
    desk.say(2, claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 100),)),))
    effects = desk.step(Leave())
    left = effects_of(SendRuns, effects)
    assert [(one.neighbour, one.runs[0].groups, one.runs[0].is_returned) for one in left] == [
        (1, ("g",), True),
        (2, ("g",), True),
    ]
    goodbyes = [at for at, effect in enumerate(effects) if isinstance(effect, Send) and effect.frame.is_leaving]
    assert max(effects.index(one) for one in left) < min(goodbyes)


def test_r74_a_core_that_gives_a_group_up_passes_what_only_it_had_to_the_other_core() -> None:
    net = Network(4, [(0, 1), (1, 2), (2, 3)], interest={0: ["g"], 2: ["g"]})
    net.run(5)
    net.cut(1, 2)
    net.run(5)
    net.publish(3, "g", b"1", qos=1)
    net.run(1)
    assert (net.got(2), net.got(0)) == (["g"], [])
    net.link(1, 2)
    while net.claimants("g") != [0, 2] or net.machines[2].distance_to(0) is None:
        net.run(0.01)
    # The meshes have not met, and now one of them ends.
    net.unsubscribe(2, "g")
    assert net.claimants("g") == [0]
    net.run(5)
    assert (net.got(2), net.got(0)) == (["g"], ["g"])
    assert net.machines[2].counters["passed_to_rival"] == 1


# --- absence and the outbox ------------------------------------------------------------------------------------------


def test_r75_publications_of_an_absent_neighbours_meshes_are_kept_for_it_in_order() -> None:
    net = chain(2)
    net.cut(0, 1)
    for number in range(3):
        net.publish(0, "g", b"%d" % number, qos=1)
        net.run(0.3)
    assert own(net, 0) == 0
    assert on_disk(net, 0) == 3
    assert (net.machines[0].in_custody, net.machines[0].records) == (0, 3)
    net.link(0, 1)
    net.run(2)
    assert [delivered.packet[-1:] for delivered in net.deliveries] == [b"0", b"1", b"2"]
    assert on_disk(net, 0) == 0


def test_r75_nothing_is_kept_for_a_neighbour_that_left() -> None:
    net = chain(2)
    net.leave(1)
    net.machines[0].publish(net.now, [publication("g", qos=1)], 0)
    net.run(5)
    assert net.machines[0].in_custody == 0


def test_r76_publications_sent_to_a_lost_core_are_kept_for_it_although_others_acknowledge_them() -> None:
    # Only 3 wants the group. It gets it from 1 and, as a duplicate that it acknowledges at once, from 2.
    links = ((0, 1), (0, 2), (1, 2), (1, 3), (2, 3))
    net = Network(4, links, interest={3: ["g"]})
    net.run(5)
    net.hosts[3].is_taking = False
    net.publish(0, "g", qos=1)
    net.run(0.1)
    assert (net.machines[1].in_custody, net.machines[2].in_custody) == (1, 0)
    # The route of 1 leads through 2 now, which has had the publication, and acknowledges it.
    net.cut(1, 3)
    net.run(0.5)
    net.crash(3)
    net.hosts[3].is_taking = True
    net.run(10)
    net.restart(3, [1, 2])
    net.run(5)
    assert net.got(3) == ["g"]
    assert on_disk(net, 1) == 0


@pytest.mark.parametrize("is_removed", [False, True])
def test_r76_publications_under_way_to_a_core_are_kept_for_it_unless_it_is_gone_for_good(is_removed: bool) -> None:
    desk = Desk(5, (1, 2), outbox_after_s=100.0)
    core_known(desk, 1, 1)
    core_known(desk, 2, 9)
    assert set(desk.machine.publish(desk.now, [publication("g", qos=1)], 7).tokens) == {1}
    desk.step(LinkDown(1, is_removed))
    # When 1 no longer counts as the core (R9), the route to the other one takes it.
    (sent,) = effects_of(SendRuns, desk.wait(A + 0.5, talking=[2]))
    assert sent.neighbour == 2
    done = desk.machine.acknowledged(desk.now, 2, [sent.token])
    assert done == ([Acknowledge(HOST, (7,))] if is_removed else [])
    assert desk.machine.in_custody == (0 if is_removed else 1)


def test_r77_publications_the_host_broker_does_not_acknowledge_go_to_the_outbox_and_are_then_acknowledged() -> None:
    net = chain(2)
    net.hosts[1].is_taking = False
    net.publish(0, "g", qos=1)
    net.run(0.9)
    assert own(net, 0) == 1
    net.run(0.5)
    assert own(net, 0) == 0
    assert on_disk(net, 1) == 1


def test_r78_the_next_process_finds_the_records_on_disk() -> None:
    net = chain(2)
    net.cut(0, 1)
    net.publish(0, "g", qos=1)
    net.run(0.5)
    net.crash(0)
    net.restart(0, [1])
    net.run(3)
    assert net.got(1) == ["g"]
    assert on_disk(net, 0) == 0


# --- the document and the code ---------------------------------------------------------------------------------------


def test_every_rule_of_the_document_has_a_test_and_a_place_in_the_code() -> None:
    rules = [int(number) for number in re.findall(r"^\*\*R(\d+)\b", DOCUMENT, re.MULTILINE)]
    assert rules == list(range(1, 99))
    tests = "".join(path.read_text() for path in (Path(__file__), ROOT / "tests/protocol/retained/test_rules.py"))
    tested = sorted({int(number) for number in re.findall(r"^def test_r(\d\d)_", tests, re.MULTILINE)})
    assert tested == rules
    source = "".join(path.read_text() for path in (ROOT / "src" / "hanse" / "protocol").rglob("*.py"))
    assert [rule for rule in rules if not re.search(rf"\bR{rule}\b", source)] == []


def test_the_tests_are_in_the_order_of_the_rules() -> None:
    names = re.findall(r"^def test_r(\d\d)_", Path(__file__).read_text(), re.MULTILINE)
    assert names == sorted(names)


def test_the_documents_parameters_match_the_settings() -> None:
    table = DOCUMENT.split("## Parameters")[1].split("## State")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \|[^|]*\|[^|]*\| ([^|]*?) \|", table, re.MULTILINE))
    defaults = Settings()
    assert documented == {field.name: str(getattr(defaults, field.name)) for field in fields(Settings)}
