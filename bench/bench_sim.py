"""Measure how the simulator scales with brokers, and the cost of announcements per group and per core.

    python bench/bench_sim.py            # 1,000, 3,000 and 10,000 brokers; 10 to 1,000 groups; JSON on stdout
    python bench/bench_sim.py --quick    # a tenth of that

Each run begins in a process of its own, so `rss_bytes` is that of the run. From 500 brokers on, a second process has
half of it. `seconds_per_n_log_n` should not grow.
"""

import argparse
import dataclasses
import json
import math
import sys
from concurrent.futures import ProcessPoolExecutor

from hanse.sim.run import RunProfile, run


def measure(profile: RunProfile) -> dict[str, object]:
    """Return the result of one run in a fresh process."""
    with ProcessPoolExecutor(max_workers=1) as pool:
        return dataclasses.asdict(pool.submit(run, profile).result())


def scaling(sizes: list[int]) -> list[dict[str, object]]:
    rows = []
    for brokers in sizes:
        row = measure(RunProfile(brokers=brokers, degree=5, groups=1))
        row["seconds_per_n_log_n"] = float(str(row["seconds"])) / (brokers * math.log2(brokers))
        rows.append(row)
        print(f"{brokers} brokers: {row['seconds']} s, {row['rss_bytes']} bytes", file=sys.stderr)
    return rows


def forms(counts: list[int]) -> list[dict[str, object]]:
    """Compare the papers' announcement per group with ours per core: 12 brokers, 10 cores."""
    rows = []
    for groups in counts:
        for announcements in ("per_core", "per_group"):
            row = measure(RunProfile(brokers=12, degree=4, groups=groups, cores=10, announcements=announcements))
            row["announcements"] = announcements
            rows.append(row)
            text = f"{row['frames_per_round']:.0f} frames, {row['control_bytes_per_round']} bytes a round"
            print(f"{groups} groups {announcements}: {text}", file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    quick = parser.parse_args().quick
    sizes = [100, 300, 1_000] if quick else [1_000, 3_000, 10_000]
    counts = [10, 100] if quick else [10, 30, 100, 300, 1_000]
    result = {
        "scaling": scaling(sizes),
        "thousand_groups": measure(
            RunProfile(
                brokers=100 if quick else 1_000, degree=5, groups=100 if quick else 1_000, cores=10 if quick else 100
            )
        ),
        "forms": forms(counts),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
