"""Each point of custody is necessary: without it, a seed fails.

Before each sabotage, the honest machine passes the same scenario, so a failure is due to the patch alone. Two scenarios
are written by hand, because in them a federator must die in the short time in which nobody else has custody.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from tests.sim.lives import live_through

from hanse.protocol.custody import NOBODY, Custody, Entry
from hanse.protocol.effects import Acknowledge
from hanse.protocol.forwarding import Forwarding
from hanse.protocol.machine import Machine
from hanse.protocol.messages import Run
from hanse.protocol.neighbour import Neighbour
from hanse.protocol.retention import Retention
from hanse.protocol.settings import Settings
from hanse.sim import faults, overlay
from hanse.sim.checkers import Checkers
from hanse.sim.disk import Disk
from hanse.sim.faults import Fault
from hanse.sim.federation import Federation
from hanse.sim.host import Client
from hanse.sim.links import Noise
from hanse.sim.seeds import SeedProfile, run_seed
from hanse.sim.workload import WorkloadProfile

# Few brokers and many publications: more is under way when a fault strikes. Fewer brokers also make a seed faster.
BUSY = SeedProfile(brokers=5, is_wire=False, workload=WorkloadProfile(bursts=4.0))
LARGER = SeedProfile(brokers=7, is_wire=False, workload=WorkloadProfile(bursts=5.0))
LARGEST = SeedProfile(brokers=10, is_wire=False, workload=WorkloadProfile(bursts=5.0))

Patch = Callable[[pytest.MonkeyPatch], None]


@cache
def honest_failure(profile: SeedProfile, seed: int) -> str:
    return live_through((seed,), profile)[0].failure


def acknowledge_before_the_ways_did(patch: pytest.MonkeyPatch) -> None:
    def open_(self: Custody, giver: int, receipt: int) -> Entry:
        if receipt:
            self.effects.append(Acknowledge(giver, (receipt,)))
        return Entry(NOBODY)

    patch.setattr(Custody, "open", open_)


def acknowledge_a_copy_from_the_same_sender_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Custody, "follow", lambda *_: None)


def wait_for_a_copy_from_another_sender(patch: pytest.MonkeyPatch) -> None:
    def note(self: Custody, entry: Entry, run: Run) -> None:
        key = (0, run.origin, run.epoch, run.first, "")
        entry.keys.append(key)
        self._in_progress.setdefault(key, entry)

    def follow(self: Custody, entry: Entry, run: Run) -> None:
        first = self._in_progress.get((0, run.origin, run.epoch, run.first, ""))
        if first is not None and first is not entry and entry not in first.followers:
            first.followers.append(entry)
            entry.owed += 1

    patch.setattr(Custody, "note", note)
    patch.setattr(Custody, "follow", follow)


def answer_no_summaries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Retention, "missing", lambda *_: [])


def take_claims_for_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Machine, "is_synchronised", property(lambda _: True, lambda *_: None), raising=False)


def forget_what_others_wanted(patch: pytest.MonkeyPatch) -> None:
    take_claims_for_known(patch)
    honest = Machine.restore
    patch.setattr(Machine, "restore", lambda self, now, **left: honest(self, now, **{**left, "wanted": ()}))


def take_no_way_for_done(patch: pytest.MonkeyPatch) -> None:
    honest = Machine.hops
    patch.setattr(Machine, "hops", lambda self, group: (honest(self, group)[0], False))


def keep_nothing_for_the_absent(patch: pytest.MonkeyPatch) -> None:
    def lose_way(self: Machine, neighbour: Neighbour) -> None:
        self._lost_ways.add(neighbour.identity)
        self._changes.is_table_changed = True

    patch.setattr(Machine, "_lose_way", lose_way)


def forget_what_was_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Disk, "delivered_ranges", lambda _: [])


def give_new_ids_to_what_comes_again(patch: pytest.MonkeyPatch) -> None:
    honest = Machine.publish

    def publish(self: Machine, now: float, publications: Sequence[Any], receipt: int = 0, again: object = None) -> Any:
        del again
        return honest(self, now, publications, receipt)

    patch.setattr(Machine, "publish", publish)


def keep_no_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Disk, "assign", lambda _, run: [run])


def give_up_what_a_lost_way_had(patch: pytest.MonkeyPatch) -> None:
    def lose_way(self: Forwarding, now: float, neighbour: int, *, is_for_good: bool = False) -> None:
        del now, is_for_good
        for duty in self.custody.close_way(neighbour):
            self.custody.release(neighbour, duty)

    patch.setattr(Forwarding, "lose_way", lose_way)


def send_nothing_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Custody, "_send_again", lambda *_: None)


def lose_the_outbox_with_the_process(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Disk, "outbox_ranges", lambda self: {way: (end, end) for way, end in self.ends.items()})


@pytest.mark.parametrize(
    ("switch_off", "profile", "seed", "failure"),
    [
        pytest.param(acknowledge_before_the_ways_did, BUSY, 4, "lost: message", marks=pytest.mark.slow),
        pytest.param(answer_no_summaries, BUSY, 4, "lost: message", marks=pytest.mark.slow),
        pytest.param(forget_what_others_wanted, LARGER, 4, "lost: message", marks=pytest.mark.slow),
        (take_no_way_for_done, BUSY, 1, "lost: message"),
        (forget_what_was_delivered, BUSY, 1, "duplicate: message"),
        (give_new_ids_to_what_comes_again, BUSY, 1, "duplicate: message"),
        pytest.param(keep_no_journal, BUSY, 2, "duplicate: message", marks=pytest.mark.slow),
        pytest.param(give_up_what_a_lost_way_had, BUSY, 2, "lost: message", marks=pytest.mark.slow),
        pytest.param(send_nothing_again, BUSY, 2, "lost: message", marks=pytest.mark.slow),
    ],
)
def test_a_seed_fails_without_this_point_of_custody(
    switch_off: Patch, profile: SeedProfile, seed: int, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not honest_failure(profile, seed)
    switch_off(monkeypatch)
    result = run_seed(seed, profile)
    assert result.failure.startswith(failure), result.failure or f"seed {seed} keeps every promise"


def lost_with_a_federator_on_the_route(wait_s: float) -> list[int]:
    """Return which of twenty publications at 0 never reach 2.

    Federator 1 lies between them. The link from 0 repeats frames, the link to 2 is cut in silence, and 1 is killed
    `wait_s` after the last publication.
    """
    checkers = Checkers()
    federation = Federation(overlay.line(3), Settings(), seed=1, is_wire=False, monitor=checkers)
    for identity in federation.nodes:
        federation.start(identity)
    federation.subscribe(Client("anna", 2), "a")
    federation.run(12.0)
    federation.close_link((1, 2), is_silent=True)
    federation.links[0, 1].set_noise(Noise(replay=1.0, delay_s_max=0.1))
    for number in range(20):
        federation.publish(0, [(number, "a", 1)])
        federation.run(0.02)
    federation.run(wait_s)
    faults.arm(federation, Fault("crash", federation.engine.now, federation.engine.now + 2.0, (1,)))
    federation.run(3.0)
    federation.links[0, 1].set_noise(None)
    federation.open_link((1, 2), is_silent=True)
    federation.run(20.0)
    return [message.number for message in checkers.ledger.messages.values() if 2 not in message.delivered_at]


def test_acknowledging_a_duplicate_from_the_same_sender_at_once_loses_publications(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lost_with_a_federator_on_the_route(wait_s=0.3) == []
    acknowledge_a_copy_from_the_same_sender_at_once(monkeypatch)
    assert lost_with_a_federator_on_the_route(wait_s=0.3)


def test_publications_acknowledged_because_they_are_on_disk_are_lost_with_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lost_with_a_federator_on_the_route(wait_s=2.0) == []
    lose_the_outbox_with_the_process(monkeypatch)
    assert len(lost_with_a_federator_on_the_route(wait_s=2.0)) == 20


def lost_by_a_member_that_was_away() -> list[int]:
    """Return which of twenty publications never reach 2, whose link is down for longer than anything is retained."""
    checkers = Checkers()
    federation = Federation(overlay.line(3), Settings(), seed=1, is_wire=False, monitor=checkers)
    for identity in federation.nodes:
        federation.start(identity)
    federation.subscribe(Client("anna", 0), "a")
    federation.subscribe(Client("otto", 2), "a")
    federation.run(12.0)
    federation.close_link((1, 2), is_silent=False)
    federation.run(1.0)
    for number in range(20):
        federation.publish(0, [(number, "a", 1)])
        federation.run(0.02)
    federation.run(60.0)
    federation.open_link((1, 2), is_silent=False)
    federation.run(20.0)
    return [message.number for message in checkers.ledger.messages.values() if 2 not in message.delivered_at]


def test_publications_not_kept_for_an_absent_member_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lost_by_a_member_that_was_away() == []
    keep_nothing_for_the_absent(monkeypatch)
    assert len(lost_by_a_member_that_was_away()) == 20


@pytest.mark.slow
def test_waiting_for_a_duplicate_from_another_sender_is_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    def patient(identity: int, settings: Settings, **rest: Any) -> Machine:
        # Otherwise stuck publications would go to disk. That resolves the deadlock at the price of all going to disk.
        return Machine(identity, dataclasses.replace(settings, stuck_after_s=1e9), **rest)

    assert not run_seed(1, LARGEST, machine=patient).failure
    wait_for_a_copy_from_another_sender(monkeypatch)
    assert run_seed(1, LARGEST, machine=patient).failure.startswith("custody for ever")
