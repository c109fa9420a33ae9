"""Custody on the data path: how a batch is handed on, and what happens when routes change (R55 to R78)."""

from typing import Any

from tests.protocol.net import Desk, packet, publication

from hanse.protocol.effects import Acknowledge, Deliver, Discard, Effect, Fetch, SendRuns, Store
from hanse.protocol.events import Fetched, Leave, LinkDown, Stored, Subscribed, Summarised, Unsubscribed
from hanse.protocol.messages import (
    BLOCKED,
    HOST,
    UNREACHABLE,
    Announcement,
    ClaimChange,
    ClaimDelta,
    Run,
    SetDelta,
    SetStep,
    Summary,
)
from hanse.protocol.seen import EPOCHS_MAX

US, LEFT, RIGHT, CORE, ORIGIN = 5, 1, 2, 9, 8


def run_of(number: int, topic: str = "g", *groups: str, qos: int = 1, epoch: int = 1) -> Run:
    return Run(ORIGIN, epoch, number, 1, qos, 1, groups or (topic,), packet(topic, b"%d" % number, qos))


def tell_core(desk: Desk, peer: int, *groups: str) -> list[Effect]:
    """Let a neighbour announce the core 9, one hop behind it, and its claims."""
    changes = tuple(ClaimChange(group, 100) for group in groups)
    return desk.say(
        peer,
        announcements=(Announcement(CORE, 1_000, 1, 1, len(changes)),),
        claim_deltas=(ClaimDelta(CORE, 1_000, 0, changes),),
    )


def outsider(*groups: str, behind: tuple[int, ...] = (LEFT,), **settings: Any) -> Desk:
    desk = Desk(US, (LEFT, RIGHT), **settings)
    for peer in behind:
        tell_core(desk, peer, *groups)
    desk.say(RIGHT)
    return desk


def core_with_member(group: str, member: int) -> Desk:
    """Return the group's core, with a neighbour in its mesh."""
    desk = Desk(US, (LEFT, RIGHT))
    desk.say(LEFT)
    desk.say(RIGHT)
    desk.step(Subscribed(group))
    desk.wait(3.0, talking=(LEFT, RIGHT))
    assert desk.machine.core_of(group) == US
    desk.say(member, memberships=SetDelta(1, 0, 1, (SetStep(True, US, group),)))
    assert desk.machine.has_members(group)
    assert desk.machine.mesh_neighbours(group) == (member,)
    return desk


def of_kind(effects: list[Effect], *kinds: type) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kinds)]


# --- windows ---------------------------------------------------------------------------------------------------------


def test_qos_0_does_not_wait_behind_a_full_window() -> None:
    machine = outsider("g", window_bytes=1).machine
    first = machine.publish(0.0, [publication("g", b"0", 1)], 1)
    routed = machine.publish(0.0, [publication("g", b"1", 1), publication("g", b"2", 0)], 2)
    assert [run.qos for run in routed.frames[LEFT]] == [0]
    assert LEFT not in routed.tokens
    effects = machine.acknowledged(0.0, LEFT, [first.tokens[LEFT]])
    (sent,) = of_kind(effects, SendRuns)
    assert isinstance(sent, SendRuns)
    assert [run.first for run in sent.runs] == [1]


def test_for_an_absent_member_qos_1_is_kept_and_qos_0_is_dropped_and_counted() -> None:
    desk = core_with_member("g", RIGHT)
    desk.step(LinkDown(RIGHT))
    routed = desk.machine.publish(desk.now, [publication("g", b"0", 0), publication("g", b"1", 1)], 1)
    assert (routed.frames, routed.tokens) == ({}, {})
    assert desk.machine.counters["dropped_link_down"] == 1
    desk.up(RIGHT)
    effects = desk.say(RIGHT)
    assert [run.qos for effect in effects if isinstance(effect, SendRuns) for run in effect.runs] == [1]


def test_deliveries_of_qos_0_do_not_wait_behind_a_full_host() -> None:
    desk = outsider("g", window_bytes=1)
    desk.step(Subscribed("g"))
    first = desk.machine.forward(0.0, RIGHT, [run_of(0)], 1)
    assert [run.first for run in first.deliveries] == [0]
    second = desk.machine.forward(0.0, RIGHT, [run_of(1), run_of(2, qos=0)], 2)
    assert [run.first for run in second.deliveries] == [2]
    assert HOST not in second.tokens
    effects = desk.machine.acknowledged(0.0, HOST, [first.tokens[HOST]])
    assert [effect.runs[0].first for effect in effects if isinstance(effect, Deliver)] == [1]


def test_publications_that_a_neighbour_lacks_wait_for_its_window() -> None:
    desk = outsider("g", window_bytes=1)
    desk.machine.forward(0.0, RIGHT, [run_of(0), run_of(1)], 1)
    effects = desk.step(Summarised(RIGHT, (Summary("g", 5_000),), 7))
    sent = [effect for effect in effects if isinstance(effect, SendRuns)]
    assert [run.first for effect in sent for run in effect.runs] == [0]
    assert Acknowledge(RIGHT, (7,)) in effects
    more = desk.machine.acknowledged(0.0, RIGHT, [sent[0].token])
    assert [effect.runs[0].first for effect in more if isinstance(effect, SendRuns)] == [1]


def test_attack_a_stranger_cannot_ask_for_missed_publications() -> None:
    desk = outsider("g")
    desk.machine.forward(0.0, RIGHT, [run_of(0)], 1)
    assert desk.step(Summarised(77, (Summary("g", 5_000),), 7)) == []
    desk.step(LinkDown(RIGHT))
    desk.step(Summarised(RIGHT, (Summary("g", 5_000),), 7))
    assert not [effect for effect in desk.effects if isinstance(effect, Acknowledge) and effect.receipts == (7,)]
    assert desk.machine.counters["rejected_stranger"] == 2


# --- lost destinations -----------------------------------------------------------------------------------------------


def test_rerouted_publications_wait_for_the_window_of_the_other_route() -> None:
    desk = outsider("g", behind=(LEFT, RIGHT), window_bytes=1)
    first = desk.machine.publish(0.0, [publication("g", b"0", 1)], 1)
    assert set(first.tokens) == {LEFT, RIGHT}
    desk.machine.publish(0.0, [publication("g", b"1", 1)], 2)
    effects = desk.step(LinkDown(LEFT))
    assert of_kind(effects, SendRuns, Acknowledge) == []
    assert desk.machine.counters["rerouted"] == 2
    done = []
    token = first.tokens[RIGHT]
    for _ in range(10):
        effects = desk.machine.acknowledged(desk.now, RIGHT, [token])
        done += [receipt for effect in effects if isinstance(effect, Acknowledge) for receipt in effect.receipts]
        sent = [effect for effect in effects if isinstance(effect, SendRuns)]
        if not sent:
            break
        token = sent[0].token
    assert done == [1, 2]
    assert desk.machine.in_custody == 0


def test_publications_under_way_to_a_lost_member_are_kept_for_it() -> None:
    desk = core_with_member("g", RIGHT)
    routed = desk.machine.publish(desk.now, [publication("g", b"0", 1)], 1)
    assert set(routed.tokens) == {RIGHT}
    effects = desk.step(LinkDown(RIGHT))
    assert of_kind(effects, SendRuns, Acknowledge) == []
    effects = desk.wait(0.5, talking=(LEFT,))
    (store,) = [effect for effect in effects if isinstance(effect, Store)]
    assert (store.way, store.position, len(store.records)) == (RIGHT, 0, 1)
    assert desk.step(Stored(RIGHT, 1)) == [Acknowledge(HOST, (1,))]
    assert (desk.machine.records, desk.machine.in_custody) == (1, 0)


def test_a_lost_neighbour_keeps_its_own_groups_of_a_run_and_others_take_the_rest() -> None:
    desk = core_with_member("t/+", RIGHT)
    tell_core(desk, RIGHT, "t/x")
    routed = desk.machine.publish(desk.now, [publication("t/x", b"0", 1)], 1)
    assert [run.groups for run in routed.frames[RIGHT]] == [("t/+", "t/x")]
    desk.step(LinkDown(RIGHT))
    custody = desk.machine._custody
    assert [run.groups for duty in custody._ways[RIGHT].backlog for run in duty.runs] == [("t/+",)]
    assert custody.blocked_keys() == [(HOST, ("t/x",))]
    # Another route to the other core takes what is for it.
    effects = tell_core(desk, LEFT, "t/x")
    assert [run.groups for effect in effects if isinstance(effect, SendRuns) for run in effect.runs] == [("t/x",)]


def test_others_take_the_foreign_groups_of_a_record_under_way_to_a_lost_neighbour_once() -> None:
    desk = core_with_member("t/+", RIGHT)
    tell_core(desk, RIGHT, "t/x")
    desk.machine.publish(desk.now, [publication("t/x", b"0", 1)], 1)
    desk.machine.publish(desk.now, [publication("t/y", b"1", 1)], 2)
    desk.wait(1.5, talking=(LEFT, RIGHT))
    assert desk.step(Stored(RIGHT, 2)) == [Acknowledge(HOST, (1,)), Acknowledge(HOST, (2,))]
    desk.step(LinkDown(RIGHT))
    custody = desk.machine._custody
    assert list(custody._ways[RIGHT].disk) == [[0, 2]]
    assert custody.blocked_keys() == [(HOST, ("t/x",))]
    effects = tell_core(desk, LEFT, "t/x")
    (sent,) = [effect for effect in effects if isinstance(effect, SendRuns)]
    assert (sent.neighbour, [run.groups for run in sent.runs]) == (LEFT, [("t/x",)])
    assert desk.machine.acknowledged(desk.now, LEFT, [sent.token]) == []
    # Back and lost again before it has acknowledged them: what came from the disk goes nowhere else.
    record = run_of(0, "t/x", "t/+", "t/x")._replace(origin=US)
    desk.up(RIGHT)
    assert Fetch(RIGHT, 0, 2) in desk.say(RIGHT)
    assert of_kind(desk.step(Fetched(RIGHT, ((0, (record,)), (1, (run_of(1, "t/y", "t/+"),))), 2)), SendRuns)
    assert of_kind(desk.step(LinkDown(RIGHT)), SendRuns, Discard) == []
    assert list(custody._ways[RIGHT].disk) == [[0, 2]]


def test_a_duplicate_of_a_record_that_a_former_process_left_for_the_host_is_delivered_once() -> None:
    desk = outsider("g")
    desk.step(Subscribed("g"))
    desk.machine._custody.restore({HOST: (0, 2)})
    # A duplicate comes first, and waits behind the records. Further epochs make epoch 1 too old to be remembered.
    for epoch in range(12, 21):
        assert desk.machine.forward(desk.now, LEFT, [run_of(0, epoch=epoch)]).deliveries == []
    # The first record holds a duplicate and a new publication, the second the duplicate alone.
    both = run_of(0, epoch=20)._replace(length=2, body=run_of(0).body + run_of(1).body)
    effects = desk.step(Fetched(HOST, ((0, (both, run_of(0))), (1, (run_of(0, epoch=20),))), 2))
    delivered = [(run.epoch, run.first) for effect in effects if isinstance(effect, Deliver) for run in effect.runs]
    assert delivered[:2] == [(20, 1), (1, 0)]
    assert sorted(delivered) == [(1, 0), *((epoch, 0) for epoch in range(12, 21)), (20, 1)]
    assert of_kind(effects, Discard) == [Discard(HOST, (1,))]
    assert desk.machine.forward(desk.now, RIGHT, [run_of(1, epoch=20)]).deliveries == []


def records_of_a_neighbour_that_goes(desk: Desk) -> None:
    """Write one record for RIGHT to disk, and then remove RIGHT."""
    desk.step(LinkDown(RIGHT))
    desk.machine.publish(desk.now, [publication("g", b"0", 1)], 1)
    desk.wait(0.5, talking=(LEFT,))
    desk.step(Stored(RIGHT, 1))
    desk.step(LinkDown(RIGHT, True))
    assert desk.machine.counters["records_orphaned"] == 1


def test_records_of_a_neighbour_that_is_gone_for_good_take_other_routes() -> None:
    desk = core_with_member("g", RIGHT)
    records_of_a_neighbour_that_goes(desk)
    desk.say(LEFT, memberships=SetDelta(1, 0, 1, (SetStep(True, US, "g"),)))
    assert [effect for effect in desk.wait(0.2, talking=(LEFT,)) if isinstance(effect, Fetch)] == [Fetch(RIGHT, 0, 1)]
    record = run_of(0)._replace(origin=US)
    (sent,) = [effect for effect in desk.step(Fetched(RIGHT, ((0, (record,)),), 1)) if isinstance(effect, SendRuns)]
    assert (sent.neighbour, [run.groups for run in sent.runs]) == (LEFT, [("g",)])
    assert Discard(RIGHT, (0,)) in desk.machine.acknowledged(desk.now, LEFT, (sent.token,))
    assert desk.machine.records == 0


def test_records_that_nobody_wants_any_longer_end_with_their_neighbour() -> None:
    desk = core_with_member("g", RIGHT)
    records_of_a_neighbour_that_goes(desk)
    desk.wait(0.2, talking=(LEFT,))
    assert Discard(RIGHT, (0,)) in desk.step(Fetched(RIGHT, ((0, (run_of(0)._replace(origin=US),)),), 1))


def test_records_without_a_route_are_read_again_later() -> None:
    desk = outsider("g")
    desk.step(LinkDown(LEFT))
    desk.machine._custody.restore({9: (0, 2)})
    desk.machine._custody.forget_way(desk.now, 9)
    desk.say(RIGHT)
    assert Fetch(9, 0, 2) in desk.wait(0.2, talking=(RIGHT,))
    records = ((0, (run_of(0),)), (1, (run_of(1),)))
    assert not [effect for effect in desk.step(Fetched(9, records, 2)) if isinstance(effect, (Discard, SendRuns))]
    assert desk.machine.records == 2
    assert Fetch(9, 0, 2) not in desk.wait(0.5, talking=(RIGHT,))
    assert Fetch(9, 0, 2) in desk.wait(1.0, talking=(RIGHT,))


# --- no route --------------------------------------------------------------------------------------------------------


def test_a_run_of_an_unknown_group_waits_for_claims_and_is_then_delivered() -> None:
    desk = Desk(US, (LEFT, RIGHT))
    desk.machine.forward(0.0, LEFT, [run_of(0, "t/x", "unheard/of")], 1)
    desk.machine.forward(0.0, RIGHT, [run_of(0, "t/x", "unheard/of")], 2)
    assert desk.machine.in_custody == 2
    desk.step(Subscribed("t/+"))
    effects = tell_core(desk, LEFT, "t/+")
    delivered = [run.first for effect in effects if isinstance(effect, Deliver) for run in effect.runs]
    assert delivered == [0]  # once, although both neighbours brought it


def test_runs_that_waited_to_be_matched_also_wait_for_the_hosts_window() -> None:
    desk = Desk(US, (LEFT, RIGHT), window_bytes=1)
    desk.machine.forward(0.0, RIGHT, [run_of(0, "t/x", "unheard/of"), run_of(1, "t/x", "unheard/of")], 1)
    desk.step(Subscribed("t/+"))
    effects = tell_core(desk, LEFT, "t/+")
    deliveries = [effect for effect in effects if isinstance(effect, Deliver)]
    assert [effect.runs[0].first for effect in deliveries] == [0]
    more = desk.machine.acknowledged(0.0, HOST, [deliveries[0].token])
    assert [effect.runs[0].first for effect in more if isinstance(effect, Deliver)] == [1]


def test_a_record_without_a_route_keeps_waiting_and_is_not_written_again() -> None:
    desk = Desk(US, (LEFT, RIGHT))
    desk.effects += desk.machine.restore(0.0, outbox={BLOCKED: (3, 4)})
    desk.say(LEFT, claim_deltas=(ClaimDelta(CORE, 1_000, 0, (ClaimChange("g", 100),)),))  # and no route to it
    assert Fetch(BLOCKED, 3, 4) in desk.effects
    assert of_kind(desk.step(Fetched(BLOCKED, ((3, (run_of(0),)),), 4)), SendRuns, Store, Discard) == []
    assert desk.machine.records == 1
    effects = tell_core(desk, LEFT, "g")
    assert of_kind(effects, Fetch) == [Fetch(BLOCKED, 3, 4)]
    effects = desk.step(Fetched(BLOCKED, ((3, (run_of(0),)),), 4))
    (sent,) = [effect for effect in effects if isinstance(effect, SendRuns)]
    assert (sent.neighbour, sent.runs[0].first) == (LEFT, 0)
    assert desk.machine.acknowledged(desk.now, LEFT, [sent.token]) == [Discard(BLOCKED, (3,))]


def test_a_run_that_waited_until_its_id_was_forgotten_is_still_sent() -> None:
    desk = outsider("g", seen_s=0.1)
    desk.say(LEFT, announcements=(Announcement(CORE, 1_000, 2, UNREACHABLE, 0),))
    desk.machine.forward(0.0, RIGHT, [run_of(0)], 1)
    desk.machine.forward(0.0, RIGHT, [run_of(0, epoch=2)], 2)
    desk.machine._forwarding.forget(1.0)
    for epoch in range(3, EPOCHS_MAX + 2):
        desk.machine.forward(0.0, RIGHT, [run_of(0, qos=0, epoch=epoch)])
    effects = desk.say(LEFT, announcements=(Announcement(CORE, 1_000, 3, 1, 1),))
    sent = [effect for effect in of_kind(effects, SendRuns) if isinstance(effect, SendRuns) and effect.token]
    assert sorted(run.epoch for effect in sent for run in effect.runs) == [1, 2]


# --- delivered by a former process -----------------------------------------------------------------------------------


def test_publications_delivered_by_a_former_process_are_not_delivered_again() -> None:
    desk = Desk(US, (LEFT, RIGHT))
    desk.machine.restore(0.0, delivered=[(ORIGIN, epoch, 0, 1) for epoch in range(EPOCHS_MAX + 1, 0, -1)])
    desk.step(Subscribed("g"))
    tell_core(desk, LEFT, "g")
    routed = desk.machine.forward(0.0, RIGHT, [run_of(0, epoch=2), run_of(1, epoch=2)], 1)
    assert [run.first for run in routed.deliveries] == [1]
    assert desk.machine.forward(0.0, RIGHT, [run_of(5, epoch=1)], 2).deliveries == []
    assert desk.machine.counters["refused_old"] == 1


# --- coming and going ------------------------------------------------------------------------------------------------


def test_a_federator_that_has_left_takes_nothing_over() -> None:
    """Unacknowledged, it goes to others (R37, R61)."""
    desk = outsider("g")
    desk.step(Leave())
    assert desk.machine.forward(0.0, RIGHT, [run_of(0)], 1)[:] == ({}, [], {}, ())
    assert desk.machine.counters["received"] == 0


def test_a_lost_and_restarted_neighbour_gets_what_was_kept_for_it_after_its_first_frame() -> None:
    desk = core_with_member("g", RIGHT)
    desk.wait(10.0, talking=(LEFT,))
    assert desk.machine.counters["neighbours_lost"] == 1
    desk.machine.publish(desk.now, [publication("g", b"0", 1)], 1)
    desk.epochs[RIGHT] += 1
    effects = desk.say(RIGHT)
    assert [run.body for effect in effects if isinstance(effect, SendRuns) for run in effect.runs] == [
        packet("g", b"0", 1)
    ]


def test_a_neighbour_that_is_back_gets_nothing_until_it_hears_us() -> None:
    desk = core_with_member("g", RIGHT)
    desk.step(LinkDown(RIGHT))
    desk.machine.publish(desk.now, [publication("g", b"0", 1)], 1)
    desk.up(RIGHT)
    desk.wait(desk.machine.settings.expiry_s + 1.0, talking=(LEFT,))
    assert of_kind(desk.say(RIGHT, echo_epoch=0, echo_number=0), SendRuns) == []
    assert [effect.neighbour for effect in desk.say(RIGHT) if isinstance(effect, SendRuns)] == [RIGHT]


def test_a_mesh_under_a_core_that_gave_the_group_up_is_forgotten_in_time() -> None:
    desk = outsider("g")
    desk.step(Subscribed("g"))
    assert desk.machine.mesh_neighbours("g") == (LEFT,)
    desk.say(LEFT, claim_deltas=(ClaimDelta(CORE, 1_000, 1, (ClaimChange("g", None),)),))
    desk.step(Unsubscribed("g"))
    desk.wait(15.0, talking=(LEFT, RIGHT))
    assert desk.machine._mesh._fading == {}
    assert desk.machine.mesh_neighbours("g") == ()


def test_nobody_is_told_of_a_batch_of_qos_0_for_which_nobody_waits() -> None:
    machine = outsider("g").machine
    assert machine.publish(0.0, [publication("g", b"0", 0)]).tokens == {}
    assert machine.publish(0.0, [publication("g", b"1", 1)]).tokens.keys() == {LEFT}
    assert machine.publish(0.0, [publication("g", b"2", 1), publication("g", b"3", 0)]).tokens.keys() == {LEFT}
    assert machine.in_custody == 2


def test_what_came_back_is_accounted_for_when_it_ends_here() -> None:
    desk = outsider("g")
    machine = desk.machine
    returned = run_of(0)._replace(is_returned=True)
    machine.forward(0.0, RIGHT, [returned._replace(hops=200)], 1)
    machine.forward(0.0, RIGHT, [returned._replace(qos=0)], 2)
    dropped = {row.measure: row.publications for row in machine.accounts.rows() if row.measure.startswith("dropped:")}
    assert dropped == {"dropped:hops": 1, "dropped:malformed": 1}
    assert machine.in_custody == 0


def test_what_came_back_is_retained_for_neighbours_that_missed_it() -> None:
    desk = outsider("g", behind=(LEFT, RIGHT))
    assert desk.machine.retained_bytes == 0
    desk.machine.forward(0.0, RIGHT, [run_of(0)._replace(is_returned=True)], 1)
    assert desk.machine.retained_bytes > 0


def test_two_groups_that_came_back_are_delivered_if_one_is_of_interest_here() -> None:
    desk = outsider("g", "+", behind=(LEFT, RIGHT))
    desk.step(Subscribed("+"))
    effects = desk.machine.forward(0.0, RIGHT, [run_of(0, "g", "g", "+")._replace(is_returned=True)], 1).effects
    assert len(of_kind(list(effects), Deliver)) == 1


def test_what_waited_to_be_matched_is_not_delivered_again() -> None:
    desk = Desk(US, (LEFT, RIGHT))
    desk.machine.forward(0.0, LEFT, [run_of(0, "t/x", "unheard/of")], 1)
    desk.step(Subscribed("t/+"))
    effects = tell_core(desk, LEFT, "t/+")
    assert len(of_kind(effects, Deliver)) == 1
    routed = desk.machine.forward(desk.now, RIGHT, [run_of(0, "t/x", "late/#")], 2)
    assert routed.deliveries == []
    routed = desk.machine.forward(desk.now, RIGHT, [run_of(0, "t/x", "t/+", "late/#")], 3)
    assert routed.deliveries == []


def test_of_a_run_that_came_back_only_what_is_too_old_is_refused() -> None:
    desk = outsider("g", behind=(LEFT, RIGHT), seen_s=0.5)
    desk.machine.forward(0.0, RIGHT, [run_of(0)], 1)
    desk.wait(2.1, talking=(LEFT, RIGHT))
    both = run_of(0)._replace(length=2, body=run_of(0).body + run_of(1).body, is_returned=True)
    effects = desk.machine.forward(desk.now, RIGHT, [both], 2).effects
    assert [run.first for effect in effects if isinstance(effect, SendRuns) for run in effect.runs] == [1]
    assert desk.machine.counters["refused_old"] == 1


def test_a_run_that_came_round_goes_on_by_a_way_that_is_new() -> None:
    desk = Desk(US, (LEFT, RIGHT, 77))
    tell_core(desk, LEFT, "g")
    for peer in (RIGHT, 77):
        desk.say(peer)
    assert desk.machine.forward(0.0, RIGHT, [run_of(0)], 1).frames.keys() == {LEFT}
    tell_core(desk, 77, "g")  # as near as the other parent
    assert desk.machine.parents_of(CORE) == (LEFT, 77)
    assert 77 in desk.machine.forward(0.0, RIGHT, [run_of(0)], 2).frames
    assert desk.machine.forward(0.0, RIGHT, [run_of(0)], 3).frames == {}


def test_a_run_that_came_from_the_neighbour_that_takes_it_over_says_that_it_returns() -> None:
    for giver, is_returned in ((RIGHT, True), (77, False)):
        desk = Desk(US, (LEFT, RIGHT, 77))
        tell_core(desk, LEFT, "g")
        desk.say(RIGHT)
        desk.say(77)
        desk.machine.forward(0.0, 77, [run_of(0)], 1)  # on its way to the core
        if giver == RIGHT:
            desk.machine.forward(0.0, RIGHT, [run_of(0)], 2)  # a duplicate: RIGHT has it, too
        tell_core(desk, RIGHT, "g")
        effects = desk.step(LinkDown(LEFT))
        (sent,) = [effect for effect in effects if isinstance(effect, SendRuns)]
        assert (sent.neighbour, sent.runs[0].is_returned) == (RIGHT, is_returned)


def test_a_run_in_two_parts_of_a_frame_is_matched_once_for_the_groups_of_both() -> None:
    desk = outsider("g", "+")
    # Each part names an unknown group as well, so both are matched anew; what the other part names is left to it.
    frame = [run_of(0, "g", "g", "gone"), run_of(0, "g", "+", "gone"), run_of(5, "g", "g", "gone")]
    routed = desk.machine.forward(0.0, RIGHT, frame, 1)
    assert [(run.first, run.groups) for run in routed.frames[LEFT]] == [
        (0, ("g",)),
        (0, ("+",)),
        (5, ("g",)),
        (5, ("+",)),
    ]
