"""Table of fixed size in a memory-mapped file: the next process finds what a killed one has written.

The kernel keeps the pages of a mapped file when the process dies, however it dies. Nothing is synced, so a write costs
as much as a write to memory. A power cut may lose the last half minute; each user of this module says why that does no
harm. Users rely on two facts:

1. A word of 8 bytes is written whole or not at all, and a kill cannot undo earlier writes. An entry becomes valid,
   changes its state, or becomes free with the write of *one* word, and that word is written last.
2. The whole file has its space on disk before it is mapped (`posix_fallocate`). Writing to it cannot fail for lack of
   space, which would end the process by a signal. (A file system that copies on write may still need space then.)

The header holds kind, version and size, with a checksum. A damaged header of a file of the right size is written
again, because each entry has a checksum of its own. Any other file is put aside and replaced by a new one.
"""

import contextlib
import logging
import mmap
import os
import struct
from pathlib import Path
from zlib import crc32

from hanse.errors import LocalError
from hanse.federator.damaged import keep_copy, put_aside

_HEADER = struct.Struct("<8sIIQI")  # kind and version, words per slot, 0, slots, checksum of the header before it
_HEADER_BYTES = 64
_WORD_BYTES = 8
_log = logging.getLogger(__name__)


class MappedTable:
    """Mapped table of `slots` times `slot_words` words.

    Args:
        path: created if it is missing.
        kind: eight bytes that name its content and version.
        slot_words: words per slot.
        slots: number of slots.

    Attributes:
        words: all words of all slots, 0 if never written; assign to its items.
        is_new: whether the file was created, because there was none or it was put aside.

    Raises:
        LocalError: The file cannot be created or mapped.
    """

    def __init__(self, path: Path, kind: bytes, slot_words: int, slots: int) -> None:
        self._bytes = _HEADER_BYTES + slots * slot_words * _WORD_BYTES
        header = _header(kind, slot_words, slots)
        try:
            if path.exists() and slots_of(path, kind, slot_words) != slots and not self._mend(path, header):
                put_aside(path, f"expected {kind.decode()} with {slots} slots")
            self.is_new = not path.exists()
            if self.is_new:
                self._create(path, header)
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._map = mmap.mmap(file, self._bytes)
            finally:
                os.close(file)
        except (OSError, ValueError) as error:
            raise LocalError(f"{path} cannot be mapped: {error}; check the disk, its space and rights.") from error
        self._view = memoryview(self._map)
        self._slots = self._view[_HEADER_BYTES:]
        self.words = self._slots.cast("Q")

    def rest(self) -> None:
        """Release the pages that were read. They stay in the kernel's cache, and written data stays written.

        Otherwise a ring that was read whole at the start counts as 8 MB of a federator's memory.
        """
        self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Close the table; the file stays. Do nothing if it is closed."""
        self.words.release()
        self._slots.release()
        self._view.release()
        self._map.close()

    def _mend(self, path: Path, header: bytes) -> bool:
        """Return whether only the header was damaged; it is whole again then."""
        with path.open("r+b") as file:
            found = file.read(_HEADER.size)
            if os.fstat(file.fileno()).st_size != self._bytes or _is_header(found):
                return False
            keep_copy(path)
            file.seek(0)
            file.write(header)
        _log.warning("the header of a state file was damaged and is written again", extra={"path": str(path)})
        return True

    def _create(self, path: Path, header: bytes) -> None:
        beside = path.with_name(path.name + ".new")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, self._bytes)
            os.pwrite(file, header, 0)
            os.fsync(file)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
        finally:
            os.close(file)
        beside.replace(path)


def slots_of(path: Path, kind: bytes, slot_words: int) -> int | None:
    """Return how many slots the file has; None if there is none or it has another kind.

    Raises:
        LocalError: The system does not let us read it.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalError(f"{path} cannot be read: {error.strerror}; check its rights.") from error
    if len(header) < _HEADER.size:
        return None
    slots: int = _HEADER.unpack(header)[3]
    is_whole = size == _HEADER_BYTES + slots * slot_words * _WORD_BYTES
    return slots if is_whole and header == _header(kind, slot_words, slots) else None


def _is_header(found: bytes) -> bool:
    return crc32(found[:-4]) == int.from_bytes(found[-4:], "little")


def _header(kind: bytes, slot_words: int, slots: int) -> bytes:
    start = _HEADER.pack(kind, slot_words, 0, slots, 0)[:-4]
    return start + crc32(start).to_bytes(4, "little")
