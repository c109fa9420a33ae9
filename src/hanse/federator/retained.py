"""Retained messages for a broker's first interest in a filter.

A covering subscription never replays (Retain Handling 2), so what was retained elsewhere before anybody here asked has
to be fetched once: the federator asks all others over the management group, each looks into its broker by a short
session of its own, and sends what it finds to the asker alone, over the group `$hanse/federator/<id>` that the asker
joins for the time.

Rules: what the asker's own broker has retained wins, then the first answer for a topic; a fetch ends `FETCH_S` after
its request; at most `RETAINED_MAX` messages a broker and fetch are sent, and what is cut off is counted.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from hanse.errors import HanseError
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication, encode
from hanse.mqtt.subscriptions import Subscription
from hanse.protocol.messages import Run
from hanse.protocol.packets import split, topic_of
from hanse.protocol.settings import MANAGEMENT_GROUP
from hanse.protocol.topics import may_cross

FETCH_S = 5.0
# A broker sends what it has retained right after the SUBACK; this long a silence means that it is done.
QUIET_S = 0.1
RETAINED_MAX = 10_000
# Fetches and answers under way at once, and filters in one of them: more are refused and counted.
REQUESTS_MAX = 64
FILTERS_A_REQUEST_MAX = 64
_log = logging.getLogger(__name__)


def private_group(identity: int) -> str:
    """The group in which one federator alone is interested."""
    return f"$hanse/federator/{identity}"


class _Collector(ClientHandler):
    def __init__(self) -> None:
        self.found: list[Publication] = []
        self.last = 0.0
        self.answered = asyncio.Event()

    def on_publications(self, publications: list[Publication]) -> None:
        self.found += [publication for publication in publications if publication.retain]
        self.last = asyncio.get_running_loop().time()

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:  # noqa: ARG002
        self.last = asyncio.get_running_loop().time()
        self.answered.set()


async def look(settings: ClientSettings, wanted: str) -> list[Publication]:
    """What a broker has retained under a filter."""
    collector = _Collector()
    client = Client(replace(settings, clean_start=True, session_expiry_s=0, auto_ack=True), collector)
    client.subscribe([Subscription(wanted, qos=2, no_local=False, retain_handling=0)])
    await client.start(must_connect=True)
    try:
        async with asyncio.timeout(FETCH_S):
            await collector.answered.wait()
            while (left_s := collector.last + QUIET_S - asyncio.get_running_loop().time()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(left_s)
    finally:
        await client.stop()
    return collector.found


class RetainedFetcher:
    """Both roles: asking for this broker, and answering from it.

    Args:
        publish: send a packet to a group over the federation.
        join, part: take part in the private group, and no longer.
        deliver: hand a run to the host broker.
    """

    def __init__(
        self,
        identity: int,
        client_settings: ClientSettings,
        *,
        publish: Callable[[str, list[bytes]], None],
        is_known: Callable[[str], bool],
        join: Callable[[str], None],
        part: Callable[[str], None],
        deliver: Callable[[bytes, int], None],
    ) -> None:
        self._identity = identity
        self._client_settings = replace(client_settings, client_id=f"{client_settings.client_id}-retained")
        self._publish = publish
        self._is_known = is_known
        self._join = join
        self._part = part
        self._deliver = deliver
        self._tasks: set[asyncio.Task[None]] = set()
        # How many fetches are under way, and the topics that this broker has by now.
        self._fetches = 0
        self._present: set[str] = set()
        self._lock = asyncio.Lock()
        self.counters: dict[str, int] = {}

    def want(self, filters: list[str]) -> None:
        """Filters that are of interest here for the first time."""
        for start in range(0, len(filters), FILTERS_A_REQUEST_MAX):
            if self._fetches >= REQUESTS_MAX:
                self._count("retained_fetches_refused", len(filters) - start)
                return
            self._start(self._fetch(filters[start : start + FILTERS_A_REQUEST_MAX]))

    async def _fetch(self, filters: list[str]) -> None:
        """Look what is here, ask the others for the rest, and stay reachable for their answers."""
        if not self._fetches:
            self._join(private_group(self._identity))
        self._fetches += 1
        try:
            for wanted in filters:
                with contextlib.suppress(HanseError, TimeoutError):
                    self._present.update(found.topic for found in await self._look(wanted))
            request = {"kind": "retained", "to": self._identity, "filters": filters}
            self._publish(MANAGEMENT_GROUP, [encode(MANAGEMENT_GROUP, json.dumps(request).encode(), qos=1)])
            await asyncio.sleep(FETCH_S)
        finally:
            self._fetches -= 1
            if not self._fetches:
                self._present.clear()
                self._part(private_group(self._identity))

    def on_request(self, filters: list[str], asker: int) -> None:
        """Another federator asks."""
        if len(self._tasks) < REQUESTS_MAX and asker != self._identity:
            self._start(self._answer(filters[:FILTERS_A_REQUEST_MAX], asker))
        else:
            self._count("retained_requests_refused")

    async def _answer(self, filters: list[str], asker: int) -> None:
        packets: dict[str, bytes] = {}
        for wanted in filters:
            with contextlib.suppress(HanseError, TimeoutError):
                for found in await self._look(wanted):
                    if may_cross(found.topic):
                        packets[found.topic] = found.packet
        if len(packets) > RETAINED_MAX:
            self._count("retained_cut_off", len(packets) - RETAINED_MAX)
        group = private_group(asker)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FETCH_S
        # The asker's claim of its private group may still be on its way.
        while packets and not self._is_known(group) and loop.time() < deadline:  # noqa: ASYNC110 - a deadline, not an event
            await asyncio.sleep(0.02)
        if packets:
            self._publish(group, [packets[topic] for topic in sorted(packets)[:RETAINED_MAX]])
            self._count("retained_sent", len(packets))

    def on_answer(self, run: Run) -> None:
        """What another broker had retained for us."""
        if not self._fetches:
            self._count("retained_too_late", run.length)
            return
        for start, end in split(run.body):
            packet = run.body[start:end]
            topic = topic_of(packet)
            if topic in self._present:
                self._count("retained_already_here")
                continue
            self._present.add(topic)
            self._deliver(packet, run.qos)
            self._count("retained_delivered")

    async def _look(self, wanted: str) -> list[Publication]:
        async with self._lock:  # one session, one client id
            return await look(self._client_settings, wanted)

    def _count(self, name: str, count: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + count

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("fetching retained messages failed: %s", task.exception())

    async def stop(self) -> None:
        """End what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
