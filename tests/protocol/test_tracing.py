"""Probes take the decisions that publications take, and say why they end."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.protocol import graphs
from tests.protocol.net import Desk, Network

from hanse.errors import RemoteError
from hanse.protocol import codec, tracing
from hanse.protocol.events import Appointed, LinkDown, Ranked, Subscribed
from hanse.protocol.messages import Announcement, ClaimChange, ClaimDelta, PathHop, Probe, SetDelta, SetStep
from hanse.protocol.tracing import WORDS, End, Reason, Tracer, Verdict, foremost

FILTERS = ("a/#", "a/+", "+/x", "b", "#", "a/x")
TOPICS = ("a/x", "a/y", "b", "c/x", "a/x/y")

Edge = tuple[int, int, tuple[str, ...]]


class Walk:
    """A probe through all federators of a network, with no time between its hops, so that the meshes stand still."""

    def __init__(self, net: Network, broker: int, topic: str) -> None:
        self.edges: Counter[Edge] = Counter()
        self.delivered: Counter[int] = Counter()
        self.ends: list[tuple[int, End]] = []
        tracers = {identity: Tracer(machine) for identity, machine in net.machines.items()}
        verdict = tracers[broker].look(topic)
        queue = self._note(broker, verdict)
        while queue:
            source, target, groups, hops = queue.pop(0)
            path = tuple(PathHop(broker if k == 0 else source, 1, 2) for k in range(hops))
            probe = Probe(broker, net.machines[broker].epoch, 7, topic, groups, path)
            assert codec.decode_probe(codec.encode_probe(probe)) == probe
            queue += self._note(target, tracers[target].take(source, probe), hops)

    def _note(self, here: int, verdict: Verdict, hops: int = 0) -> list[tuple[int, int, tuple[str, ...], int]]:
        self.ends += [(here, end) for end in verdict.ends]
        self.delivered[here] += bool(verdict.delivered)
        self.edges.update((here, neighbour, groups) for neighbour, groups in verdict.forwarded)
        return [(here, neighbour, groups, hops + 1) for neighbour, groups in verdict.forwarded]


@settings(max_examples=examples(40), deadline=None)
@given(graphs.connected(), st.integers(0, 2**16), st.booleans())
def test_a_probe_takes_the_routes_of_a_publication_and_ends_where_it_would_be_delivered(
    overlay: tuple[int, list[graphs.Link]], seed: int, is_disturbed: bool
) -> None:
    size, links = overlay
    random = Random(seed)
    outsider = random.choice(["all_parents", "one_parent"])
    grouping: dict[str, Any] = {"outsider": outsider, "redundancy": random.randint(1, 3)}
    net = Network(size, links, **grouping)
    for _ in range(6):
        net.subscribe(random.randrange(size), random.choice(FILTERS))
    net.run(6.0)
    if is_disturbed:  # absent members, lost routes, groups that some federators have not heard of yet
        net.cut(*random.choice(links))
        net.subscribe(random.randrange(size), "c/#")
        net.run(random.choice([0.0, 0.015, 3.0]))
    for topic in TOPICS:
        broker = random.randrange(size)
        # Latency 0, so that the publication also meets federators that do not change meanwhile.
        net.latency_s = 0.0
        walk = Walk(net, broker, topic)
        sent, delivered = len(net.sent), len(net.deliveries)
        parked = {identity: machine.counters["parked"] for identity, machine in net.machines.items()}
        is_heard = net.publish(broker, topic)
        net.run(0.0)
        runs = [(s.source, s.target, run) for s in net.sent[sent:] for run in s.runs]
        assert Counter((source, target, run.groups) for source, target, run in runs) == (walk.edges if is_heard else {})
        if is_heard:
            assert Counter(one.broker for one in net.deliveries[delivered:]) == +walk.delivered
            waits = {identity for identity, end in walk.ends if "wait" in WORDS[end.reason] + end.detail}
            assert waits == {i for i, machine in net.machines.items() if machine.counters["parked"] > parked[i]}
        net.latency_s = 0.01


def desk_with_core(**settings_: Any) -> Desk:
    """Return federator 5 between 1, through which core 8 of `g` is reached, and 2."""
    desk = Desk(**settings_)
    desk.say(
        1,
        announcements=(Announcement(8, 1_000, 1, 1, 1),),
        claim_deltas=(ClaimDelta(8, 1_000, 0, (ClaimChange("g/#", 100),)),),
    )
    return desk


def probe(groups: tuple[str, ...] = ("g/#",), *, topic: str = "g/x", origin: int = 9, hops: int = 1) -> Probe:
    path = (PathHop(origin, 1, 2), *(PathHop(2, 3, 4) for _ in range(hops - 1)))
    return Probe(origin, 1_000, 1, topic, groups, path)


def test_a_topic_that_nobody_claims_ends_at_once() -> None:
    assert Tracer(Desk().machine).look("g/x") == Verdict(ends=(End(Reason.NO_INTEREST),))


def test_a_topic_that_only_clients_of_this_broker_want_ends_here() -> None:
    desk = Desk()
    desk.say(1)
    desk.say(2)
    desk.step(Subscribed("g/#"))
    desk.wait(3.0, talking=(1, 2))
    (end,) = Tracer(desk.machine).look("g/x").ends
    assert (end.reason, end.groups) == (Reason.NO_INTEREST, ("g/#",))
    assert "only clients of this broker" in end.detail


@pytest.mark.parametrize("topic", ["$SYS/x", "federator/routing/1/2", "hanse/probe/1"])
def test_a_topic_that_never_crosses_ends_with_that_reason(topic: str) -> None:
    assert Tracer(Desk().machine).look(topic).ends[0].reason is Reason.NEVER_CROSSES


def test_an_outsider_sends_to_its_parents() -> None:
    tracer = Tracer(desk_with_core().machine)
    assert tracer.look("g/x") == Verdict(forwarded=((1, ("g/#",)),))
    assert tracer.take(2, probe()) == Verdict(forwarded=((1, ("g/#",)),))


def test_a_second_probe_and_one_back_at_its_origin_are_duplicates() -> None:
    tracer = Tracer(desk_with_core().machine)
    tracer.take(2, probe())
    assert tracer.take(2, probe()).ends == (End(Reason.DUPLICATE, ("g/#",)),)
    assert tracer.take(2, probe(origin=5)).ends[0].reason is Reason.DUPLICATE


def test_a_probe_ends_beyond_the_limit_of_hops() -> None:
    desk = desk_with_core()
    limit = desk.machine.hop_limit()
    assert Tracer(desk.machine).take(2, probe(hops=limit)).forwarded
    assert Tracer(desk.machine).take(2, probe(hops=limit + 1)).ends == (End(Reason.HOPS, ("g/#",)),)


def test_an_unknown_group_is_matched_anew_and_ends_where_nothing_matches() -> None:
    tracer = Tracer(desk_with_core().machine)
    assert tracer.take(2, probe(("h",), topic="g/y")).forwarded == ((1, ("g/#",)),)
    assert tracer.take(2, probe(("h",), topic="h")).ends == (End(Reason.UNKNOWN_GROUP, ("h",)),)


def test_a_known_group_beside_an_unknown_one_is_served_once() -> None:
    """The topic is matched anew, and the match is the group that the neighbour named."""
    tracer = Tracer(desk_with_core().machine)
    assert tracer.take(2, probe(("g/#", "h"))) == Verdict(forwarded=((1, ("g/#",)),))


def test_a_duplicate_for_another_group_goes_on_and_is_not_delivered_again() -> None:
    desk = desk_with_core()
    desk.say(1, claim_deltas=(ClaimDelta(8, 1_000, 1, (ClaimChange("+/x", 100),)),))
    for filter_ in ("g/#", "+/x"):
        desk.step(Subscribed(filter_))
    tracer = Tracer(desk.machine)
    assert tracer.take(2, probe()) == Verdict(("g/#",), ((1, ("g/#",)),))
    later = tracer.take(2, probe(("g/#", "+/x")))
    assert (later.delivered, later.forwarded) == ((), ((1, ("+/x",)),))
    (end,) = later.ends
    assert (end.reason, end.groups) == (Reason.DUPLICATE, ("+/x",))
    assert "delivered here for another group" in end.detail


def test_a_probe_at_a_core_without_members_or_interest_is_unwanted() -> None:
    desk = desk_with_core()
    desk.step(Ranked("g/#", 1))
    desk.step(Appointed("g/#", True))
    assert desk.machine.core_of("g/#") == 5
    (end,) = Tracer(desk.machine).take(2, probe()).ends
    assert (end.reason, end.groups) == (Reason.NO_INTEREST, ("g/#",))
    assert "neither here nor beyond" in end.detail


def test_an_outsider_whose_route_leads_back_to_the_sender_waits() -> None:
    desk = desk_with_core()
    assert Tracer(desk.machine).take(1, probe()).ends == (End(Reason.NO_WAY, ("g/#",)),)


def test_a_lost_route_names_the_link() -> None:
    desk = desk_with_core()
    desk.machine.step(desk.now, LinkDown(1))
    (end,) = Tracer(desk.machine).look("g/x").ends
    assert (end.reason, end.neighbour, end.groups) == (Reason.LINK_DOWN, 1, ("g/#",))
    desk.machine.step(desk.now, LinkDown(2))
    (end,) = Tracer(desk.machine).look("other").ends
    assert end.reason is Reason.LINK_DOWN
    assert "no link of this federator is up" in end.detail


def test_an_absent_member_is_named_beside_those_that_get_the_probe() -> None:
    desk = desk_with_core()
    desk.say(2, memberships=SetDelta(1, 0, 1, (SetStep(True, 8, "g/#"),)))
    desk.wait(1.5, talking=(1, 2))
    desk.machine.step(desk.now, LinkDown(2))
    verdict = Tracer(desk.machine).look("g/x")
    assert [neighbour for neighbour, _ in verdict.forwarded] == [1]
    assert [(end.reason, end.neighbour) for end in verdict.ends] == [(Reason.LINK_DOWN, 2)]


def test_the_memory_of_probes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "PROBES_MAX", 2)
    tracer = Tracer(desk_with_core().machine)
    for number in range(3):
        tracer.take(2, probe()._replace(number=number))
    assert tracer.take(2, probe()._replace(number=2)).ends[0].reason is Reason.DUPLICATE
    assert tracer.take(2, probe()._replace(number=0)).forwarded


def test_of_several_reasons_operator_settings_say_more_than_missing_things() -> None:
    assert foremost({Reason.NO_INTEREST, Reason.IMPORT, Reason.LINK_DOWN}) is Reason.IMPORT
    assert foremost({Reason.NO_WAY, Reason.LINK_DOWN}) is Reason.LINK_DOWN
    assert foremost(set()) is None
    assert set(WORDS) == set(Reason)


# --- its bytes --------------------------------------------------------------------------------------------------------

PROBE = Probe(300, 1_000, 5, "a/b", ("a/#", "+/b"), (PathHop(300, 1 << 50, (1 << 50) + 9), PathHop(2, 7, 8)))


def test_every_strict_prefix_and_every_trailing_byte_of_a_probe_is_refused() -> None:
    data = codec.encode_probe(PROBE)
    assert codec.kind_of(data) == codec.PROBE
    assert codec.decode_probe(data) == PROBE
    for end in range(len(data)):
        with pytest.raises(RemoteError):
            codec.decode_probe(data[:end])
    with pytest.raises(RemoteError, match="1 bytes after its end"):
        codec.decode_probe(data + b"\0")


def test_a_probe_is_laid_out_as_the_document_says() -> None:
    small = Probe(5, 6, 7, "t", ("g",), (PathHop(5, 1, 2),))
    assert codec.encode_probe(small) == bytes((1, 5, 5, 6, 7, 1)) + b"t" + bytes((1, 1)) + b"g" + bytes((1, 5, 1, 2))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (PROBE._replace(groups=()), "names 0 groups"),
        (PROBE._replace(path=()), "0 hops"),
        (PROBE._replace(path=(PathHop(2, 7, 8),)), "the origin as the first hop"),
        (PROBE._replace(topic="a/#"), "wildcard"),
        (PROBE._replace(topic=""), "empty"),
        (PROBE._replace(groups=("a/#/b",)), "#"),
        (PROBE._replace(path=(PathHop(300, 1, 2),) * 256), "hops"),
        (PROBE._replace(origin=1 << 32), "federator id"),
    ],
)
def test_an_impossible_probe_is_refused(wrong: Probe, says: str) -> None:
    with pytest.raises(RemoteError, match=says):
        codec.decode_probe(codec.encode_probe(wrong))
