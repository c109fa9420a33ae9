"""A table of fixed size in a file that is mapped into memory: what a killed process has written, the next one finds.

The kernel keeps the pages of a mapped file when the process dies, however it dies; nothing is synced, so that a write
costs what a write to memory costs. A power cut may lose the last half minute: whoever builds on this says why that is
no harm. Two facts are what its users build on:

1. A word of 8 bytes is written whole or not at all, and a kill cannot undo what was written before. So an entry becomes
   valid, changes its state, or becomes free with the write of *one* word, and that word is written last.
2. The whole file has its place on disk before it is mapped (`posix_fallocate`): writing to it cannot fail for want of
   space, which would end the process by a signal. (A file system that copies on write may still want space then.)

The header holds kind, version and size, with a checksum. A file that is something else is put aside and begun anew.
"""

import contextlib
import mmap
import os
import struct
from pathlib import Path
from zlib import crc32

from hanse.errors import LocalError
from hanse.federator.damaged import put_aside

_HEADER = struct.Struct("<8sIIQI")  # kind and version, words a slot, 0, slots, checksum of what precedes
_HEADER_BYTES = 64
_WORD_BYTES = 8


class MappedTable:
    """A mapped table of `slots` times `slot_words` words.

    Args:
        path: made if it is missing.
        kind: eight bytes that name what it holds and its version.
        slot_words: words a slot.
        slots: how many.

    Attributes:
        words: all words of all slots, 0 where nothing was written; assign to its items.

    Raises:
        LocalError: The file cannot be made or mapped.
    """

    def __init__(self, path: Path, kind: bytes, slot_words: int, slots: int) -> None:
        self._bytes = _HEADER_BYTES + slots * slot_words * _WORD_BYTES
        header = _header(kind, slot_words, slots)
        try:
            if path.exists() and slots_of(path, kind, slot_words) != slots:
                put_aside(path, f"expected {kind.decode()} with {slots} slots")
            if not path.exists():
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
        """Give the pages back that were read: they stay in the kernel's cache, and what was written stays written.

        A ring that was read whole at the start counts 8 MB of a federator's memory otherwise.
        """
        self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Let go of it; the file stays. Harmless when it is closed."""
        self.words.release()
        self._slots.release()
        self._view.release()
        self._map.close()

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
    """How many slots the file has; None where there is none or it is not of that kind.

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


def _header(kind: bytes, slot_words: int, slots: int) -> bytes:
    start = _HEADER.pack(kind, slot_words, 0, slots, 0)[:-4]
    return start + crc32(start).to_bytes(4, "little")
