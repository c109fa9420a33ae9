"""A neighbour away for minutes at 1,000 messages/s: memory, disk, order, and the others' latency.

    python bench/bench_outage.py [--away 300] [--baseline 100] [--rate 1000]

Prints JSON; `held` names the promises that held. `hanse.lab.chaos.outage` describes the drill.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from hanse.lab.chaos.outage import OutageSettings, run_outage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--away", type=float, default=300.0, help="seconds")
    parser.add_argument("--baseline", type=float, default=100.0, help="seconds before it")
    parser.add_argument("--rate", type=float, default=1_000.0, help="messages a second")
    parser.add_argument("--qos", type=int, default=1)
    words = parser.parse_args()
    settings = OutageSettings(
        baseline_s=words.baseline, away_s=words.away, rate_per_s=words.rate, drain_s=60 + words.away / 2, qos=words.qos
    )
    with tempfile.TemporaryDirectory(prefix="hanse-bench-outage-") as directory:
        found = asyncio.run(run_outage(Path(directory), settings, lambda text: print(text, file=sys.stderr)))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
