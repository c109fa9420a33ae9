"""Retained state through kills, a partition and a restored backup: the drill of `hanse.lab.chaos.retained`.

    .venv/bin/python bench/bench_retained_drill.py [--partition 30] [--seed 1]

Prints JSON: the figures, and the promises that held.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from hanse.lab.chaos.retained import RetainedDrill, run_retained


def main() -> None:
    """Run one drill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--partition", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args()
    settings = RetainedDrill(topics=words.topics, partition_s=words.partition, seed=words.seed)
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(run_retained(Path(directory), settings, lambda text: print(text, file=sys.stderr)))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
