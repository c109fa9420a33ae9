"""Bugs of earlier federators: the simulator catches each of them when a patch puts it back.

Before each patch, the honest machine passes the same scenario, so a failure is due to the patch alone.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from hanse.protocol import machine as machine_module
from hanse.protocol.election import Election
from hanse.protocol.machine import Machine
from hanse.protocol.messages import UNREACHABLE
from hanse.protocol.routes import Route
from hanse.sim.conversation import ConversationError, play
from hanse.sim.seeds import SeedProfile, run_seed

CONVERSATIONS = Path(__file__).parent.parent / "conversations"
CALM = SeedProfile(brokers=10, has_faults=False, is_wire=False)
STORMY = SeedProfile(brokers=10, is_wire=False)


def conversation(name: str) -> Callable[[], None]:
    return lambda: play((CONVERSATIONS / name).read_text(), name)


@pytest.fixture(scope="module", autouse=True)
def _honest_machine_passes() -> None:
    assert not run_seed(1, CALM).failure


@pytest.mark.slow
def test_ids_that_restart_at_zero_after_a_crash_make_a_seed_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run_seed(1, STORMY).failure
    monkeypatch.setattr(machine_module, "boot_epoch", lambda *_heard: 1)
    assert run_seed(1, STORMY).failure


def test_ids_that_restart_at_zero_after_a_crash_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "boot_epoch", lambda *_heard: 1)
    # Peers drop the first message after the restart, as peers of the buggy federator did.
    with pytest.raises(ConversationError, match=r"restart\.txt, line"):
        conversation("restart.txt")()


def test_publications_dropped_while_no_core_is_known_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Machine.hops
    monkeypatch.setattr(Machine, "hops", lambda self, group: (honest(self, group)[0], False))
    with pytest.raises(ConversationError, match="expected delivered 3,4, but it is -"):
        conversation("core-death.txt")()


def test_a_distance_counted_twice_per_hop_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Route.choose

    def choose(self: Route, is_usable: Callable[[int], bool], redundancy: int) -> bool:
        is_changed = honest(self, is_usable, redundancy)
        if self.distance != UNREACHABLE:
            self.distance += 1
        return is_changed

    monkeypatch.setattr(Route, "choose", choose)
    assert run_seed(1, CALM).failure.startswith("parent distance")


def test_a_parent_list_cleared_on_every_equal_announcement_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Route.choose
    # The last neighbour to announce is the only parent, so redundancy is never above one.
    monkeypatch.setattr(Route, "choose", lambda self, is_usable, _redundancy: honest(self, is_usable, 1))
    failure = run_seed(1, CALM).failure
    assert failure.startswith("not converged"), failure
    assert "has parents" in failure
    with pytest.raises(ConversationError, match=r"has parents \(1,\), expected 2 of \[1, 2\]"):
        conversation("paper-2020.txt")()


def test_a_core_that_resigns_while_members_remain_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Election._decide_as_claimant

    def decide(self: Election, group: str, core: int | None, others: list[int]) -> None:
        if not self._wants(group) and group not in self._appointments:
            self._withdraw(group)
        else:
            honest(self, group, core, others)

    monkeypatch.setattr(Election, "_decide_as_claimant", decide)
    with pytest.raises(ConversationError, match=r"hand-over\.txt, line"):
        conversation("hand-over.txt")()
    assert run_seed(1, CALM).failure.startswith("resigned")
