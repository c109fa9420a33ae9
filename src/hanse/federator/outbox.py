"""Outbox: publications that could not yet be sent wait here, on disk, first in, first out, one log per *way*.

A way is the number of a destination: a neighbour's id, or a negative number for the host broker and others. Theory of
operation:

- `append` puts records into memory and gives them positions. `commit` writes them at the end of the way's last segment
  and returns when they would survive a power cut. The caller acknowledges upstream only after that.
- `read` returns the records that are not done, from a position on, whether they are on disk yet or not. `discard` marks
  records as done. The mark goes to disk with the next `commit`, without a sync, because a lost mark only means that a
  record is sent again.
- A segment without live records is deleted. One with few (stuck among many that left) is rewritten without the others,
  so the disk holds at most some four times the live bytes.

Rules:

1. Nothing is acknowledged by this module before it is on disk: a record is durable when a `commit` that began after its
   `append` has returned.
2. Positions of a way only grow, also over restarts. The last segment of a way therefore stays, or an empty one with the
   next position in its name. Positions in a `.done` file count as used. (A position whose record never reached the disk
   may be given again, because nobody can remember it.)
3. A disk that refuses (full, broken) loses nothing that is in memory: `commit` raises, and the next one writes the same
   again, from the same place. It does so after a failed sync as well, because data that the kernel then calls clean may
   not be on disk.
4. No content of the files makes a start fail. A torn end (a power cut) is cut off. A damaged record is skipped, and
   whole records behind it are used. A damaged header is rebuilt from the records. A file without any record is put
   aside. All losses by damage are counted and kept in `damages`, with a copy of the file.
5. After each commit `<way>.end` holds the end of the way. This distinguishes the lost end of a log from an interrupted
   write. The file is not synced, and is written after the log, so it never names more than the disk had.
6. The outbox is bounded: `bytes_max` for all live records, `pending_bytes_max` for those not on disk yet, 9 bytes of
   memory per record on disk. Records beyond the bounds are refused. The caller decides what to drop, and drops are
   counted.

`commit` may run in a thread of its own while everything else is called from the loop. The lock is never held over a
write or a sync, only over reads of `read`. Calls of `commit` wait for one another. The directory belongs to one process
(`StateDirectory` ensures that).
"""

import contextlib
import errno
import os
import re
import struct
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from hanse.errors import LocalError, Unavailable
from hanse.federator.damaged import keep_copy, put_aside
from hanse.federator.segment import (
    HEADER_BYTES,
    LIVE,
    PAYLOAD_BYTES_MAX,
    RECORD_BYTES,
    SEGMENT_BYTES_MAX,
    Payload,
    Segment,
    Stretch,
    disk_bytes,
    new_salt,
)

# Bytes that wait for `commit`, in memory. A larger value survives a longer stall of the disk; 30,000 messages/s of 1
# KiB fill this in two seconds. (The retention of the protocol has the same limit.)
PENDING_BYTES_MAX = 64 << 20

# Bytes of one read from the disk. A larger value saves calls; a smaller one wastes less if few of the records are still
# live.
_READ_BYTES = 256 << 10

# A segment with at most one live byte in this many is rewritten without the others.
_COMPACT_SHARE = 4

# A file smaller than `segment_bytes` divided by this stays until it has no live record, even the last of a way: a new
# file costs more than some kilobytes that wait.
_SMALL_SHARE = 8

_NAME = re.compile(r"(-?\d{1,20})_(\d{1,20})\.(log|done|log\.new)")
_END_NAME = re.compile(r"(-?\d{1,20})\.end")
_END = struct.Struct("<QQQI")  # first position of the last segment, its bytes, next position, checksum
_POSITION_MAX = 2**63

# Damages that are described. More are only counted.
DAMAGES_MAX = 64


@dataclass(frozen=True, slots=True)
class Damage:
    """Records of a way lost on disk.

    Attributes:
        way: number of the way.
        file: name of the log.
        start, size: the damaged bytes; `size` is 0 if the file lacks them.
        first, end: positions that they may have held, `end` excluded.
        records: largest number of them that were not done.
        before, after: payloads of the records around them; empty if there is none.
    """

    way: int
    file: str
    start: int
    size: int
    first: int
    end: int
    records: int
    before: bytes = b""
    after: bytes = b""


@dataclass(slots=True)
class OutboxCounters:
    """Counters that only grow, from the start of the process on."""

    appended: int = 0
    discarded: int = 0
    dropped: int = 0  # by `drop_oldest`
    damaged: int = 0  # ranges of a file without records, or records with a wrong checksum
    damaged_records: int = 0  # largest number of records lost by damage
    damaged_bytes: int = 0
    torn: int = 0  # ends of a file that were cut off at the start
    put_aside: int = 0  # files without a readable header
    commits: int = 0
    commits_failed: int = 0
    compactions: int = 0


@dataclass(frozen=True, slots=True)
class _End:
    """The last noted end of a way: its last segment, and its next position; 0 if nothing is noted."""

    first: int
    next: int


class _Way:
    """Segments of a way, then records that `commit` is writing or could not write, then later ones."""

    __slots__ = ("flight", "next", "pending", "segments")

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.flight: list[Payload | None] = []  # None: discarded before it was written
        self.pending: list[Payload | None] = []
        self.next = 0

    @property
    def flight_first(self) -> int:
        return self.next - len(self.pending) - len(self.flight)

    def first(self) -> int:
        for segment in self.segments:
            if segment.live:
                return segment.position(segment.done.find(LIVE))
        for kept, first in ((self.flight, self.flight_first), (self.pending, self.next - len(self.pending))):
            for index, payload in enumerate(kept):
                if payload is not None:
                    return first + index
        return self.next


class Outbox:
    """Outbox in a directory; see the module for the rules.

    Args:
        directory: created if it is missing.
        bytes_max: limit of all live records, `RECORD_BYTES` each and their payloads.
        segment_bytes: size from which a file is followed by a new one.
        pending_bytes_max: limit of the bytes that wait in memory for `commit`.

    Attributes:
        bytes: bytes of the live records.
        records: number of the live records.
        pending_bytes: bytes of them that are not on disk yet.
        counters: counters since the start.
        damages: losses on disk, for the caller to report and clear.

    Raises:
        LocalError: The directory cannot be created or read.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bytes_max: int,
        segment_bytes: int = 8 << 20,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        if not HEADER_BYTES < segment_bytes <= SEGMENT_BYTES_MAX:
            raise LocalError(f"segment_bytes is {segment_bytes}; give {HEADER_BYTES + 1} to {SEGMENT_BYTES_MAX}.")
        self.bytes = 0
        self.records = 0
        self.pending_bytes = 0
        self.counters = OutboxCounters()
        self.damages: list[Damage] = []
        self._directory = directory
        self._bytes_max = bytes_max
        self._segment_bytes = segment_bytes
        self._pending_bytes_max = pending_bytes_max
        self._ways: dict[int, _Way] = {}
        self._touched: set[int] = set()  # ways that `commit` has something to do for
        self._lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._is_closed = False
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._recover()
        except OSError as error:
            raise LocalError(
                f"The outbox in {directory} cannot be read: {error.strerror}; check the disk and its rights."
            ) from error

    @staticmethod
    def bytes_of(payloads: Sequence[Payload]) -> int:
        """Return the bytes of these records in the measure of `bytes_max`, as `drop_oldest` needs it."""
        return sum(map(disk_bytes, payloads))

    def ways(self) -> dict[int, tuple[int, int]]:
        """Return for each way the first position that is not done, and the next one that will be given."""
        with self._lock:
            return {way: (state.first(), state.next) for way, state in sorted(self._ways.items())}

    def append(self, way: int, payloads: Sequence[Payload]) -> int:
        """Append records, all or none, in memory until `commit`, and return the position of the first.

        Raises:
            Unavailable: `bytes_max` would be exceeded (drop something, or wait), or too much would wait in memory (the
                disk does not keep up: wait). Nothing was appended.
            LocalError: A payload is larger than any outbox accepts, or the outbox is closed.
        """
        self._check_open()
        needed = self.bytes_of(payloads)
        if self.bytes + needed > self._bytes_max:
            raise Unavailable(
                f"The outbox is full: {self.bytes} bytes of {self._bytes_max}, {needed} more for {way}; "
                "drop the oldest, or hold back."
            )
        if self.pending_bytes + needed > self._pending_bytes_max and self.pending_bytes:
            raise Unavailable(
                f"The disk of the outbox does not keep up: {self.pending_bytes} bytes of {self._pending_bytes_max} "
                f"wait for it, {needed} more for {way}; hold back until a commit succeeds."
            )
        if needed > PAYLOAD_BYTES_MAX and max(map(disk_bytes, payloads)) > PAYLOAD_BYTES_MAX:
            raise LocalError(f"A record of more than {PAYLOAD_BYTES_MAX} bytes was given for {way}; refuse it before.")
        with self._lock:
            state = self._ways.get(way)
            if state is None:
                state = self._ways[way] = _Way()
            first = state.next
            state.pending.extend(payloads)
            state.next = first + len(payloads)
            self._touched.add(way)
            self.bytes += needed
            self.pending_bytes += needed
            self.records += len(payloads)
        self.counters.appended += len(payloads)
        return first

    def read(self, way: int, position: int, count_max: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Return (position, payload) of live records from `position` on, in order; at least one if there is one.

        Args:
            way: number of the way.
            position: first wanted position.
            count_max: largest number of records.
            bytes_max: largest number of payload bytes, not counting the first record.

        Raises:
            LocalError: A file cannot be opened. (An unreadable record is damaged: skipped and counted.)
        """
        self._check_open()
        found: list[tuple[int, bytes]] = []
        with self._lock:
            state = self._ways.get(way)
            if state is None or count_max <= 0:
                return found
            left = bytes_max
            for segment in state.segments[_segment_at(state.segments, position) :]:
                if segment.live and segment.end > position:
                    left = self._read_segment(segment, position, found, count_max, left)
                    if left < 0:
                        return found
            first = state.flight_first
            for kept in (state.flight, state.pending):
                for index in range(max(0, position - first), len(kept)):
                    payload = kept[index]
                    if payload is None:
                        continue
                    whole = payload if isinstance(payload, bytes) else b"".join(payload)
                    if len(found) == count_max or (found and len(whole) > left):
                        return found
                    found.append((first + index, whole))
                    left = max(0, left - len(whole))
                first += len(kept)
        return found

    def discard(self, way: int, positions: Iterable[int]) -> None:
        """Mark records as done. Ignore positions that already were, or never existed."""
        self._check_open()
        with self._lock:
            state = self._ways.get(way)
            if state is None:
                return
            for start, end in _runs(positions):
                self.counters.discarded += self._discard(way, state, start, end)

    def drop_oldest(self, way: int, bytes_needed: int) -> int:
        """Discard records from the front of a way to free that many bytes; return how many, each a counted loss.

        If even an empty outbox could not hold that much, drop nothing.
        """
        self._check_open()
        dropped = 0
        with self._lock:
            state = self._ways.get(way)
            if state is None or bytes_needed > self._bytes_max:
                return 0
            for segment in state.segments:
                while segment.live and (excess := self.bytes + bytes_needed - self._bytes_max) > 0:
                    low = segment.done.find(LIVE)
                    offsets = segment.offsets
                    high = bisect_left(offsets, offsets[low] + excess, low + 1, len(offsets) - 1)
                    dropped += self._discard(way, state, segment.position(low), segment.position(high - 1) + 1)
            position = state.flight_first
            while position < state.next and self.bytes + bytes_needed > self._bytes_max:
                dropped += self._discard(way, state, position, position + 1)
                position += 1
        self.counters.dropped += dropped
        return dropped

    def commit(self) -> None:
        """Write and sync everything appended before. The method may run in a thread. Without changes it costs nothing.

        Raises:
            LocalError: The disk refuses. Unwritten records are still pending, and the next call tries again.
        """
        with self._commit_lock:
            self._check_open()
            self._commit()

    def close(self) -> None:
        """Commit, and refuse later calls. Do nothing if it is closed.

        Raises:
            LocalError: The disk refuses that last commit; the outbox is closed nevertheless.
        """
        with self._commit_lock:
            if self._is_closed:
                return
            try:
                self._commit()
            finally:
                self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise LocalError(f"The outbox in {self._directory} is closed; nothing can be done with it any more.")

    def _discard(self, way: int, state: _Way, start: int, end: int) -> int:
        count = freed = 0
        segments = state.segments
        for number in range(_segment_at(segments, start), len(segments)):
            segment = segments[number]
            if segment.first >= end:
                break
            gone, gone_bytes = segment.discard(start, end)
            count += gone
            freed += gone_bytes
        first = state.flight_first
        if end > first:
            for kept in (state.flight, state.pending):
                for index in range(max(0, start - first), min(end - first, len(kept))):
                    payload = kept[index]
                    if payload is not None:
                        kept[index] = None
                        count += 1
                        freed += disk_bytes(payload)
                        self.pending_bytes -= disk_bytes(payload)
                first += len(kept)
        if count:
            self.records -= count
            self.bytes -= freed
            self._touched.add(way)
        return count

    def _read_segment(
        self, segment: Segment, position: int, found: list[tuple[int, bytes]], count_max: int, left: int
    ) -> int:
        """Add a segment's records to those found. Return the rest of the limit in bytes, -1 if a limit is reached."""
        index = segment.index(position)
        offsets = segment.offsets
        with _opened(segment.path, os.O_RDONLY) as log:
            while (index := segment.done.find(LIVE, index)) >= 0:
                # Some records between may be done, or damaged: the loop goes on for the rest.
                count = count_max - len(found)
                reach = offsets[index] + min(left + RECORD_BYTES * count, _READ_BYTES)
                stop = min(max(bisect_right(offsets, reach, index + 1) - 1, index + 1), index + count)
                try:
                    data = os.pread(log, offsets[stop] - offsets[index], offsets[index])
                except OSError as error:
                    if error.errno != errno.EIO:
                        raise
                    # An unreadable place on the disk costs only the record on it.
                    stop = index + 1
                    data = self._read_one(log, segment, index)
                records, gone, damaged = segment.records(data, index, stop)
                for at in damaged:
                    before = next((payload for position, payload in reversed(records) if position < at), b"")
                    after = next((payload for position, payload in records if position > at), b"")
                    start, size = segment.extent(at)
                    name = segment.path.name
                    self._note(Damage(segment.way, name, start, size, at, at + 1, 1, before, after), segment.path)
                for at in gone:
                    self._discard(segment.way, self._ways[segment.way], at, at + 1)
                for record in records:
                    length = len(record[1])
                    if length > left and found:
                        return -1
                    found.append(record)
                    left = left - length if left > length else 0
                if len(found) == count_max:
                    return -1
                index = stop
        return left

    def _note(self, damage: Damage, path: Path) -> None:
        """Count lost records, and keep a copy of their file."""
        self.counters.damaged += 1
        self.counters.damaged_records += damage.records
        self.counters.damaged_bytes += damage.size
        if len(self.damages) < DAMAGES_MAX:
            self.damages.append(damage)
        keep_copy(path)

    @staticmethod
    def _read_one(log: int, segment: Segment, index: int) -> bytes:
        start, end = segment.offsets[index], segment.offsets[index + 1]
        with contextlib.suppress(OSError):
            return os.pread(log, end - start, start)
        return b""

    # Commit. Only changes that others see are made under the lock.

    def _commit(self) -> None:
        with self._lock:
            touched, self._touched = sorted(self._touched), set()
            for way in touched:
                state = self._ways[way]
                # Records that an earlier commit could not write are still there, and go first.
                state.flight += state.pending
                state.pending = []
        failures: list[LocalError] = []
        # Done records go first, so that a full disk has space for the next steps. A segment that `_write` has followed
        # up with a new one may be done as well.
        steps = (self._reap, self._write, self._reap, self._note_done, self._retire, self._compact)
        for step in steps:
            for way in touched:
                try:
                    step(way, self._ways[way])
                except LocalError as error:
                    failures.append(error)
                    self._touched.add(way)
                except BaseException:
                    self._touched.update(touched)
                    raise
        if failures:
            self.counters.commits_failed += 1
            raise failures[0]
        if touched:
            self.counters.commits += 1

    def _write(self, way: int, state: _Way) -> None:
        while True:
            with self._lock:
                position, payloads = state.flight_first, list(state.flight)
            if not payloads:
                return
            if all(payload is None for payload in payloads):
                with self._lock:
                    state.flight.clear()
                return
            last = state.segments[-1] if state.segments else None
            is_new = last is None or last.size >= self._segment_bytes
            segment = Segment(self._directory, way, position, new_salt()) if last is None or is_new else last
            data, relative, used = segment.encode(position, payloads, self._segment_bytes)
            if not used:
                # Only if positions outrun what a file can name, which takes four billion discarded in memory.
                segment, is_new = Segment(self._directory, way, position, new_salt()), True
                data, relative, used = segment.encode(position, payloads, self._segment_bytes)
            if is_new:
                self._create(segment, data)
            else:
                self._append_log(segment, data)
            sizes = [disk_bytes(payload) for payload in payloads[:used] if payload is not None]
            with self._lock:
                segment.extend(relative, sizes)
                if is_new:
                    state.segments.append(segment)
                for index in range(used):
                    payload = payloads[index]
                    if payload is None:
                        continue
                    if state.flight[index] is None:
                        segment.discard(position + index, position + index + 1)
                        self._touched.add(way)
                    else:
                        self.pending_bytes -= disk_bytes(payload)
                del state.flight[:used]
            self._write_end(segment)

    def _write_end(self, segment: Segment) -> None:
        """Apply rule 5. If it fails, the noted end is smaller, and nothing is missed."""
        path = self._directory / f"{segment.way}.end"
        fields = _END.pack(segment.first, segment.size, segment.end, 0)[:-4]
        with contextlib.suppress(LocalError), _opened(path, os.O_WRONLY | os.O_CREAT) as file:
            _write_all(file, fields + crc32(fields, segment.way & 0xFFFFFFFF).to_bytes(4, "little"), 0)

    def _append_log(self, segment: Segment, data: bytes) -> None:
        was_torn, segment.is_torn = segment.is_torn, True
        with _opened(segment.path, os.O_WRONLY) as log:
            if was_torn:
                os.ftruncate(log, segment.size)
            _write_all(log, data, segment.size)
            os.fdatasync(log)
        segment.is_torn = False

    def _create(self, segment: Segment, data: bytes) -> None:
        """Create a file with its first records; its name is on disk as well when this returns."""
        try:
            self._write_file(segment.path, segment.header() + data)
            self._sync_directory()
        except LocalError:
            with contextlib.suppress(OSError):
                segment.path.unlink(missing_ok=True)
            raise

    def _note_done(self, _: int, state: _Way) -> None:
        for segment in list(state.segments):
            # A file without live records is deleted soon, and needs no notes; the last of a way may stay.
            if not segment.is_dirty or not (segment.live or segment is state.segments[-1]):
                continue
            with self._lock:
                at, data, runs = segment.take_done()
            try:
                with _opened(segment.done_path, os.O_WRONLY | os.O_CREAT) as file:
                    _write_all(file, data, at)
            except LocalError:
                with self._lock:
                    segment.untake_done(runs)
                raise
            with self._lock:
                segment.note_done(runs)

    def _reap(self, _: int, state: _Way) -> None:
        """Delete segments without live records, except the last of a way."""
        gone = [segment for segment in state.segments[:-1] if not segment.live]
        if not gone:
            return
        with self._lock:
            state.segments = [segment for segment in state.segments if segment not in gone]
        for segment in gone:
            try:
                segment.path.unlink(missing_ok=True)
                segment.done_path.unlink(missing_ok=True)
            except OSError as error:
                raise _refused(segment.path, error) from error
        self._sync_directory()

    def _retire(self, way: int, state: _Way) -> None:
        """Apply rule 2: delete a last segment that is done once an empty one keeps the next position."""
        if not state.segments:
            return
        last = state.segments[-1]
        if not last.live and self._is_worth_a_file(last):
            self._succeed(way, state)
            self._reap(way, state)

    def _is_worth_a_file(self, segment: Segment) -> bool:
        return segment.size >= HEADER_BYTES + self._segment_bytes // _SMALL_SHARE

    def _succeed(self, way: int, state: _Way) -> None:
        """Add an empty segment at the end of a way, whose name keeps the next position."""
        with self._lock:
            position = state.flight_first
        successor = Segment(self._directory, way, position, new_salt())
        self._create(successor, b"")
        with self._lock:
            state.segments.append(successor)
        self._write_end(successor)

    def _compact(self, _: int, state: _Way) -> None:
        for segment in state.segments[:-1]:
            is_sparse = segment.live_bytes * _COMPACT_SHARE <= segment.size
            if not segment.live or not is_sparse or not self._is_worth_a_file(segment):
                continue
            try:
                old = segment.path.read_bytes()
            except OSError as error:
                raise _refused(segment.path, error) from error
            with self._lock:
                data, kept = segment.compacted(old)
            beside = segment.path.with_name(segment.path.name + ".new")
            self._write_file(beside, data)
            with self._lock:
                try:
                    beside.replace(segment.path)
                except OSError as error:
                    raise _refused(segment.path, error) from error
                segment.replace(kept)
            self._sync_directory()
            self.counters.compactions += 1

    def _write_file(self, path: Path, data: bytes) -> None:
        with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            _write_all(file, data, 0)
            os.fsync(file)

    def _sync_directory(self) -> None:
        with _opened(self._directory, os.O_RDONLY | os.O_DIRECTORY) as directory:
            os.fsync(directory)

    # The start.

    def _recover(self) -> None:
        files: dict[int, dict[int, set[str]]] = {}
        for path in self._directory.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is None:
                end = _END_NAME.fullmatch(path.name)
                if end is not None and path.name == f"{int(end[1])}.end":
                    files.setdefault(int(end[1]), {})
                continue
            way, first, kind = int(match[1]), int(match[2]), match[3]
            if kind == "log.new":
                path.unlink()  # an interrupted compaction: the log is complete
            elif first < _POSITION_MAX and path.name == f"{way}_{first}.{kind}":
                files.setdefault(way, {}).setdefault(first, set()).add(kind)
        for way, firsts in sorted(files.items()):
            self._ways[way] = self._recover_way(way, firsts)
            self._touched.add(way)

    def _recover_way(self, way: int, firsts: dict[int, set[str]]) -> _Way:
        state = _Way()
        noted = self._read_end(way)
        has_lost_name = False
        done: list[tuple[int, int]] = []
        lost: list[tuple[Path, Stretch]] = []
        order = sorted(firsts)
        for number, first in enumerate(order):
            state.next = max(state.next, first)
            path = self._directory / f"{way}_{first}.log"
            done_path = path.with_suffix(".done")
            if "log" not in firsts[first]:
                done_path.unlink()  # its log was deleted first
                continue
            data = path.read_bytes()
            is_last = first == order[-1]
            committed = noted.next if is_last else _POSITION_MAX
            segment, stretches, part = self._recover_segment(path, way, first, data, committed)
            lost += [(path, stretch) for stretch in stretches]
            following = noted.next if is_last else order[number + 1]
            if segment is None:
                if self._set_aside(path, data):
                    # As many positions as it can have held stay unused.
                    guess = first + len(data) // RECORD_BYTES
                    state.next = max(state.next, guess)
                    has_lost_name = True
                    lost.append((path, Stretch(0, len(data), first, max(following, first) or guess, b"", b"")))
                elif following > first:
                    lost.append((path, Stretch(0, len(data), first, following, b"", b"")))
                done_path.unlink(missing_ok=True)
                continue
            if "done" in firsts[first]:
                raw = done_path.read_bytes()
                done += segment.done_ranges(raw)
                state.next = max(state.next, segment.scan_done(raw))
            state.segments.append(segment)
            state.next = max(state.next, segment.end)
            self.records += segment.live
            self.bytes += segment.live_bytes
            torn = len(data) - segment.size
            missing = following > segment.next if is_last else torn > 0
            if missing:
                lost.append((path, Stretch(segment.size, torn, segment.next, following, part, b"")))
            if torn and is_last:
                if missing:
                    keep_copy(path)
                else:
                    self.counters.torn += 1
                os.truncate(path, segment.size)
        if not order and noted.next:
            path = self._directory / f"{way}_{noted.first}.log"
            lost.append((path, Stretch(0, 0, noted.first, noted.next, b"", b"")))
        state.next = max(state.next, noted.next)
        has_lost_name = has_lost_name or noted.next > (state.segments[-1].end if state.segments else 0)
        for path, stretch in lost:
            records = _not_done(stretch.first, stretch.end, done)
            self._note(
                Damage(
                    way,
                    path.name,
                    stretch.start,
                    stretch.size,
                    stretch.first,
                    stretch.end,
                    records,
                    stretch.before,
                    stretch.after,
                ),
                path,
            )
        if has_lost_name:
            # Rule 2, because the name that kept the position is gone. A disk that refuses will raise at `commit`.
            with contextlib.suppress(LocalError):
                self._succeed(way, state)
        return state

    def _recover_segment(
        self, path: Path, way: int, first: int, data: bytes, committed: int
    ) -> tuple[Segment | None, list[Stretch], bytes]:
        """Return the segment of a log, its damaged ranges, and the payload of its last part."""
        segment = Segment.read(self._directory, way, first, data)
        if segment is not None:
            return segment, *segment.scan(data, committed)
        segment = Segment.salvage(self._directory, way, first, data)
        if segment is None:
            return None, [], b""
        stretches, part = segment.scan(data, committed)
        keep_copy(path)
        with _opened(path, os.O_WRONLY) as log:
            _write_all(log, segment.header(), 0)
            os.fsync(log)
        return segment, [Stretch(0, HEADER_BYTES, first, first, b"", b""), *stretches], part

    def _read_end(self, way: int) -> _End:
        try:
            raw = (self._directory / f"{way}.end").read_bytes()
        except FileNotFoundError:
            return _End(0, 0)
        if len(raw) != _END.size or crc32(raw[:-4], way & 0xFFFFFFFF) != int.from_bytes(raw[-4:], "little"):
            return _End(0, 0)
        first, _, following, _ = _END.unpack(raw)
        return _End(first, following)

    def _set_aside(self, path: Path, data: bytes) -> bool:
        """Return whether the file was damaged; otherwise it was created, and cut off before its header was on disk."""
        if len(data) < HEADER_BYTES or not data.strip(b"\0"):
            path.unlink()
            self.counters.torn += 1
            return False
        self.counters.put_aside += 1
        put_aside(path, f"expected the header of the segment {path.name}")
        return True


def _segment_at(segments: list[Segment], position: int) -> int:
    """Return the number of the segment that would hold a position; 0 if all are beyond it."""
    return max(0, bisect_right(segments, position, key=_first) - 1)


def _first(segment: Segment) -> int:
    return segment.first


def _not_done(first: int, end: int, done: list[tuple[int, int]]) -> int:
    """Return how many positions from `first` to before `end` lie in none of the ranges."""
    at, count = first, 0
    for start, length in sorted(done):
        count += max(0, min(start, end) - at)
        at = max(at, start + length)
    return count + max(0, end - at)


def _runs(positions: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Return positions as ranges. Usually they are consecutive and form one range."""
    if isinstance(positions, range) and positions.step == 1:
        if positions:
            yield positions.start, positions.stop
        return
    start = end = -1
    for position in positions:
        if position == end:
            end += 1
            continue
        if end >= 0:
            yield start, end
        start, end = position, position + 1
    if end >= 0:
        yield start, end


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """Yield a descriptor. An error of the system while it is open is a `LocalError` with the file's name."""
    try:
        file = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            yield file
        finally:
            os.close(file)
    except OSError as error:
        raise _refused(path, error) from error


def _write_all(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view = view[written:]
        at += written


def _refused(path: Path, error: OSError) -> LocalError:
    return LocalError(f"The outbox's {path} cannot be used: {error.strerror}; check the disk, its space and rights.")
