"""Attacks on the protocol. A client with a login is no neighbour. A neighbour's key may be stolen, and then it lies."""

import tracemalloc

from tests.protocol.net import Desk, Network, packet

from hanse.protocol.effects import CloseLink, Send
from hanse.protocol.events import LinkDown, LinkUp, Received, Subscribed
from hanse.protocol.forwarding import Routed
from hanse.protocol.messages import (
    Announcement,
    ClaimChange,
    ClaimDelta,
    ControlFrame,
    HandOver,
    Run,
    SetAck,
    SetDelta,
    SetStep,
    Solicit,
)
from hanse.protocol.settings import EPOCH_MAX, SEQUENCE_MAX

LINE = [(1, 2), (2, 3)]


def federation() -> Network:
    """Return 1, 2 and 3 in a line. 1 is the core of `g`, 3 a member."""
    net = Network([1, 2, 3], LINE)
    net.run(3)
    net.subscribe(1, "g")
    net.run(0.3)
    net.subscribe(3, "g")
    net.run(0.5)
    assert net.cores("g") == {1}
    return net


def forged(sender: int, number: int = 10**6, epoch: int = 1_000) -> ControlFrame:
    """Return a frame in which the lowest id claims everything at the best rank."""
    return ControlFrame(
        sender,
        epoch,
        number,
        0,
        0,
        announcements=(Announcement(0, EPOCH_MAX, SEQUENCE_MAX, 0 if sender == 0 else 1, 1),),
        claim_deltas=(ClaimDelta(0, EPOCH_MAX, 0, (ClaimChange("g", 0), ClaimChange("#", 0))),),
    )


def assert_works(net: Network) -> None:
    net.deliveries.clear()
    for broker in sorted(net.machines):
        net.publish(broker, "g")
        net.run(0.2)
    assert [net.got(broker) for broker in (1, 3)] == [["g", "g"], ["g", "g"]]


def test_attack_forged_core_announcement_is_ignored() -> None:
    net = federation()
    for broker in (1, 2, 3):
        net.step(broker, Received(0, forged(0)))  # through a client's publication: no link has that id
        net.step(broker, Received(0, forged(broker)))
    net.run(3)
    assert net.cores("g") == {1}
    assert [machine.counters["rejected_stranger"] for machine in net.machines.values()] == [2, 2, 2]
    assert_works(net)


def test_attack_forged_sender_on_a_real_link_is_ignored() -> None:
    net = federation()
    net.step(2, Received(3, forged(1)))  # 3's link, 1's name
    net.step(2, Received(3, forged(0)))
    net.run(3)
    assert net.cores("g") == {1}
    assert net.machines[2].counters["rejected_stranger"] == 2
    assert_works(net)


def test_attack_distance_0_in_anothers_name_is_ignored() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(2, announcements=(Announcement(0, 1_000, 1, 0, 0),))
    assert desk.machine.distance_to(0) is None
    assert desk.machine.counters["rejected_distance"] == 1


def test_attack_replayed_announcements_are_ignored() -> None:
    net = federation()
    recorded = [sent for sent in net.sent if sent.control is not None]
    net.crash(1)
    net.run(0.5)
    net.restart(1, [2])
    net.run(2)
    epoch = net.machines[1].epoch
    before = sum(machine.counters["ignored_stale_frame"] for machine in net.machines.values())
    for sent in recorded:
        assert sent.control is not None
        net.step(sent.target, Received(sent.source, sent.control))
    after = sum(machine.counters["ignored_stale_frame"] for machine in net.machines.values())
    assert after - before == len(recorded)
    net.run(1)
    assert {machine.core_epoch(1) for machine in net.machines.values()} == {epoch}
    assert_works(net)


def test_attack_replayed_publications_are_delivered_once() -> None:
    net = federation()
    net.publish(1, "g")
    net.run(0.2)
    recorded = [sent for sent in net.sent if sent.runs]
    for _ in range(3):
        for sent in recorded:
            routed = net.machines[sent.target].forward(net.now, sent.source, sent.runs)
            assert routed[:2] == ({}, [])
    assert net.got(3) == ["g"]


def test_attack_a_duplicate_id_is_refused_with_an_alarm() -> None:
    net = federation()
    net.step(2, LinkUp(3))  # a second federator with the id 3
    net.step(2, LinkUp(2))  # and one with our own id
    assert [(broker, close.neighbour) for broker, close in net.closed] == [(2, 3), (2, 2)]
    assert net.names_emitted(2).count("identity_conflict") == 2
    net.run(3)
    assert_works(net)


def test_attack_announcements_in_our_name_make_us_take_a_newer_epoch() -> None:
    net = federation()
    for _ in range(3):
        number = net.machines[2]._neighbours[3].number + 1
        reflected = Announcement(1, net.machines[1].epoch + 5, 7, 3, 0)
        frame = ControlFrame(3, net.machines[3].epoch, number, 0, 0, announcements=(reflected,))
        net.step(2, Received(3, frame))
        net.machines[3]._speaker.number = number
        net.run(2)
    assert net.machines[1].counters["identity_conflicts"] > 0
    assert {machine.core_epoch(1) for machine in net.machines.values()} == {net.machines[1].epoch}
    assert net.cores("g") == {1}
    assert_works(net)


def test_attack_a_flood_of_announcements_is_bounded() -> None:
    desk = Desk(peers=(1, 2), cores_max=50, groups_max=200)
    desk.step(Subscribed("g"))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        sent = 0
        for number in range(1_000):
            core = 100 + number
            changes = tuple(ClaimChange(f"flood/{number}/{k}", 0) for k in range(5))
            frame = desk.frame(
                1,
                announcements=(Announcement(core, 1_000, 1, 1, 5),),
                claim_deltas=(ClaimDelta(core, 1_000, 0, changes),),
            )
            effects = desk.machine.step(0.0, Received(1, frame))
            sent += sum(isinstance(effect, Send) for effect in effects)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 5_000_000
    assert sum(desk.machine.distance_to(core) is not None for core in range(100, 1_100)) == 50
    assert len(desk.machine.groups()) <= 203
    assert sent < 200  # what is refused is not passed on
    assert desk.machine.core_of("g") == 5 or desk.machine.core_of("g") is None


def test_attack_a_flood_of_claims_of_one_core_is_bounded() -> None:
    desk = Desk(peers=(1, 2), groups_max=200)
    desk.say(1, announcements=(Announcement(9, 1_000, 1, 1, 0),))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1_000):
            changes = tuple(ClaimChange(f"flood/{number}/{k}", 0) for k in range(20))
            frame = desk.frame(1, claim_deltas=(ClaimDelta(9, 1_000, 20 * number, changes),))
            desk.machine.step(0.0, Received(1, frame))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(desk.machine.groups()) <= 201
    assert len(desk.machine._claims.sets[9].groups) <= 200
    assert grown < 5_000_000


def test_attack_a_flood_of_memberships_and_acknowledgements_costs_one_frame_each() -> None:
    desk = Desk(peers=(1,))
    desk.say(1)
    desk.step(Subscribed("g"))
    before = len(desk.frames[1])
    for number in range(200):
        step = SetStep(number % 2 == 0, 5, "g")
        desk.say(1, memberships=SetDelta(1, number, 0, (step,)), memberships_ack=SetAck(number, number))
    assert len(desk.frames[1]) - before <= 200
    assert not desk.machine.mesh_neighbours("g")


def test_attack_solicits_do_not_make_a_core_run_through_its_numbers() -> None:
    desk = Desk(peers=(1,))
    desk.say(1)
    desk.step(Subscribed("g"))
    for wanted in (10, 10**6, SEQUENCE_MAX):
        desk.say(1, solicits=(Solicit(5, 1_000, wanted),))
    assert desk.machine._ways.sequence < 10


def test_attack_a_forged_hand_over_moves_no_core_that_has_interest() -> None:
    net = federation()
    number = net.machines[2]._neighbours[1].number + 1
    frame = ControlFrame(1, net.machines[1].epoch, number, 0, 0, hand_overs=(HandOver(1, "g"), HandOver(2, "g")))
    net.step(2, Received(1, frame))
    net.machines[1]._speaker.number = number
    net.run(5)  # K·A, and the round after it
    assert net.cores("g") == {1}
    assert net.claimants("g") == [1]
    assert_works(net)


def test_attack_a_neighbour_that_acknowledges_and_never_forwards_is_only_one_of_two_routes() -> None:
    """A member with two parents loses nothing when one of them drops every publication."""
    net = Network(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    net.run(3)
    net.subscribe(0, "g")
    net.run(0.3)
    net.subscribe(3, "g")
    net.run(0.5)
    assert net.machines[3].mesh_neighbours("g") == (1, 2)
    net.machines[1].forward = lambda *_: Routed({}, [])  # type: ignore[method-assign]
    for _ in range(20):
        net.publish(0, "g")
        net.run(0.02)
    assert net.got(3) == ["g"] * 20


def test_attack_a_run_that_names_us_as_origin_is_not_delivered() -> None:
    desk = Desk(peers=(1,))
    desk.step(Subscribed("g"))
    run = Run(5, 1_000, 10**6, 1, 0, 1, ("g",), packet("g"))
    assert desk.machine.forward(0.0, 1, [run])[:2] == ({}, [])


def test_attack_a_flapping_link_leaves_nothing_behind() -> None:
    desk = Desk(peers=(1,))
    desk.say(1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(2_000):
            desk.machine.step(0.0, LinkUp(1_000 + number))
            desk.machine.step(0.0, LinkDown(1_000 + number, is_removed=True))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert desk.machine.neighbours() == (1,)
    assert grown < 1_000_000
    assert not any(isinstance(effect, CloseLink) for effect in desk.effects)
