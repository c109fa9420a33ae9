"""Collector that is a member of a federation: its rows include the origin, the message id and the number of hops.

It is a leaf (`hanse.federator.leaf`) that delivers to the spool. Rules:

1. A delivery with QoS 1 or 2 is acknowledged to the federation only after the block with it is on disk.
2. Nothing is spooled twice. The ring of ids identifies messages that are already on disk; the spool itself supplies the
   ids of messages that were written just before a kill.
3. The federation's window provides back-pressure: unacknowledged messages wait at the neighbours. QoS 0 has no
   back-pressure; while `QUEUE_BYTES_MAX` wait for the disk, QoS 0 messages are dropped and counted.
4. When it stops, the federation treats it as an absent member and keeps messages for it. With `is_leaving` it leaves
   the federation instead.
"""

import asyncio
import functools
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hanse.errors import LocalError
from hanse.federator.leaf import Leaf
from hanse.federator.settings import FederatorSettings
from hanse.federator.store import StateDirectory
from hanse.pipeline import frame_rows
from hanse.pipeline.collector_settings import SpoolSettings
from hanse.pipeline.collector_status import CollectorStatus, State
from hanse.pipeline.commit_queue import CommitQueue
from hanse.pipeline.frame_rows import Received
from hanse.pipeline.spool_keeper import SpoolKeeper
from hanse.protocol.messages import Run
from hanse.protocol.topics import filter_may_cross

_log = logging.getLogger("hanse.collect")

# Limit for messages received and not yet durable. The protocol's window of 16 MiB bounds QoS 1 and 2, so this limit
# affects QoS 0 only.
QUEUE_BYTES_MAX = 64 * 1024 * 1024
# Queue bytes counted per publication beyond its own size.
_ROW_OVERHEAD_BYTES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSettings(SpoolSettings):
    """Settings of a leaf: its place in the federation, and the spool for its rows."""

    federator: FederatorSettings
    """Id, neighbours, TLS of the links, and the settings that all federators of the federation share."""
    is_leaving: bool = False
    """Leave the federation at the end, so that it keeps nothing for this collector."""

    def __post_init__(self) -> None:
        SpoolSettings.__post_init__(self)
        if self.federator.id is None or not self.federator.neighbour:
            raise LocalError(
                "A collector in a federation needs --id N and --federation URL, a federator's link address."
            )
        for one in self.topics:
            if one.startswith("$share/") or not filter_may_cross(one):
                raise LocalError(f"{one!r} never crosses a federation: collect it at its broker, with --url.")

    def _derived_client_id(self) -> str:
        return f"hanse-leaf-{self.federator.id}"

    @property
    def state_dir(self) -> Path:
        """State directory. It is kept beside the rows, because neither is of use without the other."""
        return Path(self.spool) / self.client_id / "federator"


class _Waiting(NamedTuple):
    received: Received
    done: Callable[[], None]


class LeafCollector:
    """Collects as one leaf into one producer's spool."""

    def __init__(self, settings: LeafSettings) -> None:
        self.settings = settings
        self.status = CollectorStatus(pid=os.getpid(), neighbours=0)
        self._stopping = asyncio.Event()
        self._queue: CommitQueue[_Waiting] = CommitQueue(
            _size_of, interval_s=settings.commit_interval_s, bytes_max=settings.commit_bytes_max
        )
        self.keeper = SpoolKeeper(
            settings,
            self.status,
            self._stopping,
            is_busy=lambda: bool(self._queue.bytes),
            state_now=self._state_now,
            look=self._look,
        )
        self._leaf: Leaf | None = None

    async def run(self) -> None:
        """Collect until `stop` is called.

        Raises:
            LocalError: the spool or the state directory cannot be used.
        """
        try:
            if await self.keeper.open():
                with StateDirectory(self.settings.state_dir) as state:
                    await self._collect(state)
        finally:
            self.keeper.say("stopped", self.status.reason)
            self.keeper.close()

    def stop(self) -> None:
        """Make the messages received so far durable, acknowledge them, then end `run`."""
        self._stopping.set()
        self._queue.wake()

    async def _collect(self, state: StateDirectory) -> None:
        given = self.settings
        delivered = await asyncio.to_thread(frame_rows.last_ids, given.spool, given.client_id)
        leaf = self._leaf = Leaf(
            given.federator, given.topics, state, take=self._take, on_links=self._on_links, delivered=delivered
        )
        self.keeper.say("connecting")
        self.keeper.begin()
        try:
            leaf.start()
            while self._queue or not self._stopping.is_set():
                await self._queue.wait_for_some()
                if not self._stopping.is_set():
                    await self._queue.gather()
                if not await self._commit():
                    break
        finally:
            await leaf.stop(is_leaving=given.is_leaving)
            await self.keeper.end()
            self._look()

    def _look(self) -> None:
        if self._leaf is not None:
            self.status.copies = self._leaf.copies

    def _state_now(self) -> State:
        return "collecting" if self.status.neighbours else "connecting"

    def _on_links(self, count: int) -> None:
        self.status.connects += count > (self.status.neighbours or 0)
        self.status.neighbours = count
        self.keeper.note_activity()
        if self.status.state in {"connecting", "collecting"}:
            self.keeper.say(self._state_now(), "" if count else "no link to a federator is up")

    def _take(self, runs: list[Run], done: Callable[[], None]) -> None:
        if self._stopping.is_set():
            return  # unacknowledged, so the neighbour sends it again
        received = Received(time.time_ns() // 1000, runs)
        self.status.received += received.rows
        if self._queue.bytes > QUEUE_BYTES_MAX:
            received = Received(received.received_us, [run for run in runs if run.qos])
            self._drop(sum(run.length for run in runs if not run.qos))
        if not received.runs:
            done()  # the batch may need an acknowledgement for publications addressed to others
            return
        self._queue.add([_Waiting(received, done)])
        self.status.queue_bytes = self._queue.bytes
        self.status.queue_bytes_peak = max(self.status.queue_bytes_peak, self._queue.bytes)

    def _drop(self, count: int) -> None:
        if count and not self.status.dropped:
            _log.warning("%d bytes wait for the disk; dropping QoS 0 messages meanwhile.", self._queue.bytes)
        self.status.dropped += count

    async def _commit(self) -> bool:
        """Write and acknowledge one block; return False if told to stop while the spool is full."""
        waiting, size = self._queue.take()
        if not waiting:
            return True
        batches = [one.received for one in waiting]
        owed = await self.keeper.write(
            functools.partial(frame_rows.build, self.settings.client_id, batches),
            [one.received_us for one in batches],
        )
        if owed is None:
            return False
        for one in waiting:
            one.done()
        self.status.acknowledged += owed
        self._queue.done(size)
        self.status.queue_bytes = self._queue.bytes
        return True


def _size_of(waiting: _Waiting) -> int:
    return sum(len(run.body) + run.length * _ROW_OVERHEAD_BYTES for run in waiting.received.runs)
