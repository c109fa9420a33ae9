"""Runs of seeds: the same for the same seed, never empty proofs, and failures that can be reproduced."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from tests.sim.lives import live_through

from hanse.protocol.forwarding import Routed
from hanse.protocol.machine import Machine
from hanse.protocol.messages import Run
from hanse.protocol.settings import Settings
from hanse.sim import overlay, seeds
from hanse.sim.checkers import Checkers, InvariantError
from hanse.sim.federation import Federation
from hanse.sim.host import Client
from hanse.sim.seeds import SeedProfile, run_seed, run_seeds
from hanse.sim.workload import WorkloadProfile


def test_nothing_is_lost_or_reordered_without_faults() -> None:
    (result,) = live_through([3], SeedProfile(brokers=12, has_faults=False))
    assert not result.failure, result.failure
    assert result.reordered == 0
    # Only publications from the start of the federation may be missing.
    assert sum(result.lost.values()) <= 20


def run_with_a_group_given_up() -> tuple[Federation, Checkers]:
    """Run a federation in which a publication waits on disk for a group that both interested federators left (R64)."""
    checkers = Checkers()
    federation = Federation(overlay.ring(4), Settings(), seed=1, monitor=checkers)
    for identity in federation.nodes:
        federation.start(identity)
    clients = Client("anna", 0), Client("ben", 1)
    for client in clients:
        federation.subscribe(client, "a")
        federation.run(5.0)
    for client in clients:
        federation.unsubscribe(client, "a")
    federation.run(5.0)
    federation.publish(3, [(0, "a", 1)])
    federation.run(10.0)
    return federation, checkers


def test_a_run_continues_while_a_publication_waits_for_a_group_that_was_given_up() -> None:
    """Replay seed 394: the last interest in a group ended 28 A before the end, and publications waited for the next."""
    federation, checkers = run_with_a_group_given_up()
    assert checkers.custody() == "3 still has 0 publications, 1 records and 0 that its host broker waits for"
    began_s = federation.engine.now
    seeds._outwait_custody(federation, checkers)
    assert began_s < federation.engine.now < began_s + 10 * federation.settings.expiry_s
    assert not checkers.custody()
    checkers.close()


def test_a_run_does_not_wait_for_a_publication_that_waits_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hanse.protocol.claimbook.ClaimBook.forget_remembered", lambda *_: None)
    federation, checkers = run_with_a_group_given_up()
    began_s = federation.engine.now
    seeds._outwait_custody(federation, checkers)
    assert federation.engine.now - began_s == pytest.approx(31.0, abs=1.0)
    with pytest.raises(InvariantError, match="custody for ever: 3 still has 0 publications, 1 records"):
        checkers.close()


def test_the_same_seed_gives_the_same_run_with_other_string_hashes() -> None:
    code = (
        "from hanse.sim.seeds import SeedProfile, run_seed\n"
        "import dataclasses\n"
        "r = run_seed(5, SeedProfile(brokers=8))\n"
        "r.seconds = 0.0\n"
        "print(dataclasses.asdict(r))\n"
    )
    lives = []
    for salt in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(sys.path)}
        words = [sys.executable, "-c", code]
        lives.append(subprocess.run(words, env=environment, capture_output=True, text=True, check=False))
    assert lives[0].returncode == 0, lives[0].stderr
    assert lives[0].stdout == lives[1].stdout
    assert "trace_hash" in lives[0].stdout


@pytest.mark.slow
def test_the_wire_changes_nothing_but_the_trace() -> None:
    lives = live_through([6], *(SeedProfile(brokers=8, is_wire=is_wire) for is_wire in (True, False)))
    for life in lives:
        life.seconds, life.trace_hash, life.control_bytes, life.reproduce = 0.0, "", 0, ""
    assert dataclasses.asdict(lives[0]) == dataclasses.asdict(lives[1])


def test_a_run_that_proves_nothing_fails() -> None:
    idle = SeedProfile(brokers=4, has_faults=False, workload=WorkloadProfile(subscribers=1, bursts=0.01))
    assert "The run proves nothing" in run_seed(1, idle).failure


def test_a_failure_names_the_one_command_that_reproduces_it() -> None:
    class Deaf(Machine):
        def forward(self, now: float, neighbour: int, runs: Sequence[Run], receipt: int = 0) -> Routed:
            return super().forward(now, neighbour, runs, receipt)._replace(deliveries=[])

    profile = SeedProfile(brokers=8, degree=4, overlay="ring", has_faults=False, is_wire=False)
    result = run_seed(11, profile, machine=Deaf)
    assert result.failure.startswith("lost: message")
    expected = "hanse sim seeds --first 11 --count 1 --brokers 8 --degree 4 --overlay ring --no-faults --no-wire"
    assert result.reproduce == expected


@pytest.mark.slow
def test_redundancy_is_drawn_from_the_seed_and_otherwise_named_in_the_command() -> None:
    calm = SeedProfile(brokers=4, has_faults=False, is_wire=False)
    lives = live_through([20, 21], calm)
    assert [life.redundancy for life in lives] == [1, 2]
    (given,) = live_through([21], dataclasses.replace(calm, redundancy=1))
    assert given.redundancy == 1
    assert given.reproduce.endswith("--no-wire --redundancy 1")


def test_a_machine_that_raises_is_a_failure_that_names_the_line() -> None:
    class Broken(Machine):
        def core_of(self, group: str) -> int | None:
            raise KeyError(group)

    result = run_seed(1, SeedProfile(brokers=4), machine=Broken)
    assert result.failure.startswith("KeyError: ")
    assert "test_seeds.py:" in result.failure


@pytest.mark.slow
def test_seeds_come_in_order_from_several_processes() -> None:
    seen: list[int] = []
    profile = SeedProfile(brokers=4, overlay="ring")
    results = list(run_seeds(20, 3, profile, processes=2, progress=lambda result: seen.append(result.seed)))
    assert [result.seed for result in results] == seen == [20, 21, 22]
    assert results[0].trace_hash == run_seed(20, profile).trace_hash
