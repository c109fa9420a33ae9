"""Following a log file as it grows, is rotated, or is truncated: the thin shell of `mosquitto_file`.

It polls; it holds one open file and a bounded chunk. Rotation by renaming (logrotate's default) loses nothing:
the old file is read to its end first. Truncation in place (`copytruncate`) may lose lines, and is reported as a
loss.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, assert_never

from hanse.errors import LocalError
from hanse.interest.mosquitto_file import MosquittoFileAdapter
from hanse.interest.reports import Report

CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes from where the last read ended."""

    chunk: bytes


@dataclass(frozen=True, slots=True)
class Rotated:
    """The next bytes are another file's, and the old one was read to its end."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """The file is shorter than what was read of it: what stood between is lost."""


Found = Read | Rotated | Truncated


def reports(adapter: MosquittoFileAdapter, found: Found) -> list[Report]:
    """What the adapter makes of what the follower found."""
    match found:
        case Read(chunk):
            return adapter.feed(chunk)
        case Rotated():
            return adapter.began_anew()
        case Truncated():
            return adapter.lost()
        case _:
            assert_never(found)


class LogFollower:
    """Reads a file from its start, and then whatever is added to it."""

    def __init__(self, path: Path) -> None:
        """The file need not exist yet: a broker may start after its federator."""
        self._path = path
        self._file: BinaryIO | None = None

    def poll(self) -> Found | None:
        """What is there, a chunk at a time; None when there is nothing new.

        Raises:
            LocalError: the file may not be read.
        """
        if self._file is None and not self._open():
            return None
        assert self._file is not None
        chunk = self._file.read(CHUNK_BYTES)
        if chunk:
            return Read(chunk)
        held = os.fstat(self._file.fileno())
        if held.st_size < self._file.tell():
            self._file.seek(0)
            return Truncated()
        try:
            named = self._path.stat()
        except FileNotFoundError:
            return None  # between the renaming and the broker's new file
        if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino):
            return None
        # The broker may have written to the old file between our last read and this look.
        if chunk := self._file.read(CHUNK_BYTES):
            return Read(chunk)
        self.close()
        return Rotated()

    def close(self) -> None:
        """Let go of the file; a later poll opens it again, from its start."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        try:
            self._file = self._path.open("rb")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise LocalError(
                f"The broker's log {self._path} cannot be read ({error.strerror}); let the federator's user read it."
            ) from error
        return True
