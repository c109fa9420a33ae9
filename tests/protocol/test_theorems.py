"""The two theorems of the 2020 paper as properties of small random overlays, and the cost of a quiet round."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.protocol.graphs import Link, connected
from tests.protocol.net import Network

from hanse.protocol.settings import MANAGEMENT_GROUP

BOUNDED = settings(max_examples=examples(25), deadline=None)


def reached(links: set[Link], start: int) -> set[int]:
    found, size = {start}, 0
    while len(found) > size:
        size = len(found)
        found |= {end for link in links if found & set(link) for end in link}
    return found


@BOUNDED
@given(connected(), st.sampled_from([0.001, 0.01, 0.05]))
@example((7, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]), 0.001)
def test_theorem_1_a_core_causes_at_most_two_announcements_per_link_and_round(
    overlay: tuple[int, list[Link]], latency_s: float
) -> None:
    size, links = overlay
    net = Network(size, links, latency_s=latency_s)
    # a refresh travels one hop per round: before, the last in a line announces the first number again
    net.run(4.5 + size)
    begin = net.now
    net.run(5.0)
    said = [
        (announcement.core, announcement.sequence, sent.source, sent.target)
        for sent in net.control_since(begin)
        if sent.control is not None
        for announcement in sent.control.announcements
    ]
    assert {core for core, *_ in said} == {0}
    assert len(said) == len(set(said))  # no number twice per link and direction
    assert len(said) <= 5 * 2 * len(links)


@BOUNDED
@given(connected(), st.data())
def test_theorem_1_holds_for_the_round_in_which_a_core_is_first_heard(
    overlay: tuple[int, list[Link]], data: st.DataObject
) -> None:
    size, links = overlay
    net = Network(size, links)
    net.run(4.5)
    core = data.draw(st.integers(1, size - 1))
    begin = net.now
    net.subscribe(core, "g")
    net.run(0.4)  # before the next round
    said = [
        (sent.source, sent.target)
        for sent in net.control_since(begin - 1e-9)
        if sent.control is not None
        for announcement in sent.control.announcements
        if announcement.core == core
    ]
    assert {machine.distance_to(core) is None for machine in net.machines.values()} == {False}
    assert len(said) <= 2 * len(links)


@BOUNDED
@given(connected(), st.data())
def test_theorem_2_a_membership_is_announced_once_to_each_parent_and_the_mesh_ends_complete(
    overlay: tuple[int, list[Link]], data: st.DataObject
) -> None:
    size, links = overlay
    net = Network(size, links)
    net.run(4.5)
    interested = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True))
    net.subscribe(interested[0], "g")
    net.run(0.4)
    begin = net.now
    for broker in interested[1:]:
        net.subscribe(broker, "g")
    net.run(0.4)
    steps = [
        (sent.source, sent.target, step.core)
        for sent in net.control_since(begin - 1e-9)
        if sent.control is not None and sent.control.memberships is not None
        for step in sent.control.memberships.steps
        if step.group == "g" and step.is_added
    ]
    assert len(steps) == len(set(steps))
    for source, target, core in steps:
        assert target in net.machines[source].parents_of(core)
    net.run(5)
    (core_named,) = net.cores("g")
    assert core_named is not None
    assert set(interested) <= reached(net.mesh_links("g"), core_named)
    assert net.claimants("g") == [core_named]
    begin = net.now
    net.run(3)
    assert not any(sent.control.memberships for sent in net.control_since(begin) if sent.control is not None)
    for broker in range(size):
        is_heard = net.publish(broker, "g")
        assert is_heard == (set(interested) != {broker})
        net.run(0.5)
    for broker in interested:
        assert len(net.got(broker)) == size - 1


@BOUNDED
@given(connected())
def test_the_management_groups_mesh_spans_all(overlay: tuple[int, list[Link]]) -> None:
    size, links = overlay
    net = Network(size, links)
    net.run(5)
    assert reached(net.mesh_links(MANAGEMENT_GROUP), 0) == set(range(size))


# --- what groups cost -----------------------------------------------------------------------------------------------

# Twelve brokers of degree 4: a ring with chords.
TWELVE = sorted({(min(i, j), max(i, j)) for i in range(12) for j in ((i + 1) % 12, (i + 3) % 12)})


def twelve_with(groups: int) -> Network:
    """Return twelve brokers. Each group has a subscriber at one broker and a second one at another."""
    interest = {
        broker: [f"plant/{number}/#" for number in range(groups) if broker in (number % 12, number * 7 % 11)]
        for broker in range(12)
    }
    return Network(12, TWELVE, interest=interest)


def quiet(net: Network) -> bool:
    return not any(
        sent.control.claim_deltas or sent.control.claim_parts or sent.control.memberships
        for sent in net.control_since(net.now - 1.0)
        if sent.control is not None
    )


@pytest.mark.parametrize("groups", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_quiet_round_costs_one_small_frame_per_link_and_direction_whatever_the_number_of_groups(groups: int) -> None:
    net = twelve_with(groups)
    for _ in range(60):
        net.run(1.0)
        net.sent = net.control_since(net.now - 1.5)
        if quiet(net):
            break
    assert quiet(net)
    assert len(net.machines[5].groups()) == groups + 1
    begin = net.now
    net.run(3.0)
    frames = net.control_since(begin)
    assert len(frames) == 3 * 2 * len(TWELVE)
    assert max(sent.size_bytes for sent in frames) <= 2_048
    # A new group is known to all after one delta each way on each link, long before the next round.
    net.run(0.5)
    begin = net.now
    net.subscribe(7, "plant/new/#")
    net.run(0.2)
    assert net.cores("plant/new/#") == {7}
    told = [
        (sent.source, sent.target)
        for sent in net.control_since(begin - 1e-9)
        if sent.control is not None and sent.control.claim_deltas
    ]
    assert len(told) == len(set(told)) <= 2 * len(TWELVE)
