from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.errors import RemoteError, Unavailable
from hanse.topology.changes import (
    Announcement,
    Change,
    Conflict,
    Peer,
    Rules,
    adopt,
    come_back,
    forget,
    join,
    lose,
    measured,
    mend,
)
from hanse.topology.model import LinkKind, Probe, State, Topology, listing_2
from hanse.topology.repair import graph_of, is_connected, is_two_connected

NOW = datetime(2023, 1, 1, tzinfo=UTC)
RULES = Rules()


def peer(number: int, **more: object) -> Peer:
    return Peer(f"tcp://b{number}:1883", f"mqtt://b{number}:1883", **more)  # type: ignore[arg-type]


def federation(count: int, rules: Rules = RULES) -> Topology:
    topology = Topology()
    for number in range(count):
        change, node = join(topology, peer(number), rules, NOW)
        assert node == number
        topology = change.topology
    return topology


def check(topology: Topology, degree_max: int) -> None:
    living = topology.living()
    graph = graph_of(living, topology.links)
    assert len(graph.edges) == len(topology.links), "a link exists only between two that are up"
    assert is_connected(graph)
    assert is_two_connected(graph)
    assert max((degree for _, degree in graph.degree), default=0) <= degree_max


def test_the_document_of_listing_2_field_for_field() -> None:
    topology = measured(federation(2), {0: 0.1}, [0], NOW)
    document = listing_2(topology.federators[0], [topology.federators[1]])
    assert document == {
        "id": 0,
        "ip": "tcp://b0:1883",
        "neighbors": [{"id": 1, "ip": "tcp://b1:1883"}],
        "neighborsAmount": 1,
        "latency": 0.1,
        "latestHealthCheck": "2023-01-01 00:00:00.000Z",
    }
    assert list(document) == ["id", "ip", "neighbors", "neighborsAmount", "latency", "latestHealthCheck"]


def test_joining_again_with_the_same_address_gives_the_same_id_and_changes_nothing() -> None:
    before = federation(3)
    change, node = join(before, peer(1), RULES, NOW)
    assert node == 1
    assert change.is_empty
    assert change.topology.epoch == before.epoch


def test_neighbours_learn_of_a_new_link_address() -> None:
    before = federation(4)
    change, node = join(before, peer(1, link="mqtt://l:1"), RULES, NOW)
    around = before.neighbors(node)
    assert change.announcements == tuple(Announcement(n, "add", node) for n in around)
    assert all(change.topology.federators[n].changed_epoch == change.topology.epoch for n in around)
    assert set(around) <= set(change.changed)


def test_a_join_announces_each_new_neighbour_to_the_other() -> None:
    change, node = join(federation(2), peer(2), RULES, NOW)
    assert set(change.announcements) == {
        Announcement(0, "add", 2),
        Announcement(1, "add", 2),
        Announcement(2, "add", 0),
        Announcement(2, "add", 1),
    }
    assert change.topology.federators[node].changed_epoch == change.topology.epoch


def test_a_split_link_is_announced_as_removed_first() -> None:
    change, _ = join(federation(3, Rules(degree_max=2)), peer(3), Rules(degree_max=2), NOW)
    actions = [one.action for one in change.announcements]
    assert actions == ["remove", "remove", "add", "add", "add", "add"]


def test_an_id_is_not_given_to_another_address_while_it_is_remembered() -> None:
    topology = lose(federation(3), [1], State.LEFT, RULES, NOW).topology
    _, node = join(topology, peer(9), RULES, NOW)
    assert node == 3
    forgotten = forget(topology, NOW + timedelta(days=8), timedelta(days=7))
    assert forgotten.forgotten == (1,)
    assert join(forgotten.topology, peer(9), RULES, NOW)[1] == 1


def test_a_claimed_id_is_given_if_it_is_free() -> None:
    assert join(Topology(), peer(0, id=7), RULES, NOW)[1] == 7
    assert join(federation(2), peer(5, id=1), RULES, NOW)[1] == 2


def test_a_returning_federator_gets_its_links_back_and_links_of_repair_are_removed() -> None:
    before = federation(9)
    lost = lose(before, [0], State.GONE, RULES, NOW)
    assert LinkKind.REPAIR in lost.topology.links.values()
    back = come_back(lost.topology, 0, RULES, NOW)
    assert back.topology.links == before.links
    assert back.topology.epoch == before.epoch + 2


def test_the_neighbours_of_a_lost_federator_learn_of_it_but_it_does_not() -> None:
    change = lose(federation(4), [3], State.GONE, RULES, NOW, causes={3: "broker"})
    assert all(one.to != 3 for one in change.announcements)
    assert {one.to for one in change.announcements if one.neighbor == 3} == set(federation(4).neighbors(3))
    assert change.happenings[0].data == {"id": 3, "cause": "broker"}


def test_losing_a_federator_twice_changes_nothing() -> None:
    topology = lose(federation(4), [3], State.GONE, RULES, NOW).topology
    assert lose(topology, [3], State.GONE, RULES, NOW).is_empty


def test_a_federator_that_was_gone_and_then_leaves_keeps_no_link() -> None:
    topology = lose(federation(4), [3], State.GONE, RULES, NOW).topology
    change = lose(topology, [3], State.LEFT, RULES, NOW)
    assert change.topology.federators[3].state is State.LEFT
    assert change.topology.federators[3].former


def test_a_full_federation_refuses_more_federators() -> None:
    with pytest.raises(Unavailable, match="has 2 federators"):
        join(federation(2), peer(2), Rules(federators_max=2), NOW)


def test_a_lowered_degree_is_mended() -> None:
    rules = Rules(degree_max=3)
    check(mend(federation(12), rules).topology, 3)


def test_a_mended_overlay_is_left_alone() -> None:
    assert mend(federation(12), RULES).is_empty


def reports(topology: Topology) -> list[tuple[Peer, int, list[Peer]]]:
    around = topology.neighbor_map()
    return [
        (peer(node, id=node, probe=Probe.FEDERATOR), topology.epoch, [peer(n, id=n) for n in around[node]])
        for node in topology.living()
    ]


def test_a_lost_store_is_rebuilt_from_reports() -> None:
    truth = federation(20)
    rebuilt = Topology()
    for who, epoch, neighbors in reports(truth):
        rebuilt = adopt(rebuilt, who, epoch, neighbors, RULES, NOW).topology
    assert rebuilt.links.keys() == truth.links.keys()
    assert {one.id: one.key for one in rebuilt.federators.values()} == {
        one.id: one.key for one in truth.federators.values()
    }
    assert rebuilt.epoch > truth.epoch
    assert mend(rebuilt, RULES).topology.links.keys() == truth.links.keys()


def test_one_report_reserves_the_ids_of_its_neighbours() -> None:
    change = adopt(Topology(), peer(4, id=4), 10, [peer(0, id=0), peer(1, id=1)], RULES, NOW)
    assert sorted(change.topology.federators) == [0, 1, 4]
    assert join(change.topology, peer(9), RULES, NOW)[1] == 2


def test_a_link_that_federators_made_themselves_is_adopted() -> None:
    before = federation(9)
    missing = next(n for n in range(1, 9) if n not in before.neighbors(0))
    told = [peer(n, id=n) for n in [*before.neighbors(0), missing]]
    change = adopt(before, peer(0, id=0), before.epoch, told, RULES, NOW)
    assert change.topology.links[0, missing] is LinkKind.SELF


def test_a_late_report_does_not_bring_a_removed_link_back() -> None:
    before = federation(9)
    stale = before.federators[0].changed_epoch
    old = before.neighbors(0)
    after = lose(before, [old[0]], State.GONE, RULES, NOW).topology
    told = [peer(n, id=n) for n in [*after.neighbors(0), 7, 8]]
    change = adopt(after, peer(0, id=0), stale - 1, told, RULES, NOW)
    assert change.is_empty


def test_two_federators_with_one_id_are_not_both_accepted() -> None:
    with pytest.raises(Conflict, match="Id 1 belongs to the broker"):
        adopt(federation(3), peer(9, id=1), 5, [], RULES, NOW)
    with pytest.raises(Conflict, match="is federator 1"):
        adopt(federation(3), peer(1, id=8), 5, [], RULES, NOW)


def test_a_federator_that_left_or_was_revoked_must_join_again() -> None:
    for state in (State.LEFT, State.REVOKED):
        topology = lose(federation(3), [1], state, RULES, NOW).topology
        with pytest.raises(Conflict, match="join again"):
            adopt(topology, peer(1, id=1), topology.epoch, [], RULES, NOW)


def test_attack_a_huge_epoch_in_a_report_is_refused() -> None:
    with pytest.raises(RemoteError, match="far ahead"):
        adopt(Topology(), peer(1, id=1), 2**52, [], RULES, NOW)


def test_a_report_with_a_later_epoch_raises_the_managers_epoch_beyond_it() -> None:
    change = adopt(federation(2), peer(0, id=0), 500, [peer(1, id=1)], RULES, NOW)
    assert change.topology.epoch == 501
    assert not change.is_empty


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(2, 6), st.lists(st.tuples(st.sampled_from("jjjlbg"), st.integers(0, 30)), max_size=40))
def test_any_sequence_of_changes_keeps_the_promise_of_the_overlay(
    degree_max: int, steps: list[tuple[str, int]]
) -> None:
    rules = Rules(degree_max=degree_max)
    topology = Topology()
    for what, number in steps:
        change: Change
        node = topology.by_key(peer(number).key)
        if what == "j":
            change, _ = join(topology, peer(number), rules, NOW)
        elif node is None:
            continue
        elif what == "b":
            if node.state is not State.GONE:
                continue
            change = come_back(topology, node.id, rules, NOW)
        else:
            change = lose(topology, [node.id], State.LEFT if what == "l" else State.GONE, rules, NOW)
        assert change.topology.epoch >= topology.epoch
        for one in change.announcements:
            linked = tuple(sorted((one.to, one.neighbor))) in change.topology.links
            assert linked == (one.action == "add")
        topology = change.topology
        check(topology, degree_max)
