"""Whole lives of a federation on all processors, in new processes: there the extensions run (`hanse.compiled`)."""

import functools
import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from hanse.sim.seeds import SeedProfile, SeedResult, run_seed


def live_through(seeds: Iterable[int], profile: SeedProfile | None = None) -> list[SeedResult]:
    """One for each seed, in their order."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=fresh) as pool:
        return list(pool.map(functools.partial(run_seed, profile=profile), seeds))
