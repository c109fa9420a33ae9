"""Whole lives of a federation on all processors, in processes where the extensions run (`hanse.compiled`)."""

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from hanse.sim.seeds import SeedProfile, SeedResult, run_seed

# So many lives take what the other tests leave of the processors: they are the longest of all, all processors can work
# on them, and who waits for them at the end waits on a machine that does nothing else.
MANY = 20


# By niceness, for all tests of a file: to start one takes as long as half a life.
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
    """One for each seed, in their order; with several profiles all seeds by each."""
    pairs = [(seed, profile) for profile in profiles or (SeedProfile(),) for seed in seeds]
    return list(_pool(10 if len(pairs) >= MANY else 0).map(run_seed, *zip(*pairs, strict=True)))
