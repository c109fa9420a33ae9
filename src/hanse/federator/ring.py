"""Ring of delivered ids: after a restart the same ids are known, and nothing is delivered twice.

It remembers the last `capacity` ranges `(origin, epoch, first, count)`. A range that continues the last one becomes
part of it. The oldest are overwritten, so the ring must reach as far back as a sender may repeat.

An entry has four words, so that no entry crosses a page:

    first number | epoch, upper part of the sequence number | origin, lower part of it | count, checksum

- New entry: the last word is set to 0, the others are written, then the last. A process that is killed in between
  leaves an entry with a wrong checksum, which is ignored. Its delivery is reported upstream only after `add` has
  returned, so the message arrives again and is delivered twice at worst. The overwritten entry was the oldest.
- Longer range: only the last word changes, in one write. Before it the old range is valid, after it the new one.

After a power cut some of the last entries may be missing, never wrong: again a repeat at worst, and no loss.
"""

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from zlib import crc32

from hanse.errors import LocalError
from hanse.federator.mapped import MappedTable, slots_of

_KIND = b"HANSERG1"
_SLOT_WORDS = 4
_START = Struct("<QQQ")  # the first three words
_COUNT = Struct("<I")
_COUNT_MAX = 0xFFFFFFFF

CAPACITY_MAX = 1 << 24


class DeliveredRing:
    """Ring in a file.

    Args:
        path: created if it is missing; put aside and replaced by a new one if it is damaged.
        capacity: number of ranges, 32 bytes each. The entries of a ring of another capacity are copied.

    Raises:
        LocalError: The file cannot be created or mapped.
    """

    def __init__(self, path: Path, capacity: int = 1 << 18) -> None:
        if not 1 <= capacity <= CAPACITY_MAX:
            raise LocalError(f"The ring's capacity is {capacity}; give 1 to {CAPACITY_MAX}.")
        self._capacity = capacity
        former = slots_of(path, _KIND, _SLOT_WORDS)
        if former is not None and former != capacity and 1 <= former <= CAPACITY_MAX:
            self._resize(path, former)
        self._table = MappedTable(path, _KIND, _SLOT_WORDS, capacity)
        self._words = self._table.words
        # The last entry: the range that it continues, its position, and the checksum to which its count is added.
        self._origin = self._epoch = self._next = -1
        self._count = self._checksum = 0
        self._sequence = self._last_sequence()  # entries are numbered from 1
        self._slot = self._sequence % capacity * _SLOT_WORDS
        self._table.rest()

    def add(self, origin: int, epoch: int, first: int, count: int) -> None:
        """Record the delivery of ids `(origin, epoch, first)` and on.

        0.8 us, or 0.3 us if they continue the last range.
        """
        if first == self._next and origin == self._origin and epoch == self._epoch:
            total = self._count + count
            if total <= _COUNT_MAX:
                self._words[self._slot + 3] = total << 32 | crc32(total.to_bytes(4, "little"), self._checksum)
                self._count = total
                self._next = first + count
                return
        self._begin(origin, epoch, first, count)

    def entries(self) -> Iterator[tuple[int, int, int, int]]:
        """Return `(origin, epoch, first, count)` of all entries, oldest first."""
        for _, origin, epoch, first, count in self._entries():
            yield origin, epoch, first, count
        self._table.rest()

    def close(self) -> None:
        """Close the ring; the file stays."""
        self._words.release()
        self._table.close()

    def _begin(self, origin: int, epoch: int, first: int, count: int) -> None:
        sequence = self._sequence + 1
        slot = sequence % self._capacity * _SLOT_WORDS
        second = epoch << 16 | sequence >> 32
        third = origin << 32 | sequence & 0xFFFFFFFF
        # A number out of range is refused here, before anything is written.
        checksum = crc32(_START.pack(first, second, third))
        last = count << 32 | crc32(_COUNT.pack(count), checksum)
        words = self._words
        words[slot + 3] = 0
        words[slot] = first
        words[slot + 1] = second
        words[slot + 2] = third
        words[slot + 3] = last
        self._sequence, self._slot = sequence, slot
        self._origin, self._epoch, self._next = origin, epoch, first + count
        self._count, self._checksum = count, checksum

    def _entries(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Return entries with the sequence number in front, in the order of the slots after the last one."""
        words = self._words
        capacity = self._capacity
        last = self._sequence
        for sequence_max in range(last + 1, last + 1 + capacity):
            slot = sequence_max % capacity * _SLOT_WORDS
            if words[slot + 3]:
                entry = self._entry(slot)
                if entry is not None:
                    yield entry

    def _entry(self, slot: int) -> tuple[int, int, int, int, int] | None:
        first, second, third, last = self._words[slot : slot + _SLOT_WORDS]
        count = last >> 32
        if crc32(_COUNT.pack(count), crc32(_START.pack(first, second, third))) != last & 0xFFFFFFFF:
            return None
        sequence = (second & 0xFFFF) << 32 | third & 0xFFFFFFFF
        if sequence % self._capacity * _SLOT_WORDS != slot:
            return None
        return sequence, third >> 32, second >> 16, first, count

    def _last_sequence(self) -> int:
        self._sequence = 0
        return max((entry[0] for entry in self._entries()), default=0)

    def _resize(self, path: Path, former: int) -> None:
        """Copy the newest entries to a file of the requested capacity."""
        beside = path.with_name(path.name + ".resized")
        beside.unlink(missing_ok=True)
        old = DeliveredRing(path, former)
        new = DeliveredRing(beside, self._capacity)
        for entry in old.entries():
            new.add(*entry)
        old.close()
        new.close()
        beside.replace(path)
