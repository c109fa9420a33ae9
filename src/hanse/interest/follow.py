"""Follower of a log file as it grows, is rotated, or is truncated: the thin shell of `mosquitto_file`.

It polls. It holds one open file and a bounded chunk. Rotation by renaming (logrotate's default) loses nothing, because
the old file is read to its end first. Truncation in place (`copytruncate`) may lose lines, and is reported as a loss.
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
    """Bytes from the end of the last read on."""

    chunk: bytes


@dataclass(frozen=True, slots=True)
class Rotated:
    """Report that the next bytes are from a new file, and that the old one was read to its end."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """Report that the file is shorter than the part already read, so lines between are lost."""


Found = Read | Rotated | Truncated


def reports(adapter: MosquittoFileAdapter, found: Found) -> list[Report]:
    """Return the adapter's reports about the follower's result."""
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
    """Reader of a file from its start, and then of everything added to it."""

    def __init__(self, path: Path) -> None:
        """Take the path. The file need not exist yet, because a broker may start after its federator."""
        self._path = path
        self._file: BinaryIO | None = None

    def poll(self) -> Found | None:
        """Return the next chunk or event; None if there is nothing new.

        Raises:
            LocalError: the file is not readable.
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
            return None  # after the renaming and before the broker's new file
        if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino):
            return None
        # The broker may have written to the old file between the last read and this check.
        if chunk := self._file.read(CHUNK_BYTES):
            return Read(chunk)
        self.close()
        return Rotated()

    def close(self) -> None:
        """Close the file. A later poll opens it again, from its start."""
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
