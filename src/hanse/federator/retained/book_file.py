"""The book of retained state on disk: one SQLite file, created at the first retained message.

Rules:

1. A write returns when it would survive the end of this process. After a power cut the last moments may be missing,
   which costs only another look at a few topics.
2. A damaged file is put aside with a warning, and the book starts empty: looks and the other federators fill it.
3. A disk that refuses is logged once, counted, and tried again with the next write. Until then the book is in memory.
"""

import contextlib
import logging
import sqlite3
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from hanse.federator.damaged import put_aside

# Memory that SQLite may use for pages.
_CACHE_KIB = 512
_log = logging.getLogger(__name__)


class BookFile:
    """The file `retained.db` of one federator.

    Args:
        path: path of the file.
        counters: counters of `retained_writes_failed`.
    """

    def __init__(self, path: Path, counters: Counter[str]) -> None:
        self._path = path
        self._counters = counters
        self._connection: sqlite3.Connection | None = None
        # Records that the disk has refused so far.
        self._unwritten: dict[bytes, bytes] = {}

    def read(self) -> list[tuple[bytes, bytes]]:
        """Return all records; none if there is no file, or a damaged one."""
        if not self._path.exists():
            return []
        try:
            return list(self._open().execute("SELECT key, value FROM book ORDER BY key"))
        except sqlite3.Error as error:
            self.close()
            self._discard(str(error))
            return []

    def write(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Write records in one transaction; an empty value removes the key."""
        changed = {**self._unwritten, **dict(records)}
        try:
            connection = self._open()
            with connection:
                connection.executemany(
                    "INSERT OR REPLACE INTO book VALUES (?, ?)", [item for item in changed.items() if item[1]]
                )
                connection.executemany(
                    "DELETE FROM book WHERE key = ?", [(key,) for key, value in changed.items() if not value]
                )
        except sqlite3.Error as error:
            self._counters["retained_writes_failed"] += 1
            if not self._unwritten:
                _log.error(
                    "the book of retained state %s cannot be written: %s; changes are kept in memory meanwhile",
                    self._path,
                    error,
                )
            self._unwritten = changed
            self.close()
            return
        if self._unwritten:
            _log.warning("the book of retained state %s is written again", self._path)
            self._unwritten = {}

    def close(self) -> None:
        """Close the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self._path, isolation_level="DEFERRED", check_same_thread=False)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS book (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
                )
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _discard(self, why: str) -> None:
        """Apply rule 2."""
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(OSError):
                self._path.with_name(self._path.name + suffix).unlink()
        put_aside(self._path, why)
