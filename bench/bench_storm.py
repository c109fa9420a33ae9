"""Offer ten times the capacity of a link for a minute: announcements, memory, counted drops, and recovery.

    python bench/bench_storm.py [--storm 60] [--baseline 10] [--after 40]

Prints JSON; `held` names the promises that held. `hanse.lab.chaos.storm` describes the drill.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from hanse.lab.chaos.storm import StormSettings, run_storm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storm", type=float, default=60.0, help="seconds")
    parser.add_argument("--baseline", type=float, default=10.0, help="seconds before it")
    parser.add_argument("--after", type=float, default=40.0, help="seconds after it")
    parser.add_argument("--link", type=float, default=4_000_000.0, help="bytes per second of the narrow links")
    parser.add_argument("--times", type=float, default=10.0, help="multiple of the capacity")
    words = parser.parse_args()
    settings = StormSettings(
        baseline_s=words.baseline,
        storm_s=words.storm,
        after_s=words.after,
        link_bytes_per_s=words.link,
        times=words.times,
    )
    with tempfile.TemporaryDirectory(prefix="hanse-bench-storm-") as directory:
        found = asyncio.run(run_storm(Path(directory), settings, lambda text: print(text, file=sys.stderr)))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
