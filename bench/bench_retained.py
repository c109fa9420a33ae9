"""Retained state at 100,000 topics: how long it takes to be equal, what it costs on the link and on disk.

    .venv/bin/python bench/bench_retained.py [--topics 100000] [--payload 64]

Two real brokers with a federator each. Nobody is interested while a client writes all topics at the first broker. Then
a client subscribes at the second one: everything is looked at, fetched, and injected. Then nothing changes for two more
comparisons, and in the end 1,000 topics are written again.

Prints JSON.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from hanse.lab.chaos.ground import OwnGround
from hanse.local.client import Connection
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication
from hanse.mqtt.subscriptions import Subscription

INTERVAL_S = 30
CHANGED = 1_000


class Reader(ClientHandler):
    """A subscriber that counts."""

    def __init__(self) -> None:
        self.count = 0
        self.last_s = 0.0

    def on_publications(self, publications: list[Publication]) -> None:
        """Count."""
        self.count += len(publications)
        self.last_s = time.monotonic()


async def until(condition: Callable[[], bool], deadline_s: float) -> None:
    """Wait until a condition holds, or the time is over."""
    over = time.monotonic() + deadline_s
    while not condition() and time.monotonic() < over:  # noqa: ASYNC110 - of another task
        await asyncio.sleep(0.01)


def link_bytes(url: str) -> int:
    """Return the bytes of data that a federator has sent on links."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in text.splitlines()
        if line.startswith("hanse_federator_link_bytes_total") and 'direction="out"' in line
    )


def pause_ms(url: str, stop: list[bool], longest: list[float]) -> None:
    """Ask for a page again and again: the longest answer is how long the federator did nothing else."""
    while not stop:
        began = time.monotonic()
        urllib.request.urlopen(f"{url}/healthz", timeout=60).read()
        longest[0] = max(longest[0], (time.monotonic() - began) * 1e3)
        time.sleep(0.01)


async def measure(directory: Path, topics: int, payload: int) -> dict[str, Any]:
    """Run it."""
    flags = ["--retained-interval", f"{INTERVAL_S}s"]
    async with OwnGround(directory, 2, emulated_links=False, flags=flags) as ground:
        one, two = ground.places

        def disk(site: int) -> int:
            return sum(path.stat().st_size for path in directory.rglob("retained.db*") if f"site-{site}" in str(path))

        def memory_mb(site: int) -> float:
            pid = ground.pid("federator", site)
            assert pid is not None
            return float(psutil.Process(pid).memory_info().rss) / 1e6

        idle_mb = [memory_mb(0), memory_mb(1)]
        async with Connection(one.broker_url) as writer:
            for number in range(topics):
                await writer.publish(f"bench/{number % 100}/{number}", b"%0*d" % (payload, number), retain=True)
            await writer.publish("bench/end", b"", qos=1)
        reader = Reader()
        client = Client(ClientSettings(two.broker_url, "reader", auto_ack=True), reader)
        await client.start(must_connect=True)
        sent = [link_bytes(one.metrics_url), link_bytes(two.metrics_url)]
        longest = [[0.0], [0.0]]
        stop: list[bool] = []
        asked = [asyncio.to_thread(pause_ms, place.metrics_url, stop, longest[place.site]) for place in ground.places]
        asking = asyncio.gather(*asked)
        began = time.monotonic()
        client.subscribe([Subscription("bench/#", qos=1, no_local=False, retain_handling=0)])
        await until(lambda: reader.count >= topics, 900)
        whole_s = reader.last_s - began
        await asyncio.sleep(5.0)
        fetched = [link_bytes(one.metrics_url) - sent[0], link_bytes(two.metrics_url) - sent[1]]
        held_mb = [memory_mb(0), memory_mb(1)]
        sent = [link_bytes(one.metrics_url), link_bytes(two.metrics_url)]
        await asyncio.sleep(2 * INTERVAL_S)
        quiet = [link_bytes(one.metrics_url) - sent[0], link_bytes(two.metrics_url) - sent[1]]
        before = reader.count
        began = time.monotonic()
        async with Connection(one.broker_url) as writer:
            for number in range(CHANGED):
                await writer.publish(f"bench/{number % 100}/{number}", b"again %d" % number, qos=1, retain=True)
        await until(lambda: reader.count >= before + CHANGED, 60)
        changed_s = time.monotonic() - began
        stop.append(True)
        with contextlib.suppress(OSError):
            await asking
        books = [disk(0), disk(1)]
        await client.stop()
    return {
        "topics": topics,
        "payload_bytes": payload,
        "arrived": before,
        "whole_s": round(whole_s, 1),
        "per_s": round(topics / whole_s) if whole_s > 0 else None,
        "fetch_link_bytes": sum(fetched),
        "fetch_link_bytes_per_topic": round(sum(fetched) / topics, 1),
        "quiet_link_bytes_per_comparison": round(sum(quiet) / 2),
        "book_bytes_origin": books[0],
        "book_bytes_copy": books[1],
        "book_bytes_per_topic": round(books[1] / topics, 1),
        "memory_mb_idle": [round(one_mb, 1) for one_mb in idle_mb],
        "memory_mb": [round(one_mb, 1) for one_mb in held_mb],
        "longest_pause_ms": [round(one_ms[0]) for one_ms in longest],
        "changed_per_s": round(CHANGED / changed_s),
    }


def main() -> None:
    """Run it once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--payload", type=int, default=64)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(asyncio.run(measure(Path(directory), words.topics, words.payload)), indent=1), file=sys.stdout)


if __name__ == "__main__":
    main()
