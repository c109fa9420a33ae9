"""Storm drill: ten times the capacity of a link, for a minute, and then calm.

The federation is a ring of five, with QoS 0 from broker 0 to broker 2, whose links are narrow (`link_bytes_per_s`). The
drill can thus offer ten times the capacity on any machine. It measures the capacity first, in the same way. A trickle
at QoS 1 takes the same route, for its latency, and so do the announcements.

Promises: announcements are on time (no neighbour and no core is lost), memory stays within its limit, missing messages
are counted as dropped, the trickle loses nothing, and within 30 s latency is as low as before.
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hanse import load
from hanse.errors import Unavailable
from hanse.lab.chaos import pages
from hanse.lab.chaos.clients import Publisher, Subscriber, filter_of
from hanse.lab.chaos.ground import OwnGround
from hanse.lab.chaos.history import History, Seen, Sent
from hanse.lab.chaos.judge import count
from hanse.lab.chaos.outage import latencies_ms, percentile
from hanse.lab.chaos.watch import Watch

ORIGIN, LAST = 0, 2
# 64 MiB may wait for a link and as much for the host broker (`hanse.mqtt.limits`), in addition to a federator's normal
# memory.
RESIDENT_MB_MAX = 230.0
RECOVERED_S = 30.0
# Below this, twice the former latency is noise of the machine, not a busy federator.
_FLOOR_MS = 50.0
# Buffer of a narrow link, as in a router: 30 ms at 4 MB/s.
_LINK_BUFFER_BYTES = 128 * 1024
_CAPACITY_S = 4.0
_CALM_S = 3.0
_EVENTS = 'hanse_federator_events_total{event="'


@dataclass(frozen=True, slots=True)
class StormSettings:
    """Duration and size of the drill.

    Attributes:
        times: rate of the storm, as a multiple of the capacity.
        link_bytes_per_s: rate of the last federator's links. The backlog of a link at its limit (64 MiB) must drain
            within `RECOVERED_S`, and this machine must be able to offer ten times as much.
        size_bytes: size of a payload of the storm.
    """

    baseline_s: float = 10.0
    storm_s: float = 60.0
    after_s: float = 40.0
    times: float = 10.0
    link_bytes_per_s: float = 4_000_000.0
    size_bytes: int = 2_048
    trickle_per_s: float = 100.0


async def run_storm(
    directory: Path, settings: StormSettings, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run the drill in a federation of its own; return figures, and the promises that held."""
    run = int.from_bytes(os.urandom(4))
    async with OwnGround(directory) as ground:
        urls = [place.broker_url for place in ground.places]
        for ends, link in ground.links.items():
            if LAST in ends:
                link.set_buffer(_LINK_BUFFER_BYTES)
                link.shape(bytes_per_s=settings.link_bytes_per_s)
                await link.reset()
                link.restore()
        await ground.wait_converged()
        plan = load.Load(
            (urls[ORIGIN],), (urls[LAST],), topic="storm/{publisher}", size_bytes=settings.size_bytes, settle_s=2.0
        )
        tell("measuring the capacity")
        capacity = await _capacity(plan, settings)
        rate = capacity * settings.times
        # The trickle continues through all phases, including the load generator's own pauses.
        trickle_s = settings.baseline_s + settings.storm_s + settings.after_s + 30.0
        publisher = Publisher(run, 0, ORIGIN, urls[ORIGIN], qos=(1,), count=round(trickle_s * settings.trickle_per_s))
        subscriber = Subscriber(run, 0, LAST, urls[LAST], [publisher.sent], 1)
        await subscriber.start()
        await publisher.start()
        await _open(ground, publisher, subscriber, run)
        before = await _pages(ground)
        directories = [directory / f"site-{place.site}" / "federator" for place in ground.places]
        async with Watch(ground, directories) as watch:
            stream = asyncio.create_task(publisher.stream(settings.trickle_per_s, 20_000))
            began_s = time.monotonic()
            await asyncio.sleep(settings.baseline_s)
            tell(f"the storm: {rate:,.0f} messages/s on a capacity of {capacity:,.0f}")
            storm = replace(plan, count=max(1, round(rate * settings.storm_s)), rate_per_s=rate)
            # The load generator reports now and then. The time before its call is surely before the storm.
            calm_s = time.monotonic()
            storm_s, over_s, result = await _storm(storm)
            tell("the storm is over")
            await asyncio.sleep(max(0.0, over_s + settings.after_s - time.monotonic()))
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)
            await publisher.wait_acknowledged(20.0)
            await _drained(publisher, subscriber)
        after = await _pages(ground)
        await publisher.stop()
        await subscriber.stop()
    found = count(History([publisher.sent], [subscriber.reader]), None)
    recovered_s = recovery_s(publisher.sent, subscriber.reader.seen[0], began_s, calm_s, over_s)
    return _figures(
        capacity, settings.times, result, pages.drops(before, after), before, after, watch, found.lost, recovered_s
    ) | {
        "storm_s": round(over_s - storm_s, 1),
        "trickle_p99_ms_before": round(_p99(publisher.sent, subscriber, began_s + 1.0, calm_s), 3),
    }


async def _storm(plan: load.Load) -> tuple[float, float, load.Result]:
    """Run the storm; return its beginning, its end, and the load generator's result."""
    began_s: float | None = None

    def tell(sent: int, received: int) -> None:  # noqa: ARG001 - arrivals do not mark the storm
        nonlocal began_s
        if sent and began_s is None:
            began_s = time.monotonic()

    result = await load.run(plan, tell)
    # A storm that was over before its first report ends now.
    began_s = time.monotonic() - result.publish_s if began_s is None else began_s
    return began_s, began_s + result.publish_s, result


async def _capacity(plan: load.Load, settings: StormSettings) -> float:
    """Return the messages per second that arrive when more are offered than the link can carry."""
    messages = max(1_000, round(settings.link_bytes_per_s / settings.size_bytes * _CAPACITY_S))
    result = await load.run(replace(plan, count=messages, topic="capacity/{publisher}"))
    if not result.receive_rate_per_s:
        raise Unavailable("No message arrived before the storm, so its capacity is unknown.")
    return result.receive_rate_per_s


def recovery_s(sent: Sent, seen: Seen, began_s: float, calm_s: float, over_s: float) -> float | None:
    """Return the seconds after the storm until every 99th percentile per second is at most twice that of before."""
    limit_ms = max(_FLOOR_MS, 2 * percentile(latencies_ms(sent, seen, began_s + 1.0, calm_s), 99))
    last_s = max((sent.sent_s[n] for n in range(sent.count)), default=over_s)
    seconds = int(last_s - over_s)
    if seconds < 1:
        return None
    calm = [percentile(latencies_ms(sent, seen, over_s + k, over_s + k + 1), 99) <= limit_ms for k in range(seconds)]
    if not calm[-1]:
        return None
    return float(next((k + 1 for k in range(seconds - 1, -1, -1) if not calm[k]), 0))


def _p99(sent: Sent, subscriber: Subscriber, from_s: float, to_s: float) -> float:
    return percentile(latencies_ms(sent, subscriber.reader.seen[0], from_s, to_s), 99)


def _figures(
    capacity: float,
    times: float,
    result: load.Result,
    drops: dict[str, int],
    before: list[pages.Page | None],
    after: list[pages.Page | None],
    watch: Watch,
    lost: int,
    recovered_s: float | None,
) -> dict[str, Any]:
    lost_events = {
        name.removeprefix(_EVENTS).partition('"')[0]: 0
        for page in after
        if page is not None
        for name in page.samples
        if name.startswith((f"{_EVENTS}neighbour_lost", f"{_EVENTS}core_lost"))
    }
    for old, new in zip(before, after, strict=True):
        for name, value in pages.changes(old, new).items():
            word = name.removeprefix(_EVENTS).partition('"')[0]
            if name.startswith(_EVENTS) and word in lost_events:
                lost_events[word] += round(value)
    highest = [max((mb for mb in samples.resident_mb if mb is not None), default=0.0) for samples in watch.sites]
    offered = result.publish_rate_per_s / capacity if capacity else 0.0
    return {
        "capacity_per_s": round(capacity),
        "offered_per_s": round(result.publish_rate_per_s),
        "offered_in_capacities": round(offered, 1),
        "published": result.published,
        "received": result.received,
        "not_received": result.lost,
        "dropped": drops,
        "lost_neighbours_and_cores": lost_events,
        "resident_mb_max": highest,
        "trickle_lost": lost,
        "recovered_after_s": recovered_s,
        "held": {
            "offered_as_meant": offered >= 0.9 * times,
            "announcements_on_time": not any(lost_events.values()),
            "memory_within_cap": max(highest) <= RESIDENT_MB_MAX,
            "drops_counted": result.lost <= sum(drops.values()),
            "trickle_lost_nothing": not lost,
            "back_to_normal": recovered_s is not None and recovered_s <= RECOVERED_S,
        },
    }


async def _open(ground: OwnGround, publisher: Publisher, subscriber: Subscriber, run: int) -> None:
    async with asyncio.timeout(40.0):
        while not subscriber.probed:
            publisher.probe()
            await asyncio.sleep(0.3)
    await ground.wait_converged(group=filter_of(run))
    # The measurement of the capacity was itself a small storm.
    await asyncio.sleep(_CALM_S)


async def _drained(publisher: Publisher, subscriber: Subscriber) -> None:
    sent, copies = publisher.sent, subscriber.reader.seen[0].copies
    until_s = time.monotonic() + 15.0
    while not all(copies[n] for n in range(sent.count) if sent.acked_s[n]):
        if time.monotonic() > until_s:
            return
        await asyncio.sleep(0.2)


async def _pages(ground: OwnGround) -> list[pages.Page | None]:
    return list(await asyncio.gather(*(pages.read(one.metrics_url, one.broker_url) for one in ground.places)))
