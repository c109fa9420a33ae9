"""The book on disk."""

from collections import Counter
from pathlib import Path

import pytest

from hanse.federator.retained import BookFile


def book(path: Path) -> BookFile:
    return BookFile(path / "retained.db", Counter())


def test_there_is_no_file_before_something_is_written(tmp_path: Path) -> None:
    empty = book(tmp_path)
    assert empty.read() == []
    assert list(tmp_path.iterdir()) == []


def test_the_next_process_reads_what_was_written_last(tmp_path: Path) -> None:
    one = book(tmp_path)
    one.write([(b"ta", b"1"), (b"tb", b"2"), (b"tc", b"3")])
    one.write([(b"ta", b"4"), (b"tb", b"")])
    assert book(tmp_path).read() == [(b"ta", b"4"), (b"tc", b"3")]  # as after a kill: `one` is still open
    one.close()
    assert book(tmp_path).read() == [(b"ta", b"4"), (b"tc", b"3")]


def test_a_damaged_file_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "retained.db").write_bytes(b"no database" * 1_000)
    damaged = book(tmp_path)
    assert damaged.read() == []
    assert (tmp_path / "retained.db.damaged").exists()
    assert "damaged" in caplog.text
    damaged.write([(b"ta", b"1")])
    assert book(tmp_path).read() == [(b"ta", b"1")]


def test_a_disk_that_refuses_is_told_once_and_gets_everything_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counters: Counter[str] = Counter()
    missing = tmp_path / "not yet"
    refused = BookFile(missing / "retained.db", counters)
    refused.write([(b"ta", b"1"), (b"tb", b"1")])
    refused.write([(b"ta", b"2")])
    assert counters["retained_writes_failed"] == 2
    assert caplog.text.count("cannot be written") == 1
    missing.mkdir()
    refused.write([(b"tc", b"3")])
    assert book(missing).read() == [(b"ta", b"2"), (b"tb", b"1"), (b"tc", b"3")]
    assert "is written again" in caplog.text
