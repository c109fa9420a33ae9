"""One file of the outbox: records of one way in the order of their positions, and a file that marks those done.

    <way>_<first position>.log    header, then records: one or more parts of salt, length, position, checksum, payload
    <way>_<first position>.done   (first position, count, checksum) of discarded records

Rules:

1. A segment's salt is random and begins each part of its records. A part can therefore be found again behind damage,
   and no bytes of a payload, or of earlier files on the disk, are mistaken for one.
2. The parts of a record are consecutive and carry its position. The upper bits of the length show which part is not the
   first, and which is not the last. A damaged record consists of its remaining parts.
3. Positions rise within a file. They may skip (records discarded before they were written, or by a compaction).
4. Memory holds only 9 bytes per record: its relative position and offset, and whether it is done. No file stays open,
   so the number of descriptors does not grow with the ways.
5. The bytes of a record count from its own beginning to that of the next: a damaged range belongs to the record before
   it.

This module knows nothing of threads; `Outbox` does.
"""

import os
import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

_HEADER = struct.Struct("<8sqQII")  # kind and version, way, first position, salt, checksum of the fields before
_RECORD = struct.Struct("<IIQI")  # salt, payload bytes, position, checksum
_DONE = struct.Struct("<QII")  # first position, count, checksum
_KIND = b"HANSEOB1"
_U32 = 0xFFFFFFFF
# In the length of a part: more parts of the record follow, and it is not the first. The rest is its bytes.
_MORE = 1 << 31
_CONTINUED = 1 << 30
_LENGTH = _CONTINUED - 1
_POSITION_MAX = 1 << 64

HEADER_BYTES = _HEADER.size
RECORD_BYTES = _RECORD.size  # bytes that each part of a record takes on disk beyond its payload
PAYLOAD_BYTES_MAX = _LENGTH
SEGMENT_BYTES_MAX = 1 << 31  # with the largest payload at its end, offsets still fit 32 bits

# Values of `done` for a record. Discarded ones are found by a pattern, without a list of them.
LIVE, DISCARDED, NOTED = 0, 1, 2
_RUNS = re.compile(rb"\x01+")


# A record is given as a whole, or in parts.
Payload = bytes | tuple[bytes, ...]


def disk_bytes(payload: Payload) -> int:
    """Return the bytes that a record takes on disk."""
    if isinstance(payload, bytes):
        return RECORD_BYTES + len(payload)
    return RECORD_BYTES * len(payload) + sum(map(len, payload))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Damaged bytes of a log.

    Attributes:
        start, size: their range.
        first, end: positions that they may have held, `end` excluded.
        before, after: payloads of the records around them; empty if there is none.
    """

    start: int
    size: int
    first: int
    end: int
    before: bytes
    after: bytes


class Segment:
    """One pair of files, and its state.

    Attributes:
        first: position that names it; none of its records has a smaller one.
        size: bytes of the log that are known to be valid; the next record goes there.
        live, live_bytes: number of records that are not done, and their bytes.
        is_torn: whether a write failed, so that bytes may lie beyond `size`.
        is_cut: whether its last record lost its last parts.
    """

    __slots__ = (
        "_damaged",
        "_dirty_end",
        "_dirty_start",
        "_done_size",
        "_relative",
        "done",
        "done_path",
        "first",
        "is_cut",
        "is_torn",
        "live",
        "live_bytes",
        "offsets",
        "path",
        "salt",
        "size",
        "way",
    )

    def __init__(self, directory: Path, way: int, first: int, salt: int) -> None:
        self.way = way
        self.first = first
        self.salt = salt
        self.path = directory / f"{way}_{first}.log"
        self.done_path = directory / f"{way}_{first}.done"
        self.size = HEADER_BYTES
        self.is_torn = False
        self.is_cut = False
        self.live = 0
        self.live_bytes = 0
        self._relative = array("I")  # position - first of each record
        self.offsets = array("I", [HEADER_BYTES])  # start of each record, and end of the last
        self.done = bytearray()
        self._damaged: set[int] = set()  # positions whose loss of parts was reported
        self._done_size = 0
        self._dirty_start = 0  # records that `DISCARDED` may be among
        self._dirty_end = 0

    @property
    def end(self) -> int:
        """Position after its last record."""
        return self.first + self._relative[-1] + 1 if self._relative else self.first

    def header(self) -> bytes:
        """Return the header of its log."""
        start = _HEADER.pack(_KIND, self.way, self.first, self.salt, 0)[:-4]
        return start + crc32(start).to_bytes(4, "little")

    def position(self, index: int) -> int:
        """Return the position of its record number `index`."""
        return self.first + self._relative[index]

    def index(self, position: int) -> int:
        """Return the number of the first record at `position` or after it."""
        wanted = position - self.first
        if wanted <= 0:
            return 0
        relative = self._relative
        # If no position is missing, which is the rule, the two are the same.
        if wanted < len(relative) and relative[wanted] == wanted:
            return wanted
        return bisect_left(relative, wanted)

    def extent(self, position: int) -> tuple[int, int]:
        """Return start and bytes of the record at a position; there must be one."""
        index = self.index(position)
        return self.offsets[index], self.offsets[index + 1] - self.offsets[index]

    def encode(
        self, position: int, payloads: Sequence[Payload | None], bytes_max: int
    ) -> "tuple[bytes, array[int], int]":
        """Return records for the end of the log, up to `bytes_max`: their bytes, their positions, payloads used."""
        parts: list[bytes] = []
        relative = array("I")
        salt, first, size = self.salt, self.first, self.size
        pack = _RECORD.pack
        used = 0
        # `_seed` is inlined here and in `records`, which saves a tenth of the time of a commit.
        for payload in payloads:
            if payload is not None:
                if (size >= bytes_max and size > HEADER_BYTES) or position - first > _U32:
                    break
                if isinstance(payload, bytes):
                    length = len(payload)
                    seed = (salt ^ length * 0x9E3779B1 ^ position) & 0xFFFFFFFF
                    parts.append(pack(salt, length, position, crc32(payload, seed)))
                    parts.append(payload)
                    size += RECORD_BYTES + length
                else:
                    parts += self._encode_parts(position, payload)
                    size += disk_bytes(payload)
                relative.append(position - first)
            position += 1
            used += 1
        return b"".join(parts), relative, used

    def _encode_parts(self, position: int, payload: tuple[bytes, ...]) -> list[bytes]:
        found = []
        last = len(payload) - 1
        for number, part in enumerate(payload):
            word = len(part) | (_MORE if number < last else 0) | (_CONTINUED if number else 0)
            found.append(_RECORD.pack(self.salt, word, position, crc32(part, _seed(self.salt, word, position))))
            found.append(part)
        return found

    def extend(self, relative: "array[int]", sizes: Sequence[int]) -> None:
        """Note that records of these sizes were written at its end."""
        size = self.size
        offsets = self.offsets
        for one in sizes:
            size += one
            offsets.append(size)
        self._relative.extend(relative)
        self.done.extend(bytes(len(relative)))
        self.live += len(relative)
        self.live_bytes += size - self.size
        self.size = size

    def discard(self, start: int, end: int) -> tuple[int, int]:
        """Mark the records from position `start` to before `end` as done; return the number and bytes of live ones."""
        low = self.index(start)
        high = low + 1 if end == start + 1 and low < len(self.done) and self.position(low) == start else self.index(end)
        done, offsets = self.done, self.offsets
        count = done.count(LIVE, low, high)
        if not count:
            return 0, 0
        if count == high - low:
            freed = offsets[high] - offsets[low]
            done[low:high] = b"\x01" * count
        else:
            freed = 0
            for index in range(low, high):
                if done[index] == LIVE:
                    done[index] = DISCARDED
                    freed += offsets[index + 1] - offsets[index]
        self.live -= count
        self.live_bytes -= freed
        self._soil(low, high)
        return count, freed

    # The log.

    @classmethod
    def read(cls, directory: Path, way: int, first: int, data: bytes) -> "Segment | None":
        """Return the segment with that header; None if the header is not one of this way and position."""
        if len(data) < HEADER_BYTES:
            return None
        segment = cls(directory, way, first, _HEADER.unpack_from(data)[3])
        return segment if data.startswith(segment.header()) else None

    @classmethod
    def salvage(cls, directory: Path, way: int, first: int, data: bytes) -> "Segment | None":
        """Return the segment of a log whose header is damaged; None if no record of it can be found.

        The salt also stands before each record, so the header can be made again.
        """
        if len(data) < HEADER_BYTES + RECORD_BYTES:
            return None
        for salt in (_HEADER.unpack_from(data)[3], int.from_bytes(data[HEADER_BYTES : HEADER_BYTES + 4], "little")):
            segment = cls(directory, way, first, salt)
            if segment._find_record(data, HEADER_BYTES, first) >= 0:
                return segment
        return None

    def scan(self, data: bytes, committed: int = _POSITION_MAX) -> tuple[list[Stretch], bytes]:
        """Find all records in the bytes of the log: the damaged ranges between them, and the last part's payload.

        Bytes behind the last record are not among them: they lie beyond `size`. So does a last record from `committed`
        on of which only the first parts were written.
        """
        first = self.first
        at, last = HEADER_BYTES, len(data) - RECORD_BYTES
        # The next part has this position at least. It continues a record if `is_open`.
        expected, is_open = first, False
        relative, offsets = self._relative, self.offsets
        offsets.pop()
        stretches: list[Stretch] = []
        part = b""
        while True:
            if at > last or not self._is_record(data, at, expected):
                found = self._find_record(data, at + 1, expected)
                if found < 0:
                    break
                _, word, position, _ = _RECORD.unpack_from(data, found)
                # Parts of a record that begins or ends here may be lost as well.
                end = position + 1 if word & _CONTINUED else position
                self._damaged.update((expected, position) if word & _CONTINUED else (expected,))
                stretches.append(Stretch(at, found - at, expected, end, part, _payload_at(data, found)))
                at = found
            _, word, position, _ = _RECORD.unpack_from(data, at)
            if not relative or relative[-1] != position - first:
                relative.append(position - first)
                offsets.append(at)
            is_open = bool(word & _MORE)
            expected = position if is_open else position + 1
            part = _payload_at(data, at)
            at += RECORD_BYTES + len(part)
        if is_open and expected >= committed:
            at = offsets.pop()
            relative.pop()
        elif is_open:
            self.is_cut = True
            self._damaged.add(expected)
        offsets.append(at)
        self.size = at
        self.done = bytearray(len(relative))
        self.live = len(relative)
        self.live_bytes = at - offsets[0]
        return stretches, part

    @property
    def next(self) -> int:
        """Return the first position that the log may have lost at its end: the last one, if parts of it are missing."""
        return self.end - 1 if self.is_cut else self.end

    def records(self, data: bytes, low: int, high: int) -> tuple[list[tuple[int, bytes]], list[int], list[int]]:
        """Return the live records in `data`, which begins with record `low`.

        A record that lost parts is returned without them. The other two lists hold the positions of records that lost
        everything, and of those whose damage is new.
        """
        unpack = _RECORD.unpack_from
        salt, offsets = self.salt, self.offsets
        done = self.done[low:high]
        found: list[tuple[int, bytes]] = []
        gone: list[int] = []
        damaged: list[int] = []
        base = offsets[low]
        last = len(data) - RECORD_BYTES
        index = low - 1
        for state, start, expected in zip(done, offsets[low:high], self._relative[low:high], strict=True):
            index += 1
            if state:
                continue
            at = start - base
            if at <= last:
                marker, length, position, checksum = unpack(data, at)
                if length <= _LENGTH:
                    at += RECORD_BYTES
                    payload = data[at : at + length]
                    if (
                        crc32(payload, (salt ^ length * 0x9E3779B1 ^ position) & 0xFFFFFFFF) == checksum
                        and len(payload) == length
                        and marker == salt
                        and position == self.first + expected
                    ):
                        found.append((position, payload))
                        continue
            position = self.first + expected
            parts, is_whole = self._parts(data[start - base : offsets[index + 1] - base], position)
            if parts:
                found.append((position, b"".join(parts)))
            else:
                gone.append(position)
            if not is_whole and position not in self._damaged:
                self._damaged.add(position)
                damaged.append(position)
        return found, gone, damaged

    def _parts(self, data: bytes, position: int) -> tuple[list[bytes], bool]:
        """Return the whole parts of a record, and whether these are all of them."""
        parts: list[bytes] = []
        at, is_open, is_whole = 0, True, True
        while is_open and at < len(data):  # later bytes are damage of the next record
            if at > len(data) - RECORD_BYTES or not self._is_record(data, at, position):
                at = self._find_record(data, at + 1, position)
                is_whole = False
                if at < 0:
                    break
            word = _RECORD.unpack_from(data, at)[1]
            if not parts and word & _CONTINUED:
                is_whole = False
            is_open = bool(word & _MORE)
            parts.append(_payload_at(data, at))
            at += RECORD_BYTES + len(parts[-1])
        return parts, is_whole and not is_open

    def _is_record(self, data: bytes, at: int, position_min: int) -> bool:
        marker, word, position, checksum = _RECORD.unpack_from(data, at)
        end = at + RECORD_BYTES + (word & _LENGTH)
        if marker != self.salt or end > len(data) or not position_min <= position <= self.first + _U32:
            return False
        return bool(crc32(data[at + RECORD_BYTES : end], _seed(self.salt, word, position)) == checksum)

    def _find_record(self, data: bytes, at: int, position_min: int) -> int:
        marker = self.salt.to_bytes(4, "little")
        last = len(data) - RECORD_BYTES
        at = data.find(marker, at)
        while 0 <= at <= last:
            if self._is_record(data, at, position_min):
                return at
            at = data.find(marker, at + 1)
        return -1

    # Done records.

    def done_ranges(self, data: bytes) -> list[tuple[int, int]]:
        """Return the first position and the length of each range that the file names, without damaged entries."""
        whole = len(data) // _DONE.size * _DONE.size
        return [
            (start, count)
            for start, count, checksum in _DONE.iter_unpack(data[:whole])
            if count and start >= self.first and checksum == self._done_checksum(start, count)
        ]

    def scan_done(self, data: bytes) -> int:
        """Apply the marks of the file, and return the position after the largest that it names."""
        end = self.first
        whole = len(data) // _DONE.size * _DONE.size
        for start, count in self.done_ranges(data):
            low, high = self.index(start), self.index(start + count)
            self.discard(start, start + count)
            self.done[low:high] = bytes([NOTED]) * (high - low)
            end = max(end, start + count)
        self._done_size = whole
        self._dirty_start = self._dirty_end = 0
        return end

    @property
    def is_dirty(self) -> bool:
        """Return whether the file lacks discarded records."""
        return self._dirty_end > self._dirty_start

    def take_done(self) -> tuple[int, bytes, list[tuple[int, int]]]:
        """Return the missing part of the file: its offset, its bytes, and record numbers for `note_done`."""
        low = self._dirty_start
        runs = [(low + run.start(), low + run.end()) for run in _RUNS.finditer(bytes(self.done[low : self._dirty_end]))]
        entries = []
        for start, end in runs:
            position = self.position(start)
            count = self.position(end - 1) + 1 - position
            entries.append(_DONE.pack(position, count, self._done_checksum(position, count)))
        self._dirty_start = self._dirty_end = 0
        return self._done_size, b"".join(entries), runs

    def note_done(self, runs: list[tuple[int, int]]) -> None:
        """Note that the file has these marks now."""
        for start, end in runs:
            self.done[start:end] = bytes([NOTED]) * (end - start)
        self._done_size += len(runs) * _DONE.size

    def untake_done(self, runs: list[tuple[int, int]]) -> None:
        """Note that these marks could not be written."""
        for start, end in runs:
            self._soil(start, end)

    def _soil(self, low: int, high: int) -> None:
        if self._dirty_end > self._dirty_start:
            self._dirty_start = min(self._dirty_start, low)
            self._dirty_end = max(self._dirty_end, high)
        else:
            self._dirty_start, self._dirty_end = low, high

    def _done_checksum(self, position: int, count: int) -> int:
        return crc32(_DONE.pack(position, count, self.salt))

    # Compaction: the same file with the live records only.

    def compacted(self, data: bytes) -> tuple[bytes, list[int]]:
        """Return the log with only the live records, and the numbers of the records that it keeps."""
        kept = [index for index, state in enumerate(self.done) if state == LIVE]
        offsets = self.offsets
        return b"".join([self.header(), *(data[offsets[n] : offsets[n + 1]] for n in kept)]), kept

    def replace(self, kept: list[int]) -> None:
        """Switch to the compacted log. Records that were discarded meanwhile stay discarded."""
        old = self.offsets
        offsets = array("I", [HEADER_BYTES])
        for index in kept:
            offsets.append(offsets[-1] + old[index + 1] - old[index])
        self._relative = array("I", (self._relative[index] for index in kept))
        self.done = bytearray(self.done[index] for index in kept)
        self.offsets = offsets
        self.size = offsets[-1]
        self._dirty_start, self._dirty_end = 0, len(kept)


def new_salt() -> int:
    """Return a salt for a new segment."""
    return int.from_bytes(os.urandom(4)) | 1


def _payload_at(data: bytes, at: int) -> bytes:
    length = _RECORD.unpack_from(data, at)[1] & _LENGTH
    return data[at + RECORD_BYTES : at + RECORD_BYTES + length]


def _seed(salt: int, length: int, position: int) -> int:
    """Return the start value for the checksum of a payload, so that it also covers the rest of the record.

    The upper half of a position is not needed, because positions lie close to the one that names the file.
    """
    return (salt ^ length * 0x9E3779B1 ^ position) & _U32
