"""Publish 100,000 distinct topics at a broker with 10,000 subscriptions: memory of the federators, and arrivals.

    python bench/bench_topics.py [--topics 100000] [--subscriptions 10000] [--brokers 3] [--rate 5000]

Prints JSON; `held` names the promises that held. `hanse.lab.chaos.topics` describes the drill.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from hanse.lab.chaos.topics import TopicsSettings, run_topics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--subscriptions", type=int, default=10_000)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=5_000.0, help="messages a second")
    words = parser.parse_args()
    settings = TopicsSettings(words.topics, words.subscriptions, words.brokers, words.rate)
    with tempfile.TemporaryDirectory(prefix="hanse-bench-topics-") as directory:
        found = asyncio.run(run_topics(Path(directory), settings, lambda text: print(text, file=sys.stderr)))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
