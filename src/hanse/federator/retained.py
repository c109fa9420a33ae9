"""Retained messages for a broker's first interest in a filter.

A covering subscription never replays (Retain Handling 2), so what was retained elsewhere before anybody here asked has
to be fetched once: the federator asks all others over the management group, each looks into its broker by a short
session of its own, and sends what it finds to the asker alone, over the group `$hanse/federator/<id>` that the asker
joins for the time.

Rules: what the asker's own broker has retained wins, then the first answer for a topic; a fetch ends `FETCH_S` after
its last request; filters that are wanted meanwhile join it; at most `RETAINED_MAX` messages a broker and request are
sent, and what is cut off is counted. Requests and answers hold federation names: what may leave a broker, and what
may enter one, holds for retained messages as for all others (`crossing`).
"""

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from hanse.errors import HanseError
from hanse.federator.crossing import Crossing
from hanse.federator.naming import exported, imported
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication, encode
from hanse.mqtt.subscriptions import Subscription
from hanse.protocol.identity import private_group
from hanse.protocol.messages import Run
from hanse.protocol.packets import split, topic_of
from hanse.protocol.settings import MANAGEMENT_GROUP
from hanse.protocol.topics import check_filter, may_cross

FETCH_S = 5.0
# A broker sends what it has retained right after the SUBACK; this long a silence means that it is done.
QUIET_S = 0.1
RETAINED_MAX = 10_000
# Answers under way at once, filters in one of them, and filters that wait to be asked for: more are refused and
# counted.
REQUESTS_MAX = 64
FILTERS_A_REQUEST_MAX = 64
FILTERS_WAITING_MAX = 100_000
_log = logging.getLogger(__name__)


class _Collector(ClientHandler):
    def __init__(self, filters: int) -> None:
        self.found: list[Publication] = []
        self.last = 0.0
        self.answered = asyncio.Event()
        self._unanswered = filters

    def on_publications(self, publications: list[Publication]) -> None:
        retained = [publication for publication in publications if publication.retain]
        if retained:  # what clients publish meanwhile is no sign that more is to come
            self.found += retained
            self.last = asyncio.get_running_loop().time()

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        self.last = asyncio.get_running_loop().time()
        self._unanswered -= len(answers)
        if self._unanswered <= 0:
            self.answered.set()


async def look(settings: ClientSettings, filters: Iterable[str]) -> dict[str, Publication]:
    """What a broker has retained under some filters, by topic."""
    subscriptions = [Subscription(wanted, qos=2, no_local=False, retain_handling=0) for wanted in sorted(set(filters))]
    if not subscriptions:
        return {}
    collector = _Collector(len(subscriptions))
    client = Client(replace(settings, clean_start=True, session_expiry_s=0, auto_ack=True), collector)
    client.subscribe(subscriptions)
    await client.start(must_connect=True)
    try:
        async with asyncio.timeout(FETCH_S):
            await collector.answered.wait()
            # What was retained is on its way by now; what clients publish from now on is not asked for.
            client.unsubscribe([subscription.filter for subscription in subscriptions])
            while (left_s := collector.last + QUIET_S - asyncio.get_running_loop().time()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(left_s)
    finally:
        await client.stop()
    return {found.topic: found for found in collector.found}


class RetainedFetcher:
    """Both roles: asking for this broker, and answering from it.

    Args:
        crossing: what may leave the broker and enter it, and under which names.
        publish: send a packet to a group over the federation.
        join, part: take part in the private group, and no longer.
        deliver: hand a packet to the host broker.
        counters: to count into.
    """

    def __init__(
        self,
        identity: int,
        client_settings: ClientSettings,
        *,
        crossing: Crossing,
        publish: Callable[[str, list[bytes]], None],
        is_known: Callable[[str], bool],
        join: Callable[[str], None],
        part: Callable[[str], None],
        deliver: Callable[[bytes, int], None],
        counters: Counter[str],
    ) -> None:
        self._identity = identity
        self._client_settings = client_settings
        self._crossing = crossing
        self._publish = publish
        self._is_known = is_known
        self._join = join
        self._part = part
        self._deliver = deliver
        self._tasks: set[asyncio.Task[None]] = set()
        # Federation filters to ask for and the local ones behind them; the local topics that this broker has by now.
        self._waiting: list[str] = []
        self._here: list[str] = []
        self._is_fetching = False
        self._has_more = asyncio.Event()
        self._present: set[str] = set()
        self._lock = asyncio.Lock()
        self.counters = counters

    def want(self, filters: list[str], here: list[str]) -> None:
        """Filters that are of interest here for the first time.

        Args:
            filters: as the federation has them.
            here: as clients of this broker have them.
        """
        room = max(0, FILTERS_WAITING_MAX - len(self._waiting))
        if len(filters) > room:
            self._count("retained_fetches_refused", len(filters) - room)
        self._waiting += filters[:room]
        self._here += here[:room]
        self._has_more.set()
        if self._waiting and not self._is_fetching:
            self._is_fetching = True
            self._start(self._fetch())

    async def _fetch(self) -> None:
        """Look what is here, ask the others for the rest, and stay reachable for their answers."""
        self._join(private_group(self._identity))
        try:
            while self._waiting:
                filters, self._waiting = self._waiting[:FILTERS_A_REQUEST_MAX], self._waiting[FILTERS_A_REQUEST_MAX:]
                here, self._here = self._here, []
                self._present.update(await self._look(here))
                request = {"kind": "retained", "to": self._identity, "filters": filters}
                self._publish(MANAGEMENT_GROUP, [encode(MANAGEMENT_GROUP, json.dumps(request).encode(), qos=1)])
                await self._wait_for_answers()
        finally:
            self._is_fetching = False
            self._present.clear()
            self._part(private_group(self._identity))

    async def _wait_for_answers(self) -> None:
        """As long as answers may come, or until there is more to ask."""
        if not self._waiting:
            self._has_more.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_more.wait(), FETCH_S)

    def on_request(self, filters: list[str], asker: int) -> None:
        """Another federator asks."""
        if len(self._tasks) < REQUESTS_MAX and asker != self._identity:
            self._start(self._answer(filters[:FILTERS_A_REQUEST_MAX], asker))
        else:
            self._count("retained_requests_refused")

    async def _answer(self, filters: list[str], asker: int) -> None:
        local: list[str] = []
        for wanted in filters:
            with contextlib.suppress(HanseError):  # it is no filter: somebody else's mistake
                check_filter(wanted)
                local += self._crossing.inward_filter(wanted)
        found = await self._look(local)
        packets = {one.topic: one.packet for one in exported(self._crossing, found.values()) if may_cross(one.topic)}
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
            self._count("retained_sent", min(len(packets), RETAINED_MAX))

    def on_answer(self, run: Run) -> None:
        """What another broker had retained for us."""
        if not self._is_fetching:
            self._count("retained_too_late", run.length)
            return
        body, count = imported(self._crossing, run.body)
        self._count("retained_not_imported", run.length - count)
        for start, end in split(body):
            packet = body[start:end]
            topic = topic_of(packet)
            if topic in self._present:
                self._count("retained_already_here")
                continue
            self._present.add(topic)
            self._deliver(packet, run.qos)
            self._count("retained_delivered")

    async def _look(self, filters: Iterable[str]) -> dict[str, Publication]:
        async with self._lock:  # one session, one client id
            try:
                return await look(self._client_settings, filters)
            except (HanseError, TimeoutError) as error:
                self._count("retained_looks_failed")
                _log.warning("looking for retained messages failed: %s", error)
                return {}

    def _count(self, name: str, count: int = 1) -> None:
        if count:
            self.counters[name] += count

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
