"""Outage drill: a neighbour is away for minutes while messages go on, and then gets all of them, in order.

The federation is a ring of five, with a publisher at broker 0. The subscribers at broker 2 should notice nothing. The
federator of broker 4, which also has subscribers, is killed and stays away.

Promises: the memory of the others stays flat. Messages that wait are on disk and drain in order. The 99th percentile of
broker 2's latency is at most twice as high as before.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.lab.chaos.clients import Publisher, Subscriber, filter_of
from hanse.lab.chaos.ground import OwnGround
from hanse.lab.chaos.history import History, Seen, Sent, Span
from hanse.lab.chaos.judge import count
from hanse.lab.chaos.watch import MB, Watch

ORIGIN, OTHER, AWAY = 0, 2, 4
# Allocators keep freed memory. Memory that grows with an outage of minutes grows by more.
FLAT_MB = 20.0
# A 99th percentile below this is noise of one event loop that publishes and records, and counts as this value.
_FLOOR_MS = 5.0
_PAYLOAD_BYTES = 64
_OPEN_S = 40.0


@dataclass(frozen=True, slots=True)
class OutageSettings:
    """Duration and size of the drill.

    Attributes:
        baseline_s: time before the outage, for the latency to compare with. It is long, because in 20 s a few pauses of
            the machine determine the 99th percentile.
        drain_s: longest wait for the stored messages.
    """

    baseline_s: float = 100.0
    away_s: float = 300.0
    rate_per_s: float = 1_000.0
    drain_s: float = 120.0
    qos: int = 1


def latencies_ms(sent: Sent, seen: Seen, from_s: float, to_s: float) -> list[float]:
    """Return latencies, sorted, of the messages that were published in a time and arrived."""
    return sorted(
        (seen.first_s[n] - sent.sent_s[n]) * 1e3
        for n in range(sent.count)
        if seen.copies[n] and from_s <= sent.sent_s[n] <= to_s
    )


def percentile(values: list[float], percent: float) -> float:
    """Return a percentile of a sorted list; NaN for an empty one."""
    if not values:
        return math.nan
    return values[min(len(values) - 1, math.ceil(len(values) * percent / 100) - 1)]


async def run_outage(
    directory: Path, settings: OutageSettings, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run the drill in a federation of its own; return figures, and the promises that held."""
    run = int.from_bytes(os.urandom(4))
    after_s = 10.0
    total = round((settings.baseline_s + settings.away_s + after_s) * settings.rate_per_s)
    async with OwnGround(directory, emulated_links=False) as ground:
        urls = [place.broker_url for place in ground.places]
        publisher = Publisher(run, 0, ORIGIN, urls[ORIGIN], qos=(settings.qos,), count=total, size_bytes=_PAYLOAD_BYTES)
        other, away = (
            Subscriber(run, k, site, urls[site], [publisher.sent], settings.qos) for k, site in enumerate((OTHER, AWAY))
        )
        clients: list[Publisher | Subscriber] = [other, away, publisher]
        for client in clients:
            await client.start()
        await _open(publisher, [other, away])
        await ground.wait_converged(group=filter_of(run))
        directories = [directory / f"site-{place.site}" / "federator" for place in ground.places]
        async with Watch(ground, directories) as watch:
            began_s = time.monotonic()
            stream = asyncio.create_task(publisher.stream(settings.rate_per_s, 20_000))
            tell("the baseline")
            await asyncio.sleep(settings.baseline_s)
            down_s = time.monotonic()
            await ground.crash("federator", AWAY)
            tell(f"federator {AWAY} is away")
            await asyncio.sleep(settings.away_s)
            await ground.revive("federator", AWAY)
            up_s = time.monotonic()
            tell(f"federator {AWAY} is back")
            await stream
            await publisher.wait_acknowledged(20.0)
            drained_s = await _drained(publisher, away, up_s, settings.drain_s)
            await asyncio.sleep(1.0)
        for client in clients:
            await client.stop()
    history = History([publisher.sent], [other.reader, away.reader])
    found = count(history, Span(down_s, down_s, up_s))
    result = _latency(publisher.sent, other.reader.seen[0], began_s, down_s, up_s) | _memory(watch, down_s, up_s)
    result |= {
        "away_s": round(up_s - down_s, 1),
        "rate_per_s": settings.rate_per_s,
        "published": found.published,
        "acknowledged": found.acked,
        "lost": found.lost,
        "duplicates": found.duplicates.total(),
        "reordered_at_away": away.reader.seen[0].reordered,
        "drained_after_s": None if drained_s is None else round(drained_s, 1),
    }
    result["held"] = {
        "nothing_lost": not found.lost,
        "in_order": not away.reader.seen[0].reordered,
        "waited_on_disk": _grown_mb(result) * MB >= settings.away_s * settings.rate_per_s * _PAYLOAD_BYTES / 2,
        "drained": drained_s is not None and not result["outbox_gauge_after"],
        "memory_flat": result["grown_mb_max"] <= FLAT_MB,
        "others_p99_at_most_twice": result["other_p99_ratio"] <= 2.0,
    }
    return result


def _latency(sent: Sent, seen: Seen, began_s: float, down_s: float, up_s: float) -> dict[str, Any]:
    # The first second of a stream warms up caches and connections.
    before = latencies_ms(sent, seen, began_s + 1.0, down_s - 0.5)
    during = latencies_ms(sent, seen, down_s, up_s)
    return {
        "other_p99_ms_before": round(percentile(before, 99), 3),
        "other_p99_ms_during": round(percentile(during, 99), 3),
        "other_p50_ms_before": round(percentile(before, 50), 3),
        "other_p50_ms_during": round(percentile(during, 50), 3),
        "other_p99_ratio": round(percentile(during, 99) / max(_FLOOR_MS, percentile(before, 99)), 2)
        if before and during
        else math.inf,
    }


def _memory(watch: Watch, down_s: float, up_s: float) -> dict[str, Any]:
    """Return the highest memory of the others in the first quarter of the outage, and in the rest."""
    quarter_s = down_s + (up_s - down_s) / 4
    stayed = [samples for site, samples in enumerate(watch.sites) if site != AWAY]
    early = [samples.highest_mb(down_s, quarter_s) for samples in stayed]
    late = [samples.highest_mb(quarter_s, up_s) for samples in stayed]
    outbox = [value for samples in stayed for value in samples.outbox if value is not None]
    return {
        "resident_mb_first_quarter": early,
        "resident_mb_rest": late,
        "grown_mb_max": round(max(b - a for a, b in zip(early, late, strict=True)), 1),
        "disk_mb_before": [samples.disk_mb[0] for samples in stayed],
        "disk_mb_max": [max(samples.disk_mb) for samples in stayed],
        "disk_mb_after": [samples.disk_mb[-1] for samples in stayed],
        "outbox_gauge_max": max(outbox, default=None),
        "outbox_gauge_after": max(
            (last for samples in stayed if (last := samples.outbox[-1]) is not None), default=None
        ),
    }


def _grown_mb(result: dict[str, Any]) -> float:
    """Return the largest growth of a disk."""
    return max(float(b - a) for a, b in zip(result["disk_mb_before"], result["disk_mb_max"], strict=True))


async def _open(publisher: Publisher, subscribers: list[Subscriber]) -> None:
    async with asyncio.timeout(_OPEN_S):
        while not all(subscriber.probed for subscriber in subscribers):
            publisher.probe()
            await asyncio.sleep(0.3)
    await asyncio.sleep(2.0)


async def _drained(publisher: Publisher, away: Subscriber, up_s: float, deadline_s: float) -> float | None:
    """Return the seconds from the return until all acknowledged messages had arrived; None if they did not."""
    sent, seen = publisher.sent, away.reader.seen[0]
    until_s = time.monotonic() + deadline_s
    while time.monotonic() < until_s:
        if all(seen.copies[n] for n in range(sent.count) if sent.acked_s[n]):
            return max((seen.first_s[n] for n in range(sent.count)), default=up_s) - up_s
        await asyncio.sleep(0.5)
    return None
