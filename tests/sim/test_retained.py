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


# --- each rule is needed: without it a world fails --------------------------------------------------------------------


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


class ForgetsDeletions(Keeper):
    def _sweep(self) -> None:
        super()._sweep()
        for topic in [topic for topic, entry in self.book.entries.items() if entry.is_tombstone]:
            self.book.drop(topic)


class KeepsCopies(Keeper):
    def _is_leftover(self, topic: str, entry: Entry) -> bool:  # noqa: ARG002
        return False


# How many seeds are tried until one fails without the rule. In three seconds some 80 are.
WITHOUT: dict[str, tuple[type[Keeper], dict[str, Any], int, str]] = {
    "R83 older versions": (AlwaysRetain, {}, 80, "last heard"),
    "R85 one look at a time": (WithoutOneLookAtATime, {}, 80, "last heard"),
    "R89 restarts": (WithoutSuspicion, {}, 200, "last heard"),
    "R94 tombstones": (ForgetsDeletions, {}, 80, "last heard deletion undone"),
    "R95 removing copies": (KeepsCopies, {"all_subscribe": False}, 80, "copy left"),
}
RARELY: dict[str, tuple[type[Keeper], dict[str, Any], int, str]] = {
    "R81 ticks": (WithoutTicks, {}, 3_000, "last heard"),
    "R86 recent injections": (WithoutRecentInjections, {}, 3_000, "last heard"),
    "R86 repairs": (WithoutRepairs, {}, 3_000, ""),
    "R90 fetching again": (WithoutRefetch, {"settings": replace(FIELD, fetch_interval_s=1e6)}, 3_000, ""),
}


def assert_a_world_fails(keeper: type[Keeper], profile: dict[str, Any], seeds: int, failure: str) -> None:
    for seed in range(seeds):
        found = run_world(seed, RetainedProfile(**profile), keeper=keeper).failure
        if found and found.startswith(failure):
            return
    raise AssertionError(f"no world of {seeds} fails: {failure}")


@pytest.mark.parametrize("rule", WITHOUT)
def test_a_world_fails_without_the_rule(rule: str) -> None:
    assert_a_world_fails(*WITHOUT[rule])


@pytest.mark.slow
@pytest.mark.parametrize("rule", RARELY)
def test_one_world_of_many_fails_without_the_rule(rule: str) -> None:
    assert_a_world_fails(*RARELY[rule])
