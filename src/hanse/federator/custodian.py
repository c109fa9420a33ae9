"""Disk and receipts behind custody: carries out the effects of `hanse.protocol.custody`.

    outbox/       batches that wait for a route, a neighbour or the host broker
    delivered     ids that the host broker has acknowledged, for the next process
    packets       packet identifiers of the host broker's deliveries, and their ids
    journal       QoS 2 to the host broker: message ids, packet identifiers, released or not
    wanted.json   filters that others wanted when it was last written

Rules:

1. `Stored` is reported when a record would survive a power cut. One `commit` runs at a time, in a thread, for all
   records since the last one. A disk that refuses is reported and tried again; until then nobody gets an
   acknowledgement.
2. A full outbox acts as the operator chose: `stop` (no acknowledgements until there is capacity), `drop-oldest` or
   `drop-newest`, with each drop counted.
3. Messages on disk age: an expiry that passed meanwhile is applied when they are read.
4. Losses on disk are logged, counted and put among the gaps of `/accounts` (`losses`).
5. Reading is bounded per turn. The protocol requests the rest; that of `BLOCKED` follows in the next turns. A file that
   cannot be opened is tried again, and later requests wait.
"""

import asyncio
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hanse.errors import LocalError, RemoteError, Unavailable
from hanse.federator import records
from hanse.federator.aging import aged
from hanse.federator.gaps import GapBook
from hanse.federator.journal import DeliveryJournal
from hanse.federator.losses import Losses
from hanse.federator.outbox import Outbox
from hanse.federator.ring import DeliveredRing
from hanse.federator.segment import Payload
from hanse.federator.slots import PacketSlots
from hanse.logs import RepeatLimit
from hanse.protocol.effects import Discard, Fetch, Store
from hanse.protocol.events import Event, Fetched, Stored
from hanse.protocol.messages import BLOCKED, Run

_log = logging.getLogger(__name__)

FETCH_RECORDS = 256
FETCH_BYTES = 1 << 20
# Delay of the next attempt after the disk refused, or while the outbox is full.
RETRY_S = 1.0
# Delay after which discards get a commit of their own. A lost one only causes a duplicate.
TIDY_S = 1.0
OVERFLOWS = ("stop", "drop-oldest", "drop-newest")


class Custodian:
    """Disk of one federator for custody, from `__init__` to `stop`.

    Args:
        directory: state directory.
        bytes_max: limit of the outbox.
        overflow: one of `OVERFLOWS`.
        step: function that gives the protocol an event.
        counters: counters of drops.
        gaps: where losses on disk are noted.

    Raises:
        LocalError: A file or directory cannot be created or read.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bytes_max: int,
        overflow: str,
        step: Callable[[Event], None],
        counters: Counter[str],
        gaps: GapBook | None = None,
    ) -> None:
        self.outbox = Outbox(directory / "outbox", bytes_max=bytes_max)
        self._losses = Losses(self.outbox, counters=counters, gaps=GapBook() if gaps is None else gaps)
        self._losses.report()
        is_known = (directory / "delivered").exists()
        self.ring = DeliveredRing(directory / "delivered")
        self.slots = PacketSlots(directory / "packets")
        self.journal = DeliveryJournal(directory / "journal", is_expected=is_known)
        if self.journal.lost:
            counters["journal_damaged"] += 1
            _log.error(
                "the journal of deliveries is damaged: %d packet identifiers are released at the host broker, "
                "which may get messages of QoS 2 twice that were under way when the federator ended. Check the disk.",
                len(self.journal.lost),
            )
        self._wanted_path = directory / "wanted.json"
        self._overflow = overflow
        self._step = step
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        # Stores that a full outbox did not accept, in order; none overtakes.
        self._unstored: deque[Store] = deque()
        # Per route: positions that were acknowledged before they were written.
        self._done_unstored: dict[int, set[int]] = {}
        # Requested reads. The first one is under way, or failed.
        self._fetches: deque[Fetch] = deque()
        self._ends: dict[int, int] = {}
        self._is_committing = False
        self._is_dirty = False
        # A full disk fails ten times per second.
        self._not_written = RepeatLimit()
        self._not_read = RepeatLimit()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    # --- state of the former process
    # ---------------------------------------------------------------------------------------

    def read_wanted(self) -> list[str]:
        """Return the filters that others wanted; none if the file is unreadable, because claims will tell."""
        try:
            found = json.loads(self._wanted_path.read_text())
            return [group for group in found if isinstance(group, str)] if isinstance(found, list) else []
        except (OSError, ValueError):
            return []

    def write_wanted(self, groups: Iterable[str]) -> None:
        """Write the filters that others want. A disk that refuses is counted, and tried again at the next change."""
        beside = self._wanted_path.with_suffix(".new")
        try:
            beside.write_text(json.dumps(sorted(groups)))
            beside.replace(self._wanted_path)
        except OSError:
            self._counters["wanted_not_written"] += 1

    # --- effects ------------------------------------------------------------------------------------------------------

    def store(self, effect: Store) -> None:
        """Write records. `Stored` follows."""
        self._unstored.append(effect)
        self._append()

    def _append(self) -> None:
        while self._unstored:
            effect = self._unstored[0]
            now_s = time.time()
            done = self._done_unstored.get(effect.way, set())
            payloads = [
                b"" if position in done else records.encode(record, now_s)
                for position, record in enumerate(effect.records, effect.position)
            ]
            try:
                position = self._put(effect.way, payloads)
            except Unavailable as error:
                if self._counters["outbox_full"] == 0:
                    _log.warning("the outbox is full: %s", error)
                self._counters["outbox_full"] += 1
                self._retry_later()
                return
            if position != effect.position:
                raise LocalError(
                    f"The outbox gave position {position} where {effect.position} was expected; stop the federator and "
                    "start it again, it reads the outbox anew."
                )
            self._unstored.popleft()
            self._ends[effect.way] = end = position + len(payloads)
            if done:
                self.outbox.discard(effect.way, sorted(number for number in done if number < end))
                self._done_unstored[effect.way] = {number for number in done if number >= end}
            self._counters["outbox_stored"] += len(payloads)
        self._commit()

    def _put(self, way: int, payloads: Sequence[Payload]) -> int:
        try:
            return self.outbox.append(way, payloads)
        except Unavailable:
            if self._overflow == "stop":
                raise
            if self._overflow == "drop-oldest":
                dropped = self.outbox.drop_oldest(way, Outbox.bytes_of(payloads))
                self._counters["dropped_outbox_oldest"] += dropped
                return self.outbox.append(way, payloads)
            # An empty record in the place of a dropped one, because positions are consecutive.
            position = self.outbox.append(way, [b""] * len(payloads))
            self._counters["dropped_outbox_newest"] += sum(1 for payload in payloads if payload)
            return position

    def fetch(self, effect: Fetch) -> None:
        """Read records after the current requests. `Fetched` follows, in the order of the requests."""
        self._fetches.append(effect)
        if len(self._fetches) == 1:
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Read one piece for the first request."""
        if self._is_stopped:
            return
        way, start, stop = self._fetches[0].way, self._fetches[0].start, self._fetches[0].end
        try:
            found = self.outbox.read(way, start, FETCH_RECORDS, FETCH_BYTES)
        except LocalError as error:
            self._counters["outbox_not_read"] += 1
            more = self._not_read.take(str(error), self._loop.time())
            if more is not None:
                _log.error("the outbox could not be read, its messages wait: %s%s", error, more)
            self._loop.call_later(RETRY_S, self._read)
            return
        self._not_read.end()
        if self.outbox.damages:
            self._losses.report()
        wanted = [record for record in found if record[0] < stop]
        # The records found say nothing about later ones, unless those are beyond the end, or there are none.
        end = found[-1][0] + 1 if found and len(wanted) == len(found) else stop
        if way == BLOCKED and end < stop:
            self._fetches[0] = Fetch(way, end, stop)
        else:
            self._fetches.popleft()  # the protocol requests the rest when it has capacity
        if self._fetches:
            self._loop.call_soon(self._read)
        records = [(position, tuple(self._runs_of(way, position, payload))) for position, payload in wanted]
        empty = [position for position, runs in records if not runs]
        if empty:
            self.outbox.discard(way, empty)
        self._step(Fetched(way, tuple(record for record in records if record[1]), end))

    def _runs_of(self, way: int, position: int, payload: bytes) -> list[Run]:
        try:
            parts = records.decode(payload)
        except RemoteError as error:
            self._counters["outbox_records_refused"] += 1
            _log.warning("record %d of route %d in the outbox is refused: %s", position, way, error)
            return []
        now_s = time.time()
        kept = [piece for written_s, runs in parts for run in runs for piece in aged(run, now_s - written_s)]
        read = sum(run.length for _, runs in parts for run in runs)
        self._counters["expired_in_outbox"] += read - sum(run.length for run in kept)
        return kept

    def discard(self, effect: Discard) -> None:
        """Discard records."""
        self.outbox.discard(effect.way, effect.positions)
        if self._unstored:
            self._note_done(effect)
            self._append()
        elif not self._is_dirty:
            self._is_dirty = True
            self._loop.call_later(TIDY_S, self._tidy)

    def _note_done(self, effect: Discard) -> None:
        """Note positions that were acknowledged before they were written, so that the outbox can drop them."""
        first = min((store.position for store in self._unstored if store.way == effect.way), default=None)
        if first is not None:
            done = self._done_unstored.setdefault(effect.way, set())
            done.update(position for position in effect.positions if position >= first)

    def _tidy(self) -> None:
        self._is_dirty = False
        if not self._is_stopped:
            self._commit()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        if self._is_committing or self._is_stopped:
            return
        self._is_committing = True
        ends, self._ends = self._ends, {}
        future = self._loop.run_in_executor(None, self.outbox.commit)
        future.add_done_callback(lambda done: self._committed(done, ends))

    def _committed(self, done: "asyncio.Future[None]", ends: dict[int, int]) -> None:
        self._is_committing = False
        if done.cancelled() or self._is_stopped:
            return
        error = done.exception()
        if error is not None:
            self._counters["outbox_not_written"] += 1
            more = self._not_written.take(str(error), self._loop.time())
            if more is not None:
                _log.error(
                    "the outbox could not be written, new messages are not acknowledged: %s%s",
                    error,
                    more,
                )
            self._ends = {**ends, **self._ends}
            self._retry_later()
            return
        if self._not_written.end():
            _log.warning("the outbox is written again")
        for way, end in ends.items():
            self._step(Stored(way, end))
        if self._ends:
            self._commit()

    def _retry_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._timer = None
        if not self._is_stopped:
            self._append()

    def stop(self) -> None:
        """Write the remaining records, and close."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            self.outbox.commit()
        except LocalError as error:
            _log.error("the outbox could not be written at the end: %s", error)
        for part in (self.outbox, self.ring, self.slots, self.journal):
            part.close()
