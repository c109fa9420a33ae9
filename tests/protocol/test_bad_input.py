"""Input that breaks a rule is ignored or refused, and counted. Nothing of it is passed on."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.protocol.net import Desk, packet, publication
from tests.protocol.strategies import CONTROL_FRAMES, batches

from hanse.errors import LocalError
from hanse.protocol import codec
from hanse.protocol.effects import Emit, Send
from hanse.protocol.events import Appointed, LinkDown, Ranked, Received, Subscribed, Unsubscribed
from hanse.protocol.messages import (
    UNREACHABLE,
    Announcement,
    ClaimChange,
    ClaimDelta,
    ClaimPart,
    ClaimRequest,
    ControlFrame,
    HandOver,
    Run,
    SetAck,
    SetDelta,
    SetStep,
    Solicit,
)
from hanse.protocol.settings import EPOCH_MAX, SEQUENCE_MAX


def spoken(peer: int = 1) -> Desk:
    """Return a federator whose two neighbours have told all they have: the core 9 with the group `g`, behind 1."""
    desk = Desk(peers=(1, 2))
    desk.say(2)
    desk.say(
        peer,
        announcements=(Announcement(9, 1_000, 5, 1, 1),),
        claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("g", 100),)),),
    )
    return desk


def picture(desk: Desk) -> tuple[object, ...]:
    """Return the state that a bad frame must not change."""
    machine = desk.machine
    groups = machine.groups()
    return (
        machine.epoch,
        machine.neighbours(),
        groups,
        [machine.core_of(group) for group in groups],
        [(core, machine.distance_to(core), machine.parents_of(core)) for core in range(12)],
        [machine.mesh_neighbours(group) for group in groups],
        machine.host_subscriptions(),
    )


@pytest.mark.parametrize(
    ("parts", "counter"),
    [
        ({"sender": 2}, "rejected_stranger"),
        ({"number": 1}, "ignored_stale_frame"),
        ({"number": 0}, "ignored_stale_frame"),
        ({"epoch": 999, "number": 99}, "ignored_stale_frame"),
        ({"announcements": (Announcement(8, 1_000, 1, 0, 0),)}, "rejected_distance"),
        ({"announcements": (Announcement(1, 1_000, 1, 3, 0),)}, "rejected_distance"),
        ({"announcements": (Announcement(1, 1_000, 1, UNREACHABLE - 1, 0),)}, "rejected_distance"),
        ({"announcements": (Announcement(8, 1_000, 1, UNREACHABLE - 1, 0),)}, "rejected_distance"),
        ({"announcements": (Announcement(9, 999, 9, 1, 0),)}, "ignored_stale_announcement"),
        ({"claim_deltas": (ClaimDelta(9, 999, 1, (ClaimChange("x", 1),)),)}, "ignored_claim_delta"),
        ({"claim_deltas": (ClaimDelta(9, 1_000, 0, (ClaimChange("x", 1),)),)}, "ignored_claim_delta"),
        ({"claim_deltas": (ClaimDelta(9, 1_000, 7, (ClaimChange("x", 1),)),)}, "ignored_claim_delta"),
        ({"claim_deltas": (ClaimDelta(9, 1_000, 1, ()),)}, "ignored_claim_delta"),
        ({"claim_parts": (ClaimPart(9, 1_001, 1, 0, 2, (ClaimChange("x", 1),)),)}, "ignored_claim_part"),
        ({"hand_overs": (HandOver(5, "g"),)}, "ignored_hand_over"),
        ({"hand_overs": (HandOver(9, "never/claimed"),)}, "ignored_hand_over"),
    ],
)
def test_a_frame_that_breaks_a_rule_changes_nothing_and_is_counted(parts: dict[str, object], counter: str) -> None:
    desk = spoken()
    before = picture(desk)
    effects = desk.say(1, **parts)
    assert not any(isinstance(effect, Send) for effect in effects)
    assert picture(desk) == before
    assert desk.machine.counters[counter] == 1


@pytest.mark.parametrize(
    "parts",
    [
        {"announcements": (Announcement(5, 1_000, 0, 3, 0),)},  # our own announcement, reflected
        {"announcements": (Announcement(8, 1_000, 1, UNREACHABLE, 0),)},  # no route to an unknown core
        {"claim_deltas": (ClaimDelta(5, 2_000, 0, (ClaimChange("x", 1),)),)},  # claims in our name
        {"claim_deltas": (ClaimDelta(8, 1_000, 3, (ClaimChange("x", 1),)),)},  # from the middle of an unknown set
        {"claim_requests": (ClaimRequest(8, 0, 0, -1, 0),)},  # of an unknown core
        {"claim_requests": (ClaimRequest(9, 1_000, 1, -1, 0),)},  # of claims that it has
        {"solicits": (Solicit(8, 1_000, 1),)},  # for an unknown core
        {"solicits": (Solicit(9, 999, 1),)},  # for another epoch
        {"solicits": (Solicit(5, 999, 1),)},  # of ours
        {"memberships": SetDelta(1, 9, 0, (SetStep(True, 9, "x"),))},  # with a gap before it
        {"connections": SetDelta(1, 0, 0, (SetStep(False, 9, "x"),))},  # removes what was not added
        {"memberships_ack": SetAck(1, 77)},  # of steps that were never told
        {"memberships_ack": SetAck(SEQUENCE_MAX, SEQUENCE_MAX)},
    ],
)
def test_a_useless_frame_changes_nothing(parts: dict[str, object]) -> None:
    desk = spoken()
    before = picture(desk)
    effects = desk.say(1, **parts)
    assert not any(isinstance(effect, Send) for effect in effects)
    assert picture(desk) == before


def test_a_sequence_number_that_goes_backwards_is_accepted_as_announced() -> None:
    desk = spoken()
    desk.say(1, announcements=(Announcement(9, 1_000, 6, 1, 1),))
    desk.say(1, announcements=(Announcement(9, 1_000, 2, 1, 1),))
    assert desk.machine.parents_of(9) == (1,)  # nearer than we are at any number, so it cannot be behind us


def test_a_sequence_number_at_its_maximum_is_neither_exceeded_nor_wrapped() -> None:
    desk = spoken()
    desk.say(1, announcements=(Announcement(9, 1_000, SEQUENCE_MAX, 1, 1),))
    desk.wait(1.0, talking=(1, 2))
    desk.step(LinkDown(1))  # a number after the last one would be refused by every decoder
    frame = desk.last_to(2)
    assert frame.solicits == (Solicit(9, 1_000, SEQUENCE_MAX),)
    assert frame.announcements == (Announcement(9, 1_000, SEQUENCE_MAX, UNREACHABLE, 0),)


def test_the_last_epoch_is_used_once_and_ids_do_not_repeat_in_it() -> None:
    desk = spoken()
    desk.say(1, announcements=(Announcement(5, EPOCH_MAX, 1, 3, 0),))
    assert desk.machine.epoch == EPOCH_MAX
    (first,) = desk.machine.publish(0.0, [publication("g")]).frames[1]
    desk.say(1, announcements=(Announcement(5, EPOCH_MAX, SEQUENCE_MAX, 3, 0),))
    desk.say(1, echo_epoch=EPOCH_MAX, echo_number=SEQUENCE_MAX)
    (second,) = desk.machine.publish(0.0, [publication("g")]).frames[1]
    assert (first.epoch, first.first, second.epoch, second.first) == (EPOCH_MAX, 0, EPOCH_MAX, 1)


def test_hops_never_exceed_what_a_frame_can_say() -> None:
    desk = spoken()
    desk.say(1, announcements=(Announcement(8, 1_000, 1, 60_000, 0),))
    run = Run(7, 1, 0, 1, 0, 255, ("g",), packet("g"))
    routed = desk.machine.forward(0.0, 2, [run, run._replace(first=1, hops=254)])
    assert desk.machine.counters["dropped_hops"] == 1
    assert codec.decode_data(codec.encode_data(routed.frames[1]))[0].hops == 255


@pytest.mark.parametrize("filter_", ["", "a/#/b", "a+", "\0", "x" * 65_536, "/" * 200, "$share/", "$share/g"])
def test_interest_in_an_invalid_filter_is_refused_and_counted(filter_: str) -> None:
    desk = spoken()
    before = picture(desk)
    desk.step(Subscribed(filter_))
    desk.step(Unsubscribed(filter_))
    assert picture(desk) == before
    assert desk.machine.counters["rejected_filter"] == 1


@pytest.mark.parametrize(
    "filter_", ["$SYS/#", "federator/#", "$share/g/$SYS/x", "federated_topology_ann", "$CONTROL/x"]
)
def test_interest_in_a_filter_that_never_crosses_makes_no_group(filter_: str) -> None:
    desk = spoken()
    before = picture(desk)
    desk.step(Subscribed(filter_))
    assert picture(desk) == before
    desk.step(Unsubscribed(filter_))
    assert picture(desk) == before


def test_a_shared_subscription_is_interest_in_the_filter_behind_it() -> None:
    desk = spoken()
    desk.step(Subscribed("$share/workers/jobs/+"))
    assert desk.machine.core_of("jobs/+") == 5


@pytest.mark.parametrize("rank", [-1, 1_001, 2**40])
def test_a_rank_out_of_range_is_refused(rank: int) -> None:
    with pytest.raises(LocalError, match=f"^The rank is {rank}; it must be between 0 and 1000.$"):
        Ranked("g", rank)


def test_removing_unknown_interest_or_links_changes_nothing() -> None:
    desk = spoken()
    before = picture(desk)
    desk.step(Unsubscribed("never"))
    desk.step(LinkDown(77))
    desk.step(Appointed("never", is_appointed=False))
    assert picture(desk) == before


def test_a_packet_whose_topic_cannot_be_read_is_dropped_alone() -> None:
    desk = spoken()
    desk.step(Subscribed("g"))
    broken = b"\x30\x04\0\xff\xff\0"
    good = Run(7, 1, 0, 1, 0, 1, ("g",), packet("g"))
    bad = Run(7, 1, 1, 3, 0, 1, ("unknown",), packet("g") + broken + packet("g"))
    routed = desk.machine.forward(0.0, 2, [good, bad])
    assert [(run.first, run.length) for run in routed.deliveries] == [(0, 1), (1, 1), (3, 1)]
    assert desk.machine.counters["rejected_packet"] == 1


@pytest.mark.parametrize("topic", ["", "a/+", "#", "\0", "$SYS/x", "federator/x"])
def test_a_topic_that_is_invalid_or_never_crosses_is_not_matched(topic: str) -> None:
    desk = spoken()
    desk.say(1, claim_deltas=(ClaimDelta(9, 1_000, 1, (ClaimChange("#", 100),)),))
    routed = desk.machine.forward(0.0, 2, [Run(7, 1, 0, 1, 0, 1, ("unknown",), packet(topic))])
    assert routed[:2] == ({}, [])
    assert desk.machine.counters["dropped_unknown_group"] + desk.machine.counters["rejected_packet"] == 1


def test_groups_beyond_the_limit_are_refused_with_a_reason() -> None:
    desk = Desk(peers=(1,), groups_max=10)
    desk.say(1)
    for number in range(30):
        desk.step(Subscribed(f"mine/{number}"))
    assert len(desk.machine.groups()) <= 11
    refusals = desk.emitted("limit_reached")
    assert refusals
    assert {emit.detail for emit in refusals} == {"groups_max"}
    assert desk.machine.counters["rejected_groups_max"] >= 20


def test_cores_beyond_the_limit_are_refused() -> None:
    desk = Desk(peers=(1,), cores_max=3)
    for core in range(10, 30):
        desk.say(
            1,
            announcements=(Announcement(core, 1_000, 1, 1, 1),),
            claim_deltas=(ClaimDelta(core, 1_000, 0, (ClaimChange(f"g{core}", 1),)),),
        )
    assert sum(desk.machine.distance_to(core) is not None for core in range(10, 30)) == 3
    assert desk.machine.counters["rejected_cores_max"] == 17
    assert len(desk.machine._claims.sets) <= 4


def test_neighbours_beyond_the_limit_are_refused() -> None:
    desk = Desk(peers=(1, 2), neighbours_max=2)
    effects = desk.up(3)
    assert any(isinstance(effect, Emit) and effect.detail == "neighbours_max" for effect in effects)
    assert desk.machine.neighbours() == (1, 2)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2]), CONTROL_FRAMES), max_size=8), st.integers(0, 3))
def test_the_machine_survives_whatever_a_neighbour_sends(frames: list[tuple[int, ControlFrame]], rounds: int) -> None:
    """Any frames that the codec accepts, however senseless, raise no exception, and what is sent can be decoded."""
    desk = Desk(peers=(1, 2))
    desk.step(Subscribed("a/#"))
    for peer, frame in frames:
        said = {name: getattr(frame, name) for name in ControlFrame.__slots__ if name not in ("sender", "number")}
        desk.step(Received(peer, desk.frame(peer, **said)))
        desk.wait(float(rounds))
        desk.machine.publish(desk.now, [publication("a/b")])
    desk.wait(5.0)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(batches(), max_size=4))
def test_frames_that_result_from_any_runs_of_a_neighbour_can_be_decoded(many: list[list[Run]]) -> None:
    desk = spoken()
    desk.step(Subscribed("a/#"))
    desk.step(Subscribed("+"))
    for batch in many:
        routed = desk.machine.forward(desk.now, 2, batch)
        for neighbour, runs in routed.frames.items():
            assert neighbour != 2
            assert codec.decode_data(codec.encode_data(runs)) == runs


def test_ten_thousand_bad_frames_do_not_make_memory_grow() -> None:
    desk = spoken()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(10_000):
            desk.machine.step(
                0.0,
                Received(
                    1,
                    ControlFrame(
                        1,
                        1_000,
                        number + 10,
                        0,
                        0,
                        announcements=(Announcement(number + 100, 1_000, 1, 0, 0),),
                        claim_deltas=(ClaimDelta(number + 100, 1_000, 5, (ClaimChange(f"g/{number}", 1),)),),
                        claim_parts=(ClaimPart(number + 100, 1_000, 1, 0, 2, (ClaimChange(f"g/{number}", 1),)),),
                        hand_overs=(HandOver(number + 100, "h"),),
                        solicits=(Solicit(number + 100, 1_000, 1),),
                    ),
                ),
            )
        assert tracemalloc.get_traced_memory()[0] - before < 5_000_000
    finally:
        tracemalloc.stop()
