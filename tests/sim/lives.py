"""Whole lives of a federation on all processors, in processes where the extensions run (`hanse.compiled`)."""

import functools
import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from hanse.sim.seeds import SeedProfile, SeedResult, run_seed


@functools.cache
def _pool() -> ProcessPoolExecutor:
    """One for all tests of this process: to start one takes as long as half a life.

    Its processes take what the other tests leave of the processors. Fifty lives are the longest of all, and who waits
    for them waits on a machine that does nothing else.
    """
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(os.cpu_count(), mp_context=spawn, initializer=os.nice, initargs=(10,))


def live_through(seeds: Iterable[int], *profiles: SeedProfile) -> list[SeedResult]:
    """One for each seed, in their order; with several profiles all seeds by each."""
    pairs = [(seed, profile) for profile in profiles or (SeedProfile(),) for seed in seeds]
    return list(_pool().map(run_seed, *zip(*pairs, strict=True)))
