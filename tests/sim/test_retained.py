"""Hosts that retain: convergence, "heard last write wins", rest and clean-up, in worlds drawn from seeds."""

from typing import Any

import pytest

from hanse.sim.retained import RetainedProfile, run_world

PROFILES: dict[str, dict[str, Any]] = {
    "all faults": {},
    "interest stays as it is": {"all_subscribe": False},
    "acknowledgements in order": {"has_overtaking": False},
}


def assert_promises_hold(seeds: range, **profile: Any) -> int:
    """Run worlds, and return how many last writes were judged."""
    results = [run_world(seed, RetainedProfile(**profile)) for seed in seeds]
    assert [f"seed {result.seed}: {result.failure}" for result in results if result.failure] == []
    return sum(result.judged for result in results)


@pytest.mark.parametrize("name", PROFILES)
def test_retained_state_converges_and_the_last_heard_write_wins(name: str) -> None:
    assert assert_promises_hold(range(15), **PROFILES[name]) > 10


def test_a_seed_gives_the_same_world_each_time() -> None:
    assert run_world(3) == run_world(3)
