"""Measure 100,000 groups on 12 brokers at one federator: memory, and the time to match a topic.

    PYTHONPATH=src python bench/bench_groups.py [--groups 100000] [--brokers 12] [--topics 20000]

Prints one JSON object. A neighbour tells one machine the claims of eleven cores, part by part as on the wire. The
machine itself has a twelfth of the groups. `rss_bytes` is the growth of the process, peak and afterwards.
"""

import argparse
import json
import random
import resource
import statistics
import time
from pathlib import Path

from hanse.protocol.events import LinkUp, Received, Subscribed
from hanse.protocol.machine import Machine
from hanse.protocol.messages import Announcement, ClaimChange, ClaimDelta, ControlFrame, SetDelta, SetStep
from hanse.protocol.settings import RANK_DEFAULT, Settings

CHANGES_PER_FRAME = 1_000


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def group_name(number: int) -> str:
    shape = number % 10
    base = f"plant{number % 30}/line{number % 37}/machine{number}"
    return f"{base}/#" if shape == 0 else f"{base}/+/value" if shape == 1 else f"{base}/state"


def fill(groups: int, brokers: int) -> Machine:
    machine = Machine(brokers, Settings(), now=0.0, wall_s=1_000)
    machine.start(0.0)
    machine.step(0.0, LinkUp(0))
    number = 0

    def say(**parts: object) -> None:
        nonlocal number
        number += 1
        machine.step(0.0, Received(0, ControlFrame(0, 1_000, number, 0, 0, **parts)))  # type: ignore[arg-type]

    say()
    joined = 0
    for core in range(brokers - 1):
        mine = [group_name(n) for n in range(groups) if n % brokers == core]
        for start in range(0, len(mine), CHANGES_PER_FRAME):
            names = mine[start : start + CHANGES_PER_FRAME]
            delta = ClaimDelta(core, 1_000, start, tuple(ClaimChange(name, RANK_DEFAULT) for name in names))
            # Every tenth group has a member behind the neighbour, so that this federator is in its mesh.
            steps = tuple(SetStep(True, core, name) for name in names[::10])
            way = Announcement(core, 1_000, 1 + start, 0 if core == 0 else 1, start + len(names))
            say(announcements=(way,), claim_deltas=(delta,), memberships=SetDelta(1, joined, 0, steps))
            joined += len(steps)
    for n in range(groups):
        if n % brokers == brokers - 1:
            machine.step(0.0, Subscribed(group_name(n)))
    return machine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--brokers", type=int, default=12)
    parser.add_argument("--topics", type=int, default=20_000)
    options = parser.parse_args()
    before = rss_bytes()
    begin = time.process_time()
    machine = fill(options.groups, options.brokers)
    fill_cpu_s = time.process_time() - begin
    grown = rss_bytes() - before
    rng = random.Random(1)
    numbers = [rng.randrange(options.groups) for _ in range(options.topics)]
    topics = list({group_name(n).replace("+", "x").replace("#", "y") for n in numbers})
    clock = time.perf_counter_ns
    uncached = []
    for topic in topics:
        start = clock()
        found = machine.match(topic)
        uncached.append((clock() - start) / 1_000)
        assert found, topic
    cached = []
    for _ in range(10):
        start = clock()
        for topic in topics:
            machine.match(topic)
        cached.append((clock() - start) / len(topics) / 1_000)
    uncached.sort()
    print(
        json.dumps(
            {
                "groups": len(machine.groups()),
                "brokers": options.brokers,
                "fill_cpu_s": round(fill_cpu_s, 2),
                "rss_bytes": grown,
                "rss_bytes_max": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024,
                "bytes_per_group": round(grown / options.groups),
                "topics": len(topics),
                "match_uncached_us_p50": round(statistics.median(uncached), 2),
                "match_uncached_us_p99": round(uncached[len(uncached) * 99 // 100], 2),
                "match_cached_us_best": round(min(cached), 3),
                "match_cached_us_median": round(statistics.median(cached), 3),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
