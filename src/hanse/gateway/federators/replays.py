"""Replays for the clients of one worker that have moved: requested from federators, combined, and shared.

Rules:

1. Clients that arrive at a broker within `GATHER_S` share the requests: 200 clients with one filter cost as one does.
2. First the new broker's federator must have joined the meshes of the filters. From then on the client gets
   publications from its broker.
3. Then the other federators are asked, above all that of the lost broker, which had the client's interest until then.
   The new broker's federator is asked last, and reports what its broker will send anyway.
4. A publication is identified by origin, epoch and id. It is replayed once, even if several federators retain it, with
   the greatest age. Publications of one origin keep their order.
5. A replay is complete if the new broker's federator has joined and answered. Otherwise the rest is replayed
   nevertheless.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from hanse.errors import HanseError, RemoteError
from hanse.gateway.federators.connection import FederatorConnection
from hanse.gateway.federators.federators import Federators
from hanse.gateway.session.replayed import Replayed, read_replayed
from hanse.protocol.packets import split
from hanse.protocol.trie import FilterIndex
from hanse.request_channel import Answer

GATHER_S: Final = 0.02
JOIN_S: Final = 2.0
ANSWER_S: Final = 3.0
# Delay between the answers of the others and the last question: publications cross the mesh in less.
CROSSING_S: Final = 0.05
# Federators that are asked for one replay. In larger federations the mesh of the new broker's federator must suffice.
ASKED_MAX: Final = 32
# Bytes of one replay in memory, over all clients that share it. A federator retains 64 MiB.
BYTES_MAX: Final = 64 << 20

Id = tuple[int, int, int]
_log = logging.getLogger(__name__)


class _Batch:
    """The clients that share a replay."""

    def __init__(self, done: asyncio.Future["Replay"]) -> None:
        self.filters: set[str] = set()
        self.former: set[str] = set()
        self.age_ms = 0
        self.done = done


class Replay:
    """Publications that federators retain for some filters, oldest first."""

    def __init__(self, filters: Iterable[str], items: Sequence[Replayed], *, is_complete: bool) -> None:
        self.is_complete = is_complete
        self._items = items
        self._places: dict[str, list[int]] = {}
        index = FilterIndex()
        for one in filters:
            index.add(one)
        for place, item in enumerate(items):
            for one in index.match(item.topic.decode("utf-8", "replace")):
                self._places.setdefault(one, []).append(place)

    def __len__(self) -> int:
        return len(self._items)

    def matching(self, filters: Sequence[str]) -> list[Replayed]:
        """Return the publications that these filters match."""
        if len(filters) == 1:
            places: Iterable[int] = self._places.get(filters[0], ())
        else:
            places = sorted({place for one in filters for place in self._places.get(one, ())})
        return [self._items[place] for place in places]


class Replays:
    """All replays of one worker.

    Args:
        federators: the connections.
        clock: the clock of the sessions.
        counters: receives `replays`, `replays_incomplete`, `replay_publications`, `replay_failures`.
    """

    def __init__(self, federators: Federators, clock: Callable[[], float], counters: Counter[str]) -> None:
        self._federators = federators
        self._clock = clock
        self._counters = counters
        self._batches: dict[str, _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, broker_id: str, former_id: str, filters: Iterable[str], age_ms: int) -> Replay:
        """Return the publications that federators retain for a client that has moved from one broker to another."""
        loop = asyncio.get_running_loop()
        batch = self._batches.get(broker_id)
        if batch is None:
            batch = self._batches[broker_id] = _Batch(loop.create_future())
            loop.call_later(GATHER_S, self._start, broker_id)
        batch.filters.update(filters)
        batch.former.add(former_id)
        batch.age_ms = max(batch.age_ms, age_ms)
        return await asyncio.shield(batch.done)

    def _start(self, broker_id: str) -> None:
        batch = self._batches.pop(broker_id)
        self._run(self._fill(broker_id, batch))

    async def _fill(self, broker_id: str, batch: _Batch) -> None:
        filters = sorted(batch.filters)
        collected = _Collected(self._clock)
        is_complete = False
        try:
            host = self._federators.connection(broker_id)
            is_joined = await self._join(broker_id, filters)
            others = self._others(broker_id, batch.former)
            asked = [self._collect(one, filters, batch.age_ms, collected, is_host=False) for one in others]
            await asyncio.gather(*asked)
            if host is not None and host.is_open:
                if others:
                    await asyncio.sleep(CROSSING_S)
                is_answered = await self._collect(host, filters, batch.age_ms, collected, is_host=True)
                is_complete = is_joined and is_answered and not collected.is_cut
        finally:
            self._counters["replays"] += 1
            self._counters["replays_incomplete"] += not is_complete
            items = collected.items()
            self._counters["replay_publications"] += len(items)
            if not batch.done.done():
                batch.done.set_result(Replay(filters, items, is_complete=is_complete))

    async def _join(self, broker_id: str, filters: list[str]) -> bool:
        try:
            await self._federators.join(broker_id, filters, JOIN_S)
        except HanseError as error:
            _log.info("replay at broker %s: %s", broker_id, error)
            return False
        return True

    def _others(self, broker_id: str, former: set[str]) -> list[FederatorConnection]:
        known = [one for one in self._federators.broker_ids if one != broker_id]
        known.sort(key=lambda one: one not in former)
        found = [self._federators.connection(one) for one in known]
        return [one for one in found if one is not None and one.is_open][: ASKED_MAX - 1]

    async def _collect(
        self,
        connection: FederatorConnection,
        filters: list[str],
        age_ms: int,
        collected: "_Collected",
        *,
        is_host: bool,
    ) -> bool:
        fields = {"filters": filters, "age_ms": age_ms, "is_host": is_host}
        try:
            take = collected.take_of_host if is_host else collected.take
            take(await connection.ask("replay", fields, timeout_s=ANSWER_S, on_part=take))
        except HanseError as error:
            self._counters["replay_failures"] += 1
            _log.info("replay of the federator at %s: %s", connection.endpoint, error)
            return False
        return True

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Collected:
    """The publications of one replay, from all federators (rule 4)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.is_cut = False
        self._clock = clock
        self._found: dict[Id, Replayed] = {}
        self._pending: set[Id] = set()
        self._at_host: set[Id] = set()
        self._bytes = 0

    def take_of_host(self, answer: Answer) -> None:
        """Take one part of the answer of the new broker's federator."""
        self.take(answer)
        for origin, epoch, first, count, _, is_sent in answer.fields["rows"]:
            if is_sent:
                self._at_host.update((origin, epoch, first + k) for k in range(count))

    def take(self, answer: Answer) -> None:
        """Take one part of an answer.

        Raises:
            RemoteError: it is malformed.
        """
        now = self._clock()
        packets = [answer.body[start:end] for start, end in split(answer.body)]
        at = 0
        try:
            for origin, epoch, first, count, age_ms, is_sent in answer.fields["rows"]:
                ids = [(origin, epoch, first + k) for k in range(count)]
                if not is_sent:
                    self._pending.update(ids)
                    continue
                time = now - age_ms / 1000
                for one, packet in zip(ids, packets[at : at + count], strict=True):
                    self._add(one, packet, time)
                at += count
        except (KeyError, TypeError, ValueError):
            raise RemoteError("A federator's replay cannot be read; is it of another version?") from None

    def _add(self, one: Id, packet: bytes, time: float) -> None:
        known = self._found.get(one)
        if known is not None:
            if time < known.time:
                self._found[one] = known._replace(time=time)
            return
        self._bytes += len(packet)
        if self._bytes > BYTES_MAX:
            self.is_cut = True
            return
        item = read_replayed(packet, time)
        if item is not None:
            self._found[one] = item

    def items(self) -> list[Replayed]:
        """Return all by time, and those of one origin by id."""
        found = [(item.time, one) for one, item in self._found.items() if one not in self._pending]
        found.sort()
        waiting: dict[tuple[int, int], list[Id]] = {}
        for _, one in found:
            waiting.setdefault(one[:2], []).append(one)
        for ids in waiting.values():
            ids.sort(reverse=True)
        ordered = [waiting[one[:2]].pop() for _, one in found]
        return [self._found[one]._replace(is_at_host=one in self._at_host) for one in ordered]
