"""Topics drill: 10,000 subscriptions at one broker, 100,000 distinct topics published at another.

Promises: all of them arrive, and the memory of every federator stays within a bound. The figures are reported.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.errors import Unavailable
from hanse.lab.chaos import pages
from hanse.lab.chaos.ground import OwnGround
from hanse.local.http import get_json
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication, encode
from hanse.mqtt.subscriptions import Subscription

MB = 1e6
# A federator with 100,000 groups has 100 MB more than an idle one (bench/bench_groups.py); these are 10,000.
RESIDENT_MB_MAX = 200.0
_SPREAD_S = 120.0
_BATCH = 50
_TICK_S = 0.01


@dataclass(frozen=True, slots=True)
class TopicsSettings:
    """Size and rate of the drill."""

    topics: int = 100_000
    subscriptions: int = 10_000
    brokers: int = 3
    rate_per_s: float = 5_000.0
    qos: int = 1
    idle_s: float = 10.0


class _Wants(ClientHandler):
    """Client that subscribes to everything, and records the topics that arrived."""

    def __init__(self, url: str, settings: TopicsSettings) -> None:
        self.seen = bytearray(settings.topics)
        self.copies = 0
        self.arrived_s = time.monotonic()
        self.granted = 0
        self.client = Client(ClientSettings(url, "topics-wants"), self)

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        self.granted += sum(code < 0x80 for _, code in answers)

    def on_publications(self, publications: list[Publication]) -> None:
        self.arrived_s = time.monotonic()
        for publication in publications:
            number = int(publication.topic.rpartition("/")[2])
            self.copies += self.seen[number]
            self.seen[number] = 1
        self.client.ack([publication.receipt for publication in publications if publication.receipt])


def topic_of(settings: TopicsSettings, number: int) -> str:
    """Return a topic, one of each subscription in turn."""
    return f"topics/{number % settings.subscriptions}/{number}"


async def run_topics(
    directory: Path, settings: TopicsSettings, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run the drill in a federation of its own."""
    async with OwnGround(directory, settings.brokers, emulated_links=False) as ground:
        first, last = ground.places[0], ground.places[-1]
        await asyncio.sleep(2.0)
        idle_mb = _resident_mb(ground)
        wants = _Wants(last.broker_url, settings)
        gives = Client(ClientSettings(first.broker_url, "topics-gives"), ClientHandler())
        try:
            await wants.client.start(must_connect=True)
            await gives.start(must_connect=True)
            tell(f"{settings.subscriptions} subscriptions")
            began_s, cpu = time.monotonic(), _processor_s(ground)
            wants.client.subscribe(
                Subscription(f"topics/{number}/+", settings.qos, no_local=False)
                for number in range(settings.subscriptions)
            )
            await _spread(ground, settings)
            spread_s, spread_cpu = time.monotonic() - began_s, _processor_s(ground)
            # Host subscriptions and the search for retained messages follow the claims.
            await asyncio.sleep(5.0)
            subscribed_mb = _resident_mb(ground)
            before, cpu_before = await _pages(ground), _processor_s(ground)
            tell(f"{settings.topics} topics")
            await _publish(gives, settings)
            await _arrived(wants, settings)
            after = await _pages(ground)
            cpu_after = _processor_s(ground)
            published_mb = _resident_mb(ground)
        finally:
            await gives.stop()
            await wants.client.stop()
    highest = max([*subscribed_mb, *published_mb])
    arrived = wants.seen.count(1)
    return {
        "topics": settings.topics,
        "subscriptions": settings.subscriptions,
        "brokers": settings.brokers,
        "idle_mb": idle_mb,
        "subscribed_mb": subscribed_mb,
        "published_mb": published_mb,
        "bytes_per_subscription": round((max(subscribed_mb) - max(idle_mb)) * MB / settings.subscriptions),
        "spread_s": round(spread_s, 1),
        "spread_cpu_s": [round(b - a, 2) for a, b in zip(cpu, spread_cpu, strict=True)],
        "publish_cpu_s": [round(b - a, 2) for a, b in zip(cpu_before, cpu_after, strict=True)],
        "arrived": arrived,
        "copies": wants.copies,
        "dropped": pages.drops(before, after),
        "held": {
            "all_arrived_once": arrived == settings.topics and not wants.copies,
            "memory_bounded": highest <= RESIDENT_MB_MAX,
        },
    }


async def _spread(ground: OwnGround, settings: TopicsSettings) -> None:
    until_s = time.monotonic() + _SPREAD_S
    known: list[int] = []
    while time.monotonic() < until_s:
        found = await asyncio.gather(*(get_json(f"{place.metrics_url}/groups") for place in ground.places))
        known = [sum(row["group"].startswith("topics/") for row in page["groups"]) for page in found]
        if min(known) >= settings.subscriptions:
            return
        await asyncio.sleep(1.0)
    raise Unavailable(f"Of {settings.subscriptions} groups the federators knew {known} after {_SPREAD_S:g} s.")


async def _publish(client: Client, settings: TopicsSettings) -> None:
    began_s = time.monotonic()
    number = 0
    while number < settings.topics:
        due = min(int((time.monotonic() - began_s) * settings.rate_per_s) + 1, settings.topics)
        stop = min(due, number + _BATCH * 10)
        if stop > number and client.credit > stop - number:
            packets = (encode(topic_of(settings, n), b"x" * 32, qos=settings.qos) for n in range(number, stop))
            client.publish_run(b"".join(packets))
            number = stop
        await asyncio.sleep(_TICK_S)


async def _arrived(wants: _Wants, settings: TopicsSettings) -> None:
    wants.arrived_s = time.monotonic()
    while wants.seen.count(1) < settings.topics:
        if time.monotonic() - wants.arrived_s > settings.idle_s:
            return
        await asyncio.sleep(0.1)


async def _pages(ground: OwnGround) -> list[pages.Page | None]:
    return list(await asyncio.gather(*(pages.read(one.metrics_url, one.broker_url) for one in ground.places)))


def _resident_mb(ground: OwnGround) -> list[float]:
    pids = [ground.pid("federator", place.site) for place in ground.places]
    return [round((pages.resident_bytes(pid) or 0) / MB, 1) if pid else 0.0 for pid in pids]


def _processor_s(ground: OwnGround) -> list[float]:
    pids = [ground.pid("federator", place.site) for place in ground.places]
    return [pages.processor_s(pid) or 0.0 if pid else 0.0 for pid in pids]
