"""Runs of many seeds on all processors, in processes that load the compiled extensions (`hanse.compiled`)."""

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from hanse.sim.seeds import SeedProfile, SeedResult, run_seed

# From this many runs on, the processes yield the processors to the other tests. These runs take the longest. At the
# end, when only they are left, they have all processors to themselves.
MANY = 20


# One pool per niceness, for all tests of a file. Starting a pool takes as long as half a run.
_pools: dict[int, ProcessPoolExecutor] = {}


def _pool(niceness: int) -> ProcessPoolExecutor:
    if niceness not in _pools:
        spawn = multiprocessing.get_context("spawn")
        _pools[niceness] = ProcessPoolExecutor(
            os.cpu_count(), mp_context=spawn, initializer=os.nice, initargs=(niceness,)
        )
    return _pools[niceness]


def close() -> None:
    """End the processes."""
    while _pools:
        _pools.popitem()[1].shutdown()


def live_through(seeds: Iterable[int], *profiles: SeedProfile) -> list[SeedResult]:
    """Return the result of each seed, in order. With several profiles, run all seeds with each."""
    pairs = [(seed, profile) for profile in profiles or (SeedProfile(),) for seed in seeds]
    return list(_pool(10 if len(pairs) >= MANY else 0).map(run_seed, *zip(*pairs, strict=True)))
