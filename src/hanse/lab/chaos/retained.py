"""Retained drill: topics are written and deleted at three brokers at once, through kills, a partition and a backup.

A client at each broker is interested in all topics, so that the federators hear every write. While the writers go on,
federators are killed, a site is cut off, a broker is killed, and a broker comes back with older files. Then each topic
gets a last write or deletion, at any broker.

Promises: soon after, all brokers retain the same. A last write or deletion that nothing excuses is what they retain. It
is excused if another one was less than `APART_S` earlier, or if its broker ended or was restored within `APART_S`.
"""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mqtt5

from hanse.errors import HanseError
from hanse.lab.chaos.ground import OwnGround
from hanse.local.client import Connection

SITES = 3
APART_S = 2.0
FILTER = "drill/#"
# The client that looks at the brokers has the prefix of the federators' own, so that it makes no interest.
_LOOKER = "hanse-federator-drill"
_DATABASE = "mosquitto.db"


@dataclass(frozen=True, slots=True)
class RetainedDrill:
    """Size and duration of the drill.

    Attributes:
        rate_per_s: writes and deletions per second at each broker.
        partition_s: how long one site is cut off.
        settle_s: longest wait for equal brokers at the end.
    """

    topics: int = 200
    rate_per_s: float = 20.0
    partition_s: float = 30.0
    settle_s: float = 90.0
    deletions: float = 0.3
    seed: int = 1


@dataclass(slots=True)
class _Write:
    at_s: float
    site: int
    topic: str
    value: bytes
    is_acknowledged: bool = False


class _Drill:
    def __init__(
        self, ground: OwnGround, directory: Path, settings: RetainedDrill, tell: Callable[[str], None]
    ) -> None:
        self.ground = ground
        self.directory = directory
        self.settings = settings
        self.tell = tell
        self.random = random.Random(settings.seed)  # noqa: S311 - no secret
        self.urls = [place.broker_url for place in ground.places]
        self.writes: list[_Write] = []
        # Ends of brokers, and of federators, which excuse nothing: (site, time).
        self.ends: list[tuple[int, float]] = []
        self.live = [0] * SITES
        self.is_over = False

    # --- clients ------------------------------------------------------------------------------------------------------

    async def subscribe(self, site: int) -> None:
        """Stay interested in all topics, over restarts of the broker."""
        while not self.is_over:
            with contextlib.suppress(HanseError, OSError):
                async with Connection(self.urls[site]) as client:
                    await client.subscribe([FILTER], qos=1)
                    async for _ in client.messages():
                        self.live[site] += 1
            await asyncio.sleep(0.2)

    async def write(self, site: int) -> None:
        """Write and delete at random, over restarts of the broker."""
        number = 0
        while not self.is_over:
            with contextlib.suppress(HanseError, OSError):
                async with Connection(self.urls[site]) as client:
                    while not self.is_over:
                        number += 1
                        topic = f"drill/{self.random.randrange(self.settings.topics)}"
                        value = b"" if self.random.random() < self.settings.deletions else b"%d of %d" % (number, site)
                        await self.publish(client, site, topic, value)
                        await asyncio.sleep(self.random.expovariate(self.settings.rate_per_s))
            await asyncio.sleep(0.2)

    async def publish(self, client: Connection, site: int, topic: str, value: bytes) -> None:
        """Write one value, and note when, and whether the broker acknowledged it."""
        write = _Write(time.monotonic(), site, topic, value)
        self.writes.append(write)
        async with asyncio.timeout(5.0):
            await client.publish(topic, value, qos=1, retain=True)
        write.is_acknowledged = True

    async def write_last(self) -> None:
        """Write or delete each topic once more: half of them at several brokers at once."""
        order = list(range(self.settings.topics))
        self.random.shuffle(order)
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Connection(url)) for url in self.urls]
            locks = [asyncio.Lock() for _ in clients]

            async def one(site: int, topic: int, number: int) -> None:
                value = b"" if number % 2 else b"last %d of %d" % (number, site)
                async with locks[site]:
                    await self.publish(clients[site], site, f"drill/{topic}", value)

            for number, topic in enumerate(order):
                sites = [self.random.randrange(SITES)] if number % 4 < 2 else range(SITES)
                await asyncio.gather(*(one(site, topic, number + site) for site in sites))

    async def held(self, site: int) -> dict[str, bytes]:
        """Return what a broker retains."""
        found: dict[str, bytes] = {}
        async with Connection(self.urls[site], client_id=f"{_LOOKER}-{os.urandom(4).hex()}") as client:
            await client.subscribe([FILTER])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._collect(client, found)
        return found

    async def _collect(self, client: Connection, found: dict[str, bytes]) -> None:
        async for packet in client.messages():
            assert isinstance(packet, mqtt5.PublishPacket)
            if packet.retain:
                found[packet.topic] = bytes(packet.payload)

    # --- faults -------------------------------------------------------------------------------------------------------

    async def kill_federator(self, site: int, away_s: float) -> None:
        """Kill a federator, and start it again."""
        self.tell(f"federator {site} is killed")
        await self.ground.crash("federator", site)
        await asyncio.sleep(away_s)
        await self.ground.revive("federator", site)

    async def kill_broker(self, site: int, away_s: float, backup: Path | None = None) -> None:
        """Kill a broker, and start it again, perhaps with older files."""
        self.tell(f"broker {site} is killed" + (" and restored from a backup" if backup else ""))
        self.ends.append((site, time.monotonic()))
        await self.ground.crash("broker", site)
        await asyncio.sleep(away_s)
        if backup is not None:
            shutil.copy(backup, self._database(site))
        await self.ground.revive("broker", site)
        self.ends.append((site, time.monotonic()))

    async def back_up(self, site: int) -> Path:
        """Copy a broker's files."""
        self.ground.signal("broker", site, signal.SIGUSR1)
        await asyncio.sleep(0.5)
        copy = self.directory / f"backup-{site}.db"
        shutil.copy(self._database(site), copy)
        return copy

    def _database(self, site: int) -> Path:
        return self.ground.broker_directory(site) / _DATABASE

    async def cut_off(self, site: int) -> None:
        """Cut all links of a site for a while."""
        self.tell(f"site {site} is cut off for {self.settings.partition_s:g} s")
        links = [emulator for sites, emulator in self.ground.links.items() if site in sites]
        for emulator in links:
            emulator.cut()
        await asyncio.sleep(self.settings.partition_s)
        for emulator in links:
            emulator.restore()
        self.tell(f"site {site} is linked again")

    # --- the end ------------------------------------------------------------------------------------------------------

    async def wait_equal(self) -> tuple[float | None, list[dict[str, bytes]]]:
        """Wait until all brokers retain the same for two looks; return how long that took, and what they retain."""
        began_s = time.monotonic()
        equal_s: float | None = None
        while True:
            held = [await self.held(site) for site in range(SITES)]
            now_s = time.monotonic() - began_s
            if all(one == held[0] for one in held) and not self.wrong(held[0]):
                if equal_s is not None:
                    return equal_s, held
                equal_s = now_s
            else:
                equal_s = None
            if now_s > self.settings.settle_s:
                return None, held
            await asyncio.sleep(1.0)

    def judged(self) -> dict[str, _Write]:
        """Return the last write of each topic, if nothing excuses its loss."""
        by_topic: dict[str, list[_Write]] = {}
        for write in self.writes:
            by_topic.setdefault(write.topic, []).append(write)
        return {
            topic: writes[-1]
            for topic, writes in by_topic.items()
            if writes[-1].is_acknowledged
            and (len(writes) < 2 or writes[-1].at_s - writes[-2].at_s > APART_S)
            and not any(site == writes[-1].site and abs(at_s - writes[-1].at_s) < APART_S for site, at_s in self.ends)
        }

    def wrong(self, held: dict[str, bytes]) -> list[str]:
        """Return topics whose last write is not what a broker retains."""
        return sorted(topic for topic, write in self.judged().items() if held.get(topic, b"") != write.value)


async def run_retained(
    directory: Path, settings: RetainedDrill | None = None, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run the drill in a federation of its own; return figures, and the promises that held."""
    settings = settings or RetainedDrill()
    flags = ["--retained-interval", "10s"]
    async with OwnGround(directory, SITES, flags=flags) as ground:
        drill = _Drill(ground, directory, settings, tell)
        subscribers = [asyncio.create_task(drill.subscribe(site)) for site in range(SITES)]
        await ground.wait_converged(group=FILTER)
        writers = [asyncio.create_task(drill.write(site)) for site in range(SITES)]

        async def faults() -> None:
            await asyncio.sleep(3.0)
            await drill.kill_federator(1, 2.0)
            await asyncio.sleep(3.0)
            backup = await drill.back_up(1)
            cut = asyncio.create_task(drill.cut_off(2))
            await asyncio.sleep(settings.partition_s / 3)
            await drill.kill_federator(0, 2.0)
            await asyncio.sleep(settings.partition_s / 6)
            await drill.kill_broker(0, 1.0)
            await cut
            await asyncio.sleep(2.0)
            await drill.kill_broker(1, 1.0, backup)
            await asyncio.sleep(2.0)
            await drill.kill_federator(2, 2.0)

        began_s = time.monotonic()
        await _while_running(faults(), writers)
        await asyncio.sleep(3.0)
        drill.is_over = True
        await asyncio.gather(*writers)
        await ground.wait_converged(group=FILTER)
        await asyncio.sleep(APART_S + 0.5)
        drill.is_over = False
        tell("the last writes")
        await drill.write_last()
        written_s = time.monotonic() - began_s
        equal_s, held = await drill.wait_equal()
        drill.is_over = True
        for task in subscribers:
            task.cancel()
        await asyncio.gather(*subscribers, return_exceptions=True)
    judged = drill.judged()
    wrong = sorted({topic for one in held for topic in drill.wrong(one)})
    unequal = sorted(topic for topic in {*held[0], *held[1], *held[2]} if len({one.get(topic) for one in held}) > 1)
    return {
        "topics": settings.topics,
        "writes": len(drill.writes),
        "deletions": sum(not write.value for write in drill.writes),
        "written_s": round(written_s, 1),
        "retained_at_the_end": [len(one) for one in held],
        "equal_after_s": None if equal_s is None else round(equal_s, 1),
        "judged": len(judged),
        "deletions_judged": sum(not write.value for write in judged.values()),
        "unequal": unequal,
        "wrong": wrong,
        "received_live": drill.live,
        "held": {"equal": not unequal and equal_s is not None, "last_write_wins": not wrong},
    }


async def _while_running(faults: Awaitable[None], writers: list[asyncio.Task[None]]) -> None:
    """Run the faults; a writer that fails ends the drill."""
    running = asyncio.ensure_future(faults)
    done, _ = await asyncio.wait([running, *writers], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    await running
