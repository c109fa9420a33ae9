"""Match topics against 100,000 mixed filters: time uncached and cached, and the memory of the index.

    PYTHONPATH=src python bench/bench_match.py [--filters 100000] [--topics 20000] [--seed 1]

Prints one JSON object. Half of the filters are plain, the rest hold `+`, `#` or both, on the tree of a company with
plants, lines, machines and signals; the topics are drawn from the same tree. `index_bytes` counts the filters' own
text as well. The `twins` figures are for the shape that is worst for a plain trie: pairs of filters that share all but
the last of many levels.
"""

import argparse
import json
import random
import statistics
import time
import tracemalloc

from hanse.protocol.topics import matches
from hanse.protocol.trie import FilterIndex, MatchCache

SIGNALS = [f"signal{number}" for number in range(40)]


def draw_levels(rng: random.Random) -> list[str]:
    return [
        f"plant{rng.randrange(30)}",
        f"line{rng.randrange(40)}",
        f"machine{rng.randrange(100)}",
        rng.choice(SIGNALS),
        rng.choice(("value", "state", "alarm")),
    ]


def draw_filter(rng: random.Random) -> str:
    levels = draw_levels(rng)
    shape = rng.random()
    if shape < 0.5:
        return "/".join(levels)
    if shape < 0.9:
        # Wildcards further left match more topics and are rarer in practice.
        for position in rng.sample(range(5), k=rng.choice((1, 1, 1, 2))):
            if position > 0 or rng.random() < 0.1:
                levels[position] = "+"
    if shape > 0.7:
        levels[rng.choice((3, 4, 4, 4)) :] = ["#"]
    return "/".join(levels)


def time_each_us(index: FilterIndex, topics: list[str]) -> list[float]:
    clock = time.perf_counter_ns
    spent = []
    for topic in topics:
        begin = clock()
        index.match(topic)
        spent.append((clock() - begin) / 1_000)
    return spent


def time_cached_us(cache: MatchCache, topics: list[str], rounds: int = 20) -> float:
    for topic in topics:
        cache.match(topic)
    match = cache.match
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        for topic in topics:
            match(topic)
        best = min(best, (time.perf_counter_ns() - begin) / len(topics) / 1_000)
    return best


def build(filters: int, rng: random.Random) -> tuple[FilterIndex, int, float]:
    tracemalloc.start()
    index = FilterIndex()
    while len(index) < filters:
        index.add(draw_filter(rng))
    index_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    others = list(index)
    begin = time.perf_counter()
    again = FilterIndex()
    for filter_ in others:
        again.add(filter_)
    return index, index_bytes, (time.perf_counter() - begin) / filters * 1e6


def twins(pairs: int = 1_000, levels: int = 200) -> dict[str, float]:
    tracemalloc.start()
    index = FilterIndex()
    for pair in range(pairs):
        for last in "ab":
            index.add(f"{pair}/" + "x/" * (levels - 3) + f"+/{last}")
    index_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    spent = time_each_us(index, [f"{pair}/" + "x/" * (levels - 3) + "y/a" for pair in range(pairs)])
    return {
        "levels": levels,
        "bytes_per_filter": round(index_bytes / len(index)),
        "uncached_us_p50": round(statistics.median(spent), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--filters", type=int, default=100_000)
    parser.add_argument("--topics", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    index, index_bytes, add_us = build(options.filters, rng)
    topics = ["/".join(draw_levels(rng)) for _ in range(options.topics)]
    for topic in topics[:5]:
        expected = tuple(sorted(filter_ for filter_ in index if matches(filter_, topic)))
        if index.match(topic) != expected:
            raise SystemExit(f"The index and the naive matcher differ on {topic}.")
    spent = sorted(time_each_us(index, topics))
    print(
        json.dumps(
            {
                "filters": len(index),
                "with_wildcards": sum("+" in filter_ or "#" in filter_ for filter_ in index),
                "topics": len(topics),
                "matches_per_topic": round(statistics.mean(len(index.match(topic)) for topic in topics), 2),
                "index_bytes": index_bytes,
                "bytes_per_filter": round(index_bytes / len(index)),
                "add_us": round(add_us, 2),
                "uncached_us_p50": round(statistics.median(spent), 2),
                "uncached_us_p99": round(spent[len(spent) * 99 // 100], 2),
                "uncached_us_mean": round(statistics.mean(spent), 2),
                "cached_us": round(time_cached_us(MatchCache(index), topics), 3),
                "twins": twins(),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
