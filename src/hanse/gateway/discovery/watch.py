"""Updates of the table of topics: from time to time, and on demand, the gateway listens at brokers.

Rules:

1. At most `AT_ONCE` brokers are listened to at a time. Each run is bounded (`listening`), and so is the table.
2. A topic that a broker has not shown for `expiry_s` is forgotten, but only after a run there that was not cut short.
3. A look on demand subscribes only to the filters in question, at up to `LOOKED_AT_ONCE` brokers at once. It ends when
   a client publishes to a matching topic, or after its time. Looks for the same filters share one; beyond `LOOKS_MAX`
   none is begun. For a shared subscription, the look subscribes to the plain filter: as a member of the group it would
   take messages from others.
4. Brokers with a federator are left out (rule 4 of `listening`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.discovery.listening import LISTEN_S, RUN_BYTES_MAX, TIME, Credentials, Run, listen
from hanse.gateway.discovery.topics import Topics
from hanse.gateway.placement import Broker
from hanse.protocol.topics import split_share

_log = logging.getLogger(__name__)

AT_ONCE: Final = 4
INTERVAL_S: Final = 60.0
EXPIRY_S: Final = 600.0
LOOKS_MAX: Final = 16
LOOKED_AT_ONCE: Final = 64
LOOK_S: Final = 0.5


class TopicWatch:
    """The watch of one gateway.

    Args:
        topics: the table to fill.
        dialler: opens connections to brokers.
        brokers: returns the brokers that are up.
        credentials: login of the sessions.
        interval_s: time from the end of one round to the beginning of the next.
        listen_s: duration of one run.
        expiry_s: rule 2.
    """

    def __init__(
        self,
        topics: Topics,
        dialler: Dialler,
        brokers: Callable[[], Iterable[Broker]],
        *,
        credentials: Credentials = Credentials(),  # noqa: B008 - immutable
        interval_s: float = INTERVAL_S,
        listen_s: float = LISTEN_S,
        expiry_s: float = EXPIRY_S,
        bytes_max: int = RUN_BYTES_MAX,
    ) -> None:
        self.topics = topics
        # Runs by how they ended, and looks that were not begun.
        self.runs: dict[str, int] = {}
        self.looks_refused = 0
        self._dialler = dialler
        self._brokers = brokers
        self._credentials = credentials
        self._interval_s = interval_s
        self._listen_s = listen_s
        self._expiry_s = expiry_s
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._known: set[str] = set()
        self._looks: dict[tuple[str, ...], asyncio.Task[None]] = {}
        self._refused: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = self._loop.create_task(self._stay(), name="topics")

    async def stop(self) -> None:
        """End everything that is under way."""
        tasks = [*self._looks.values(), *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _stay(self) -> None:
        while True:
            await self.round()
            await asyncio.sleep(self._interval_s)

    def _listened(self) -> list[Broker]:
        return [broker for broker in self._brokers() if not broker.federator]

    async def round(self) -> None:
        """Listen at every broker once."""
        brokers = self._listened()
        ids = {broker.id for broker in brokers}
        for broker_id in self._known - ids:
            self.topics.expire(broker_id, self._loop.time() - self._expiry_s)
        self._known = ids | set(self.topics.counts())
        places = asyncio.Semaphore(AT_ONCE)

        async def one(broker: Broker) -> None:
            async with places:
                await self._run(broker)

        await asyncio.gather(*(one(broker) for broker in brokers))

    async def _run(self, broker: Broker) -> None:
        begin = self._loop.time()

        def on_topic(topic: str, is_retained: bool) -> None:
            self.topics.saw(broker.id, topic, self._loop.time(), is_retained=is_retained)

        run = await listen(
            self._dialler,
            broker,
            on_topic,
            for_s=self._listen_s,
            bytes_max=self._bytes_max,
            credentials=self._credentials,
        )
        self._count(broker, run)
        if run.ended == TIME:
            self.topics.expire(broker.id, begin - self._expiry_s)

    def _count(self, broker: Broker, run: Run) -> None:
        self.runs[run.ended] = self.runs.get(run.ended, 0) + 1
        if run.is_good:
            self._refused.discard(broker.id)
        elif broker.id not in self._refused:
            self._refused.add(broker.id)
            _log.warning(
                "a broker's topics cannot be discovered", extra={"broker": broker.id, "why": run.detail or run.ended}
            )

    async def look(self, filters: Sequence[str], timeout_s: float = LOOK_S) -> bool:
        """Check now which broker has topics that match (rule 3); return False if no look was begun."""
        key = tuple(sorted({split_share(one)[1] for one in filters}))
        task = self._looks.get(key)
        if task is None:
            if len(self._looks) >= LOOKS_MAX:
                self.looks_refused += 1
                return False
            task = self._looks[key] = self._loop.create_task(self._look(key, timeout_s), name="look for topics")
            task.add_done_callback(lambda _: self._looks.pop(key, None))
        # A client that goes must not end the look for the others.
        await asyncio.shield(task)
        return True

    async def _look(self, filters: tuple[str, ...], timeout_s: float) -> None:
        enough = asyncio.Event()
        until = self._loop.time() + timeout_s
        places = asyncio.Semaphore(LOOKED_AT_ONCE)

        async def one(broker: Broker) -> None:
            async with places:
                left_s = until - self._loop.time()
                if left_s > 0 and not enough.is_set():
                    await look_at(broker, left_s)

        async def look_at(broker: Broker, left_s: float) -> None:
            def on_topic(topic: str, is_retained: bool) -> None:
                self.topics.saw(broker.id, topic, self._loop.time(), is_retained=is_retained)
                if not is_retained:
                    enough.set()

            run = await listen(
                self._dialler,
                broker,
                on_topic,
                filters=filters,
                for_s=left_s,
                bytes_max=self._bytes_max,
                credentials=self._credentials,
                enough=enough,
            )
            self._count(broker, run)

        await asyncio.gather(*(one(broker) for broker in self._listened()))
