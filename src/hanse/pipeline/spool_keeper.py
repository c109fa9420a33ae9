"""Writer of a collector's spool that survives full disks and failed syncs, and publishes the collector's status.

Both kinds of collector use it: the client of a broker (`collector`) and the leaf of a federation (`leaf_collector`).

Rules:

1. `write` returns when the rows would survive a power cut, however long that takes, or returns None if the collector
   must stop first.
2. If the spool is full or a sync fails, the keeper reports it in the status, logs it once, and retries.
3. The janitor sweeps this producer's segments every minute. The status file is replaced a few times per second.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from hanse.errors import HanseError
from hanse.pipeline.collector_settings import SpoolSettings
from hanse.pipeline.collector_status import CollectorStatus, State, write_status
from hanse.pipeline.spool import (
    SpoolBrokenError,
    SpoolFullError,
    SpoolLimits,
    SpoolLockedError,
    SpoolWriter,
    sweep,
)

_log = logging.getLogger("hanse.collect")

FULL_RETRY_S = 1.0
STATUS_INTERVAL_S = 0.25
SWEEP_INTERVAL_S = 60.0
LOCK_RETRY_S = 0.2

Told = TypeVar("Told")


class SpoolKeeper:
    """Spool of one producer, from `open` to `close`.

    Args:
        settings: location and limits of the spool.
        status: the collector's status, which is written beside the segments.
        stopping: set when the collector must stop.
        is_busy: returns whether data waits to be written.
        state_now: returns the collector's state while the spool has space.
        look: called before each regular write of the status, to update polled values.
    """

    def __init__(
        self,
        settings: SpoolSettings,
        status: CollectorStatus,
        stopping: asyncio.Event,
        *,
        is_busy: Callable[[], bool],
        state_now: Callable[[], State],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._status = status
        self._stopping = stopping
        self._is_busy = is_busy
        self._state_now = state_now
        self._look = look
        self._writer: SpoolWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._active_at = time.monotonic()

    @property
    def writer(self) -> SpoolWriter:
        """The writer; `open` must have been called."""
        assert self._writer is not None, "open() comes first"
        return self._writer

    # --- opening and closing ----------------------------------------------------------------------------------------

    async def open(self, *, waits_for_lock: bool = False) -> bool:
        """Open the spool; return False if the collector was told to stop first.

        Raises:
            SpoolLockedError: another collector writes to the spool, and `waits_for_lock` is false.
            LocalError: the spool cannot be used.
        """
        given = self._settings
        limits = SpoolLimits(free_bytes_min=given.free_bytes_min, spool_bytes_max=given.spool_bytes_max)
        while not self._stopping.is_set():
            try:
                writer = SpoolWriter(given.spool, given.client_id, limits=limits)
            except SpoolLockedError:
                if not waits_for_lock:
                    raise
                await self._pause(LOCK_RETRY_S)
                continue
            if writer.recovery.bytes_cut or writer.recovery.blocks_indexed:
                _log.warning(
                    "The spool's last writer stopped in the middle of a write: %d blocks kept, %d torn bytes cut.",
                    writer.recovery.blocks_indexed,
                    writer.recovery.bytes_cut,
                )
            self._writer = writer
            return True
        return False

    def begin(self) -> None:
        """Start the tasks that update the status and sweep the spool."""
        self._tasks = [asyncio.create_task(self._keep_status()), asyncio.create_task(self._keep_swept())]

    async def end(self) -> None:
        """Stop these tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def close(self) -> None:
        """Close the files; does nothing if they were never open."""
        if self._writer is not None:
            self._writer.close()

    # --- writing ----------------------------------------------------------------------------------------------------

    async def write(self, build: Callable[[int], tuple[pa.RecordBatch, Told]], times_us: Sequence[int]) -> Told | None:
        """Make rows durable; return the second result of `build`, or None if told to stop while the spool is full.

        Args:
            build: takes the number of the first row, returns the rows and a value that is not None; runs in a thread.
            times_us: the times of receipt, in any order, because a clock may be set back.
        """
        writer = self.writer
        first = writer.position.rows
        batch, told = await asyncio.to_thread(build, first)
        earliest_us, latest_us = min(times_us), max(times_us)
        while True:
            try:
                # A reopened writer may have found the complete block on disk.
                if self.writer.position.rows == first:
                    await asyncio.to_thread(
                        self.writer.append, batch, received_us_min=earliest_us, received_us_max=latest_us
                    )
                break
            except SpoolFullError as error:
                self._say_full(error)
            except SpoolBrokenError as error:
                self._say_full(error)
                self._reopen()
            if self._stopping.is_set():
                return None
            await self._pause(FULL_RETRY_S)
        self._status.bytes_spooled += batch.nbytes
        self._status.spooled += batch.num_rows
        self._status.commits += 1
        self.note_activity()
        if self._status.state == "full":
            self.say(self._state_now())
            _log.warning("The spool has space again; acknowledging.")
        return told

    def _say_full(self, error: HanseError) -> None:
        self._status.full_waits += 1
        if self._status.state != "full":
            _log.error("%s Nothing is acknowledged until then.", error)
        self.say("full", str(error))

    def _reopen(self) -> None:
        limits = self.writer.limits
        self.writer.close()
        with contextlib.suppress(SpoolFullError, SpoolBrokenError):
            self._writer = SpoolWriter(self._settings.spool, self._settings.client_id, limits=limits)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    # --- status and sweeping ------------------------------------------------------------------------------------------

    def note_activity(self) -> None:
        """Restart the idle time, because a message was received or written."""
        self._active_at = time.monotonic()

    def say(self, state: State, reason: str = "") -> None:
        """Set the collector's state and write the status file."""
        status = self._status
        status.state, status.reason = state, reason
        status.idle_s = 0.0 if self._is_busy() else round(time.monotonic() - self._active_at, 3)
        if self._writer is not None:
            with contextlib.suppress(OSError):
                write_status(self._settings.spool, self._settings.client_id, status)

    async def _keep_status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_INTERVAL_S)
            self._look()
            self.say(self._status.state, self._status.reason)

    async def _keep_swept(self) -> None:
        while True:
            try:
                report = await asyncio.to_thread(
                    sweep,
                    self._settings.spool,
                    now_us=time.time_ns() // 1000,
                    age_s_min=self._settings.retention_s,
                    producers=[self._settings.client_id],
                )
                self._status.segments_swept += report.segments_deleted
                if report.held_back_by:
                    _log.warning("Old segments are kept for the consumers %s.", ", ".join(report.held_back_by))
            except (HanseError, OSError) as error:
                _log.warning("The janitor could not sweep: %s", error)
            await asyncio.sleep(SWEEP_INTERVAL_S)
