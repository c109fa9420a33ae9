"""Each point of custody, switched off by a patch, makes a seed fail: none of them is there for nothing.

First the honest machine passes the seeds that are played, so that a failure below is the patch's and nobody else's.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hanse.protocol import custody as custody_module
from hanse.protocol.custody import NOBODY, Custody, Entry
from hanse.protocol.effects import Acknowledge
from hanse.protocol.forwarding import Forwarding
from hanse.protocol.machine import Machine
from hanse.protocol.messages import Run
from hanse.protocol.neighbour import Neighbour
from hanse.protocol.retention import Retention
from hanse.protocol.settings import Settings
from hanse.sim.disk import Disk
from hanse.sim.seeds import SeedProfile, run_seed

Patch = Callable[[pytest.MonkeyPatch], None]


def acknowledge_before_the_ways_did(patch: pytest.MonkeyPatch) -> None:
    def open_(self: Custody, giver: int, receipt: int) -> Entry:
        if receipt:
            self.effects.append(Acknowledge(giver, (receipt,)))
        return Entry(NOBODY)

    patch.setattr(Custody, "open", open_)


def acknowledge_a_copy_from_the_same_sender_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Custody, "follow", lambda *_: None)


def wait_for_a_copy_from_another_sender(patch: pytest.MonkeyPatch) -> None:
    def note(self: Custody, entry: Entry, epoch: int, run: Run) -> None:
        del epoch
        key = (0, 0, run.origin, run.epoch, run.first)
        entry.keys.append(key)
        self._in_progress.setdefault(key, entry)

    def follow(self: Custody, entry: Entry, epoch: int, run: Run) -> None:
        del epoch
        first = self._in_progress.get((0, 0, run.origin, run.epoch, run.first))
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


def keep_what_a_lost_way_had(patch: pytest.MonkeyPatch) -> None:
    def lose_way(self: Forwarding, now: float, neighbour: int) -> None:
        del now
        for duty in self.custody.close_way(neighbour):
            self.custody.hold(neighbour, duty, duty.runs)
            self.custody.release(neighbour, duty)

    patch.setattr(Forwarding, "lose_way", lose_way)


def give_up_what_a_lost_way_had(patch: pytest.MonkeyPatch) -> None:
    def lose_way(self: Forwarding, now: float, neighbour: int) -> None:
        del now
        for duty in self.custody.close_way(neighbour):
            self.custody.release(neighbour, duty)

    patch.setattr(Forwarding, "lose_way", lose_way)


def send_nothing_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Custody, "_send_again", lambda *_: None)


def lose_the_outbox_with_the_process(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Disk, "outbox_ranges", lambda self: {way: (end, end) for way, end in self.ends.items()})
