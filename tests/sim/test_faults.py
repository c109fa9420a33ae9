"""Faults: a schedule is long enough to be meaningful, and the federation survives each kind of fault alone."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from hanse.protocol.messages import Run
from hanse.protocol.settings import Settings
from hanse.sim import faults, overlay
from hanse.sim.checkers import Checkers
from hanse.sim.convergence import why_not_converged
from hanse.sim.faults import FAULTS_MIN, KINDS, KINDS_MIN, Fault
from hanse.sim.federation import HOST_S, WALL_S, Federation, Node
from hanse.sim.host import Client
from hanse.sim.workload import Workload, WorkloadProfile

SHAPE = overlay.grid(3, 3)


def plan(seed: int) -> list[Fault]:
    return faults.schedule(SHAPE, Random(seed), start_s=10.0, end_s=230.0, interval_s=1.0, expiry_factor=3)


def test_a_schedule_has_at_least_five_faults_of_three_kinds_and_ends_in_time() -> None:
    for seed in range(50):
        found = plan(seed)
        assert len(found) >= FAULTS_MIN
        assert len({fault.kind for fault in found}) >= KINDS_MIN
        assert all(10.0 <= fault.at_s < fault.until_s <= 230.0 for fault in found)


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert plan(4) == plan(4) != plan(5)


def test_all_kinds_are_drawn() -> None:
    counts = Counter(fault.kind for seed in range(100) for fault in plan(seed))
    assert set(counts) == set(KINDS)


def test_partitions_are_halves_thirds_and_singletons() -> None:
    sizes = set()
    for seed in range(30):
        sides = faults._sides(SHAPE, Random(seed))
        assert sorted(k for side in sides for k in side) == list(range(9))
        sizes.add(len(sides))
    assert sizes == {2, 3, 9}


@pytest.mark.parametrize("kind", KINDS)
def test_the_federation_survives_each_kind_alone(kind: str) -> None:
    checkers = Checkers()
    federation = Federation(SHAPE, Settings(), seed=3, latency_s=(0.005, 0.1), is_wire=False, monitor=checkers)
    federation.start_all(within_s=1.0)
    workload = Workload(federation, WorkloadProfile(subscribers=8, turnover=0.0))
    workload.start()
    for _ in range(10):
        federation.run(1.0)
        checkers.sweep()
    fault = faults._draw(kind, SHAPE, Random(2), 10.0, 1.0, 3)
    faults.arm(federation, fault)
    while federation.engine.now < fault.until_s + 20.0:
        federation.run(1.0)
        checkers.sweep()
    assert checkers.faults == {kind: 1}
    assert why_not_converged(federation) is None
    assert checkers.is_calm
    assert checkers.ledger.eligible > 50


@pytest.mark.parametrize(("has_disk", "has_clock"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_epoch_grows_whatever_a_crash_leaves(has_disk: bool, has_clock: bool) -> None:
    federation = Federation(overlay.ring(4), Settings(), seed=1)
    for identity in federation.nodes:
        federation.start(identity)
    federation.subscribe(Client("anna", 2), "a")
    federation.run(5.0)
    before = federation.nodes[0].running.epoch
    fault = Fault("crash", 5.0, 8.0, (0,), has_disk=has_disk, has_clock=has_clock)
    faults.arm(federation, fault)
    federation.run(8.0)
    assert federation.nodes[0].running.epoch > before
    assert federation.nodes[0].disk.epoch == federation.nodes[0].running.epoch
    assert federation.nodes[0].clock_s == (WALL_S if has_clock else 0)
    assert why_not_converged(federation) is None


def test_another_core_takes_over_from_a_killed_core_until_it_is_back() -> None:
    federation = Federation(overlay.ring(5), Settings(), seed=1)
    for identity in federation.nodes:
        federation.start(identity)
    for broker in (1, 2, 3):
        federation.subscribe(Client(f"anna-{broker}", broker), "a")
    federation.run(5.0)
    # The management group has a core too, but no client. The fault means only the core of "a".
    core = federation.nodes[4].running.core_of("a")
    assert core is not None
    faults.arm(federation, Fault("core", 5.0, 20.0))
    federation.run(10.0)
    assert [identity for identity, node in federation.nodes.items() if not node.is_running] == [core]
    assert federation.nodes[4].running.core_of("a") not in {core, None}
    federation.run(10.0)
    assert federation.nodes[core].is_running
    assert why_not_converged(federation) is None


def test_a_core_fault_does_nothing_without_interest() -> None:
    federation = Federation(overlay.ring(3), Settings(), seed=1)
    faults.arm(federation, Fault("core", 1.0, 2.0))
    for identity in federation.nodes:
        federation.start(identity)
    federation.run(5.0)
    assert all(node.starts == 1 for node in federation.nodes.values())


class DeliveryTimes(Checkers):
    """Checkers that note the time of a delivery to a host broker."""

    def __init__(self) -> None:
        super().__init__()
        self.at_s: list[float] = []

    def delivered(self, node: Node, runs: Sequence[Run]) -> None:
        self.at_s.append(self._federation.engine.now)
        super().delivered(node, runs)


def run_with_a_crash_during_a_delivery(until_after_s: float) -> tuple[int, bool]:
    """Return how often federator 0 was started, and whether it runs, if the fault ends this long after the delivery."""
    times = DeliveryTimes()
    federation = Federation(overlay.ring(4), Settings(), seed=1, monitor=times)
    for identity in federation.nodes:
        federation.start(identity)
    federation.subscribe(Client("anna", 0), "a")
    federation.run(5.0)
    federation.publish(2, [(0, "a", 1)])
    federation.run(5.0)
    due_s = times.at_s[0] + 5.0
    federation.publish(2, [(1, "a", 1)])
    faults.arm(federation, Fault("crash", 10.0, due_s + until_after_s, (0,), is_amid=True))
    federation.run(10.0)
    assert times.at_s[1] == pytest.approx(due_s)
    return federation.nodes[0].starts, federation.nodes[0].is_running


def test_a_fault_that_ends_during_the_delivery_kills_no_federator() -> None:
    """Replay seed 232: a federator killed after its fault had ended stayed down, and so its backlog stayed as well."""
    assert run_with_a_crash_during_a_delivery(HOST_S / 4) == (1, True)
    assert run_with_a_crash_during_a_delivery(2.0) == (2, True)
