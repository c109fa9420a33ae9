"""Hosts that retain: convergence, "heard last write wins", rest and clean-up, in worlds drawn from seeds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hanse.protocol.retained.book import Entry, Injection
from hanse.protocol.retained.keeper import Keeper
from hanse.protocol.retained.versions import Version
from hanse.sim.retained import RetainedProfile, run_world

FIELD = RetainedProfile().settings
PROFILES: dict[str, dict[str, Any]] = {
    "all faults": {},
    "interest stays as it is": {"all_subscribe": False},
    "acknowledgements in order": {"has_overtaking": False},
    "every write is heard": {"has_watch": True},
    "deletions are forgotten early": {"settings": replace(FIELD, tombstone_s=20.0)},
    "values are not in memory": {"settings": replace(FIELD, value_bytes_max=1)},
}


def assert_promises_hold(seeds: range, **profile: Any) -> int:
    """Run worlds, and return how many last writes were judged."""
    results = [run_world(seed, RetainedProfile(**profile)) for seed in seeds]
    assert [f"seed {result.seed}: {result.failure}" for result in results if result.failure] == []
    return sum(result.judged for result in results)


@pytest.mark.parametrize("name", PROFILES)
def test_retained_state_converges_and_the_last_heard_write_wins(name: str) -> None:
    assert assert_promises_hold(range(15), **PROFILES[name]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_a_thousand_worlds_converge(name: str) -> None:
    assert assert_promises_hold(range(1000), **PROFILES[name]) > 1000


def test_a_seed_gives_the_same_world_each_time() -> None:
    assert run_world(3) == run_world(3)


# --- each rule is needed: without it a world fails that holds with it -------------------------------------------------


class WithoutRefetch(Keeper):
    def _refetch(self) -> None:
        """Ask nobody when a link is back."""


class WithoutSuspicion(Keeper):
    def _on_restart(self) -> None:
        super()._on_restart()
        self._suspects.clear()


class WithoutTicks(Keeper):
    def _stamp(self, writes: Sequence[tuple[int, str, bytes]], count: int, waited_since_ms: int | None) -> int:  # noqa: ARG002
        return super()._stamp(writes, count, None)


class WithoutRecentInjections(Keeper):
    def _own_injection(self, entry: Entry, digest: int) -> Injection | None:  # noqa: ARG002
        return None


class WithoutOneLookAtATime(Keeper):
    def _touch(self, topic: str) -> None:
        """Let a look count although something happened to the topic meanwhile."""


class WithoutRepairs(Keeper):
    def _repair(self, topic: str, entry: Entry) -> None:
        """Leave at the host broker what it holds."""


class AlwaysRetain(Keeper):
    def arrive(self, now: float, wall_ms: int, topic: str, version: Version, packet: bytes) -> int | None:
        number = super().arrive(now, wall_ms, topic, version, packet)
        return self._number(topic) if number is None and self.wants(topic) else number


class KeepsCopies(Keeper):
    def _is_leftover(self, topic: str, entry: Entry) -> bool:  # noqa: ARG002
        return False


# A seed that fails without the rule. After a change of the keeper's rules another one may be needed.
WITHOUT: dict[str, tuple[type[Keeper], dict[str, Any], int, str]] = {
    "R83 older versions": (AlwaysRetain, {}, 2, "last heard write lost"),
    "R85 one look at a time": (WithoutOneLookAtATime, {}, 6, "last heard write lost"),
    "R86 recent injections": (WithoutRecentInjections, {}, 297, "last heard write lost"),
    "R86 repairs": (WithoutRepairs, {}, 262, "not converged"),
    "R81 ticks": (WithoutTicks, {}, 216, "last heard write lost"),
    "R89 restarts": (WithoutSuspicion, {}, 41, "last heard write lost"),
    "R90 fetching again": (WithoutRefetch, {"settings": replace(FIELD, fetch_interval_s=1e6)}, 169, "not converged"),
    "R94 tombstones": (Keeper, {"settings": replace(FIELD, tombstones_max=1)}, 133, "last heard deletion undone"),
    "R95 removing copies": (KeepsCopies, {"all_subscribe": False}, 7, "copy left"),
}


@pytest.mark.parametrize("rule", WITHOUT)
def test_a_world_fails_without_the_rule_and_holds_with_it(rule: str) -> None:
    keeper, profile, seed, failure = WITHOUT[rule]
    assert run_world(seed, RetainedProfile(**profile), keeper=keeper).failure.startswith(failure)
    assert run_world(seed).failure == ""
    assert run_world(seed, RetainedProfile(all_subscribe=profile.get("all_subscribe", True))).failure == ""
