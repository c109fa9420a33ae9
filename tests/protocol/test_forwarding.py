import pytest
from tests.protocol.net import Desk, packet, publication

from hanse.protocol import accounts, plans
from hanse.protocol.events import LinkDown, Subscribed
from hanse.protocol.messages import Announcement, ClaimChange, ClaimDelta, Run
from hanse.protocol.seen import CHUNK


def outsider(*groups: str, peers: tuple[int, ...] = (1, 2), **settings: int) -> Desk:
    """Return a federator that knows the core 9, behind neighbour 1, with these groups."""
    desk = Desk(peers=peers, **settings)
    changes = tuple(ClaimChange(group, 100) for group in groups)
    desk.say(
        1,
        announcements=(Announcement(9, 1_000, 1, 1, len(changes)),),
        claim_deltas=(ClaimDelta(9, 1_000, 0, changes),),
    )
    return desk


def runs(first: int, *payloads: bytes, group: str = "g") -> Run:
    body = b"".join(packet(group, payload) for payload in payloads)
    return Run(8, 1, first, len(payloads), 0, 1, (group,), body)


def test_an_empty_batch_gives_an_empty_result() -> None:
    assert outsider("g").machine.publish(0.0, [])[:2] == ({}, [])


def test_publications_with_the_same_route_travel_as_one_run() -> None:
    machine = outsider("a", "b").machine
    batch = [
        publication("a", b"1"),
        publication("a", b"2"),
        publication("a", b"3", 1),
        publication("b"),
        publication("a"),
    ]
    frames = machine.publish(0.0, batch).frames
    assert [(run.first, run.length, run.qos, run.groups) for run in frames[1]] == [
        (0, 2, 0, ("a",)),
        (2, 1, 1, ("a",)),
        (3, 1, 0, ("b",)),
        (4, 1, 0, ("a",)),
    ]
    assert frames[1][0].body == packet("a", b"1") + packet("a", b"2")


def test_unwanted_publications_are_counted_and_their_ids_are_skipped() -> None:
    machine = outsider("a").machine
    assert machine.publish(0.0, [publication("x"), publication("x")]).frames == {}
    assert machine.publish(0.0, [publication("a")]).frames[1][0].first == 2
    assert machine.counters["not_wanted"] == 2


def test_packets_can_be_sent_to_a_group_whatever_their_topics() -> None:
    machine = outsider("a").machine
    frames = machine.publish_to(0.0, "a", 0, [packet("x"), packet("y")]).frames
    assert [(run.first, run.length, run.groups) for run in frames[1]] == [(0, 2, ("a",))]


def test_a_run_that_is_partly_duplicate_is_forwarded_in_part() -> None:
    desk = outsider("g")
    desk.step(Subscribed("g"))
    desk.machine.forward(0.0, 2, [runs(1, b"1", b"2")])
    routed = desk.machine.forward(0.0, 2, [runs(0, b"0", b"1", b"2", b"3")])
    assert [(run.first, run.body) for run in routed.frames[1]] == [(0, packet("g", b"0")), (3, packet("g", b"3"))]
    assert routed.frames[1] == [run._replace(hops=2) for run in routed.deliveries]
    assert desk.machine.counters["duplicates"] == 2


def test_a_run_across_chunks_of_the_window_is_forwarded_whole() -> None:
    desk = outsider("g")
    routed = desk.machine.forward(0.0, 2, [runs(CHUNK - 1, b"0", b"1")])
    assert [(run.first, run.length) for run in routed.frames[1]] == [(CHUNK - 1, 2)]
    assert desk.machine.forward(0.0, 2, [runs(CHUNK - 1, b"0", b"1")])[:2] == ({}, [])


def test_plans_for_a_topic_are_made_anew_when_the_routes_change() -> None:
    desk = outsider("g")
    assert set(desk.machine.publish(0.0, [publication("g")]).frames) == {1}
    desk.say(2, announcements=(Announcement(9, 1_000, 1, 1, 1),))
    assert set(desk.machine.publish(0.0, [publication("g")]).frames) == {1, 2}
    desk.step(LinkDown(1))
    assert set(desk.machine.publish(0.0, [publication("g")]).frames) == {2}


def test_an_outsider_whose_only_route_is_the_sender_waits_for_another() -> None:
    desk = outsider("g")
    assert desk.machine.forward(0.0, 1, [runs(0, b"0")]).frames == {}
    assert desk.machine.parked_bytes == len(packet("g", b"0"))


def test_a_run_with_a_known_and_an_unknown_group_is_forwarded_for_the_known_one_and_for_matching_groups() -> None:
    desk = outsider("g", "+/h")
    named = ("g", "unheard/of")
    routed = desk.machine.forward(0.0, 2, [runs(0, b"0")._replace(groups=named)])
    assert [(run.first, run.groups) for run in routed.frames[1]] == [(0, ("g",))]
    # The sender vouches for `g` whatever the topic. `+/h` is matched here, so its mesh is served too.
    other = runs(1, b"1", group="x/h")._replace(groups=named)
    routed = desk.machine.forward(0.0, 2, [other])
    assert [(run.first, run.groups) for run in routed.frames[1]] == [(1, ("g",)), (1, ("+/h",))]
    assert desk.machine.forward(0.0, 2, [other])[:2] == ({}, [])


def test_the_caches_of_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "PLANS_MAX", 3)
    groups = [f"g{number}" for number in range(10)]
    desk = outsider(*groups)
    for number, group in enumerate(groups):
        assert desk.machine.publish(0.0, [publication(group)]).frames
        assert desk.machine.forward(0.0, 2, [runs(number, b"", group=group)]).frames
    assert len(desk.machine._forwarding._plans.by_topic) <= 3
    assert len(desk.machine._forwarding._plans.by_link) <= 3


def test_parked_publications_keep_waiting_for_groups_that_still_have_no_route() -> None:
    desk = Desk(peers=(1, 2))
    for peer, core, group in ((1, 8, "g"), (2, 9, "+")):
        desk.say(
            peer,
            announcements=(Announcement(core, 1_000, 1, 1, 1),),
            claim_deltas=(ClaimDelta(core, 1_000, 0, (ClaimChange(group, 100),)),),
        )
    desk.step(LinkDown(1))
    desk.step(LinkDown(2))
    desk.machine.publish(0.0, [publication("g")])
    desk.up(1)
    desk.say(1, announcements=(Announcement(8, 1_000, 9, 1, 1),))
    assert desk.machine.parked_bytes == len(packet("g"))  # for + it still waits
    desk.up(2)
    desk.say(2, announcements=(Announcement(9, 1_000, 9, 1, 1),))
    assert desk.machine.parked_bytes == 0


def test_publications_beyond_the_size_limit_are_dropped_and_counted() -> None:
    machine = outsider("a", message_bytes_max=20).machine
    frames = machine.publish(0.0, [publication("a", b"1"), publication("a", b"x" * 20), publication("a", b"2")]).frames
    assert [(run.first, run.body) for run in frames[1]] == [(0, packet("a", b"1")), (2, packet("a", b"2"))]
    assert machine.publish(0.0, [publication("a", b"x" * 20)]).frames == {}
    assert machine.counters["dropped_too_large"] == 2


def test_accounts_are_kept_by_measure_origin_and_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = outsider("a", "b")
    desk.step(Subscribed("b"))
    machine = desk.machine
    machine.publish(0.0, [publication("a", b"1"), publication("a", b"2"), publication("x")])
    size = len(packet("a", b"1"))
    assert machine.flows == {("published", 5, ("a",)): [2, 2 * size], ("forwarded", 5, ("a",)): [2, 2 * size]}
    machine.count_delivered(runs(0, b"1", group="b")._replace(groups=("a", "b")))
    assert machine.flows["delivered", 8, ("b",)] == [1, len(packet("b", b"1"))]
    monkeypatch.setattr(accounts, "ACCOUNTS_MAX", 3)
    machine.count_delivered(runs(1, b"1", group="b")._replace(origin=7))
    assert machine.flows["delivered", 7, accounts.OTHER_GROUPS][0] == 1
