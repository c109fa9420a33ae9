"""Faults of earlier federators, each as a regression test. The last lines of the reliability goals name them."""

from tests.protocol.net import Desk, Network, publication

from hanse.protocol.events import LinkDown, Subscribed, Unsubscribed
from hanse.protocol.messages import Announcement, ClaimChange, ClaimDelta, SetDelta, SetStep

LINE = [(0, 1), (1, 2)]


def line_with_interest() -> Network:
    """Return a line: 0 is the core of `g`, 2 a member, 1 between them."""
    net = Network(3, LINE)
    net.run(3)
    net.subscribe(0, "g")
    net.run(0.3)
    net.subscribe(2, "g")
    net.run(0.5)
    assert net.mesh_links("g") == {(0, 1), (1, 2)}
    return net


def test_ids_restarting_at_0_after_a_crash_do_not_make_peers_drop_new_messages() -> None:
    net = line_with_interest()
    for _ in range(5):
        net.publish(0, "g")
    net.run(0.1)
    net.crash(0)
    net.run(0.5)
    net.restart(0, [1])
    net.run(1)
    assert net.publish(0, "g", b"first after the restart")
    net.run(0.1)
    assert net.got(2) == ["g"] * 6
    assert net.deliveries[-1].packet.endswith(b"first after the restart")


def test_ids_are_fresh_after_a_crash_that_lost_the_disk_and_the_clock() -> None:
    net = line_with_interest()
    for _ in range(5):
        net.publish(0, "g")
    net.run(0.1)
    net.crash(0)
    net.run(0.5)
    net.hosts[0].epoch = 0
    net.restart(0, [1], wall_s=1, stored_epoch=0)
    net.run(2)
    assert net.machines[0].epoch > 1_000
    assert net.publish(0, "g")
    net.run(0.1)
    assert net.got(2) == ["g"] * 6


def test_a_restarted_core_is_not_ignored_because_its_sequence_numbers_restart() -> None:
    net = line_with_interest()
    net.run(20)
    net.crash(0)
    net.run(0.5)
    net.restart(0, [1])
    net.run(1)
    assert net.cores("g") == {0}
    assert {machine.core_epoch(0) for machine in net.machines.values()} == {net.machines[0].epoch}
    net.run(10)
    assert net.machines[2].distance_to(0) == 2


def test_publications_are_not_dropped_while_no_route_to_the_core_is_known() -> None:
    net = Network(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    net.run(3)
    net.subscribe(0, "g")
    net.run(0.3)
    net.cut(1, 2)
    net.cut(0, 3)  # 2 and 3 have no route now
    for number in range(10):
        assert net.publish(2, "g", b"%d" % number)
        net.run(0.02)
    assert net.got(0) == []
    net.link(0, 3)
    net.run(1.5)
    assert [delivered.packet[-1:] for delivered in net.deliveries if delivered.broker == 0] == [
        b"%d" % number for number in range(10)
    ]


def test_publications_are_not_dropped_while_a_claimed_group_has_no_live_core() -> None:
    desk = Desk(peers=(1, 2))
    desk.say(1, claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 100),)),))
    assert desk.machine.core_of("g") is None  # claimed, but never announced to us
    assert desk.machine.publish(0.0, [publication("g")]).frames == {}
    assert desk.machine.parked_bytes > 0
    assert desk.machine.counters["not_wanted"] == 0


def test_distance_is_not_counted_twice_a_hop() -> None:
    net = Network(6, [(i, i + 1) for i in range(5)])
    net.run(6)
    assert [machine.distance_to(0) for machine in net.machines.values()] == [0, 1, 2, 3, 4, 5]
    said = {
        (sent.source, announcement.distance)
        for sent in net.control_since(net.now - 1)
        if sent.control is not None
        for announcement in sent.control.announcements
    }
    assert said == {(broker, broker) for broker in range(6)}


def test_the_parent_list_is_not_cleared_by_an_equal_announcement() -> None:
    desk = Desk(peers=(1, 2))
    for sequence in range(1, 10):
        for peer in (1, 2):
            desk.say(peer, announcements=(Announcement(9, 1_000, sequence, 1, 0),))
        assert desk.machine.parents_of(9) == (1, 2)
        desk.say(1, announcements=(Announcement(9, 1_000, sequence, 1, 0),))
        assert desk.machine.parents_of(9) == (1, 2)
        desk.wait(1.0)


def test_redundancy_stays_two_if_two_shortest_routes_exist() -> None:
    net = Network(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    for _ in range(20):
        net.run(1.0)
        if net.now >= 3:
            assert net.machines[3].parents_of(0) == (1, 2)
    changes = [e for e in net.emitted if e.broker == 3 and e.emit.name == "parents_changed" and e.at > 1]
    assert changes == []


def test_a_core_does_not_resign_while_members_remain() -> None:
    desk = Desk(peers=(1,))
    desk.say(1)
    desk.step(Subscribed("g"))
    desk.say(1, memberships=SetDelta(1, 0, 0, (SetStep(True, 5, "g"),)))
    desk.step(Unsubscribed("g"))
    desk.wait(10.0, talking=(1,))
    assert desk.machine.core_of("g") == 5


def test_a_core_whose_only_member_is_absent_does_not_resign() -> None:
    desk = Desk(peers=(1,))
    desk.say(1)
    desk.step(Subscribed("g"))
    desk.say(1, memberships=SetDelta(1, 0, 0, (SetStep(True, 5, "g"),)))
    desk.step(Unsubscribed("g"))
    desk.step(LinkDown(1))
    desk.wait(10.0)
    assert desk.machine.core_of("g") == 5


def test_an_unexpected_topic_does_not_end_the_federator() -> None:
    net = line_with_interest()
    net.subscribe(2, "#")
    net.run(0.5)
    odd = ["/", "//", "a/" * 199 + "a", "x" * 65_535, "..", "<script>", "%2e", "\ufeff", "e\u0301", "é", "\x01"]
    for topic in odd:
        assert net.publish(0, topic)
        net.run(0.1)
    assert net.got(2) == odd
