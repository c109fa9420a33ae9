import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.budget import examples

from hanse.errors import LocalError, Unavailable
from hanse.federator.damaged import COPIES_MAX
from hanse.federator.outbox import DAMAGES_MAX, Outbox
from hanse.federator.segment import HEADER_BYTES, RECORD_BYTES

ALL = 1 << 30

# Where a sync costs nothing: for tests that make thousands of them and ask nothing of the disk itself.
IN_MEMORY = next((folder for folder in ("/dev/shm",) if os.access(folder, os.W_OK)), None)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield Path(folder)


def make(path: Path, **given_settings: Any) -> Outbox:
    return Outbox(path, **{"bytes_max": 1 << 30, **given_settings})


def contents(outbox: Outbox, way: int, *, count_max: int = 7) -> dict[int, bytes]:
    """All live records of a way, read as a link reads them."""
    found: dict[int, bytes] = {}
    position = 0
    while records := outbox.read(way, position, count_max, 100):
        found.update(records)
        position = records[-1][0] + 1
    assert list(found) == sorted(found)
    return found


def logs(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"), key=lambda file: int(file.stem.split("_")[1]))


def numbered(count: int, length: int = 10) -> list[bytes]:
    return [b"%0*d" % (length, number) for number in range(count)]


def test_a_new_outbox_is_empty(tmp_path: Path) -> None:
    outbox = make(tmp_path / "below" / "outbox")
    assert outbox.ways() == {}
    assert outbox.read(1, 0, 10, ALL) == []
    outbox.discard(1, [0, 1])
    assert outbox.drop_oldest(1, 10) == 0
    outbox.commit()
    assert (outbox.bytes, outbox.records, outbox.counters.commits) == (0, 0, 0)
    assert (tmp_path / "below" / "outbox").stat().st_mode & 0o077 == 0


def test_records_are_read_in_order_before_and_after_commit_and_restart(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    assert outbox.append(4, [b"a", b"", b"c"]) == 0
    assert outbox.append(-1, [b"host"]) == 0
    assert outbox.append(4, [b"d"]) == 3
    expected = [(0, b"a"), (1, b""), (2, b"c"), (3, b"d")]
    assert outbox.read(4, 0, 10, ALL) == expected
    outbox.commit()
    assert outbox.read(4, 0, 10, ALL) == expected
    assert outbox.append(4, [b"e"]) == 4
    assert outbox.read(4, 2, 10, ALL) == [(2, b"c"), (3, b"d"), (4, b"e")]
    assert outbox.ways() == {-1: (0, 1), 4: (0, 5)}
    outbox.close()
    outbox = make(tmp_path)
    assert outbox.read(4, 0, 10, ALL) == [*expected, (4, b"e")]
    assert outbox.read(-1, 0, 10, ALL) == [(0, b"host")]
    assert outbox.ways() == {-1: (0, 1), 4: (0, 5)}
    assert outbox.records == 6
    assert outbox.bytes == 6 * RECORD_BYTES + 8


def test_a_read_keeps_to_its_limits_but_gives_one_record_at_least(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    for _ in range(2):  # from disk, then from memory
        outbox.append(1, [b"12345", b"67890", b"abcde"])
        outbox.commit()
    outbox.append(1, [b"12345", b"67890"])
    for position in (0, 6):
        assert [at for at, _ in outbox.read(1, position, 2, ALL)] == [position, position + 1]
        assert [at for at, _ in outbox.read(1, position, 9, 10)] == [position, position + 1]
        assert [at for at, _ in outbox.read(1, position, 9, 9)] == [position]
        assert [at for at, _ in outbox.read(1, position, 9, 0)] == [position]
        assert outbox.read(1, position, 0, ALL) == []
    assert [at for at, _ in outbox.read(1, 4, 9, 15)] == [4, 5, 6]


def test_records_larger_than_one_read_from_the_disk_come_whole(tmp_path: Path) -> None:
    large = [os.urandom(700_000), b"small", os.urandom(300_000)]
    outbox = make(tmp_path, segment_bytes=1 << 20)
    outbox.append(1, large)
    outbox.commit()
    assert outbox.read(1, 0, 9, ALL) == list(enumerate(large))


def test_discarded_records_are_skipped_over_restarts(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    outbox.append(1, numbered(10))
    outbox.discard(1, [9])  # before it was written
    outbox.commit()
    outbox.discard(1, iter([0, 1, 2, 5, 5, 77]))
    outbox.discard(1, range(6, 8))
    assert outbox.ways() == {1: (3, 10)}
    outbox.commit()
    outbox = make(tmp_path)
    assert list(contents(outbox, 1)) == [3, 4, 8]
    # Nothing of 9 was ever written, and nobody outside saw it last: its position may come again, none before it.
    assert outbox.ways()[1] == (3, 9)
    assert outbox.records == 3
    assert outbox.bytes == 3 * (RECORD_BYTES + 10)


def test_a_discard_that_was_not_committed_is_only_a_repeat(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    outbox.append(1, numbered(3))
    outbox.commit()
    outbox.discard(1, [0])
    assert list(contents(make(tmp_path), 1)) == [0, 1, 2]


def test_positions_grow_over_restarts_though_all_was_discarded(tmp_path: Path) -> None:
    end = 0
    for _ in range(4):
        outbox = make(tmp_path, segment_bytes=200)
        assert outbox.append(1, numbered(20)) == end
        outbox.commit()
        end += 20
        outbox.discard(1, range(end))
        outbox.commit()
        assert outbox.ways() == {1: (end, end)}
        assert len(logs(tmp_path)) == 1
        assert outbox.bytes == outbox.records == 0
    assert logs(tmp_path)[0].stat().st_size == HEADER_BYTES


def test_segments_follow_one_another_and_go_when_they_are_done_with(tmp_path: Path) -> None:
    outbox = make(tmp_path, segment_bytes=300)
    outbox.append(1, numbered(100))
    outbox.commit()
    # The tenth record passes 300 bytes: 32 + 9 * 30 = 302.
    assert [file.name for file in logs(tmp_path)] == [f"1_{first}.log" for first in range(0, 100, 9)]
    outbox.discard(1, range(5, 40))
    outbox.commit()
    assert [file.name for file in logs(tmp_path)][:3] == ["1_0.log", "1_36.log", "1_45.log"]
    assert list(contents(outbox, 1)) == [*range(5), *range(40, 100)]
    assert list(contents(make(tmp_path, segment_bytes=300), 1)) == [*range(5), *range(40, 100)]


def test_a_few_stuck_records_do_not_hold_the_disk(in_memory: Path) -> None:
    outbox = make(in_memory, segment_bytes=10_000)
    stuck = []
    for _ in range(50):
        first = outbox.append(1, [os.urandom(100) for _ in range(100)])
        outbox.commit()
        stuck.append(first + 50)
        outbox.discard(1, set(range(first, first + 100)) - {first + 50})
    outbox.commit()
    outbox.commit()
    assert outbox.counters.compactions > 40
    kept = contents(outbox, 1)
    assert list(kept) == stuck
    on_disk = sum(file.stat().st_size for file in in_memory.iterdir())
    assert on_disk < 2 * 10_000 + 50 * (HEADER_BYTES + 120 + 5 * 16)
    again = make(in_memory, segment_bytes=10_000)
    assert contents(again, 1) == kept
    again.discard(1, stuck[::2])
    again.commit()
    assert list(contents(make(in_memory), 1)) == stuck[1::2]


def test_append_and_discard_touch_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = make(tmp_path)
    outbox.append(1, numbered(1))
    outbox.commit()
    opened: list[object] = []
    really_open = os.open

    def seen(path: Path, flags: int, mode: int = 0o777) -> int:
        opened.append(path)
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", seen)
    outbox.append(1, numbered(1_000))
    outbox.discard(1, range(500))
    assert opened == []
    outbox.commit()
    assert opened == [tmp_path / "1_0.log", tmp_path / "1.end", tmp_path / "1_0.done"]


def test_what_does_not_fit_is_refused_whole_and_the_oldest_can_make_room(tmp_path: Path) -> None:
    ten = 10 * (RECORD_BYTES + 10)
    outbox = make(tmp_path, bytes_max=ten, segment_bytes=100)
    outbox.append(1, numbered(6))
    outbox.append(2, numbered(1))
    outbox.commit()
    outbox.append(1, numbered(3))
    assert outbox.bytes == ten
    with pytest.raises(Unavailable, match=rf"full: {ten} bytes of {ten}, 60 more for 1"):
        outbox.append(1, numbered(2))
    assert outbox.records == 10
    assert outbox.drop_oldest(1, Outbox.bytes_of(numbered(2))) == 2
    assert outbox.append(1, numbered(2)) == 9
    assert outbox.ways() == {1: (2, 11), 2: (0, 1)}
    assert outbox.drop_oldest(1, Outbox.bytes_of(numbered(7))) == 7  # from the disk, and from memory
    assert outbox.ways()[1] == (9, 11)
    assert outbox.drop_oldest(1, ten + 1) == 0  # it would never fit
    assert outbox.drop_oldest(1, ten) == 2
    assert outbox.counters.dropped == 11
    outbox.commit()
    assert (outbox.bytes, outbox.records) == (RECORD_BYTES + 10, 1)
    again = make(tmp_path)
    assert contents(again, 1) == {}
    assert contents(again, 2) == {0: b"0000000000"}


def test_what_waits_for_the_disk_is_bounded(tmp_path: Path) -> None:
    outbox = make(tmp_path, pending_bytes_max=100)
    outbox.append(1, [bytes(500)])  # one may pass, else a large record would never go
    with pytest.raises(Unavailable, match="520 bytes of 100 wait"):
        outbox.append(2, [b""])
    outbox.commit()
    assert outbox.pending_bytes == 0
    outbox.append(2, [b""])
    outbox.discard(2, [0])
    assert outbox.pending_bytes == 0


def test_a_closed_outbox_says_so_and_has_committed(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    outbox.append(1, [b"x"])
    outbox.close()
    outbox.close()
    calls: list[Callable[[], object]] = [
        outbox.commit,
        lambda: outbox.append(1, []),
        lambda: outbox.read(1, 0, 1, 1),
        lambda: outbox.discard(1, []),
    ]
    for call in calls:
        with pytest.raises(LocalError, match="closed"):
            call()
    assert contents(make(tmp_path), 1) == {0: b"x"}


def test_a_directory_that_cannot_be_used_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match=r"file.*check the disk"):
        make(tmp_path / "file")
    with pytest.raises(LocalError, match="segment_bytes is 1"):
        make(tmp_path, segment_bytes=1)


# What a power cut and a bad disk leave.


def test_a_log_cut_at_any_byte_gives_the_records_before_it(in_memory: Path) -> None:
    whole = in_memory / "whole"
    outbox = make(whole)
    payloads = [b"x" * length for length in (0, 1, 30, 7)]
    outbox.append(1, payloads)
    outbox.commit()
    log = (whole / "1_0.log").read_bytes()
    ends = [HEADER_BYTES + sum(RECORD_BYTES + len(payload) for payload in payloads[:n]) for n in range(5)]
    for cut in range(len(log)):
        path = in_memory / str(cut)
        path.mkdir()
        (path / "1_0.log").write_bytes(log[:cut])
        after = make(path)
        survivors = sum(end <= cut for end in ends) - 1 if cut >= HEADER_BYTES else 0
        assert contents(after, 1) == dict(enumerate(payloads[:survivors])), cut
        assert after.counters.torn == (cut not in ends), cut
        assert after.counters.put_aside == after.counters.damaged == 0
        assert after.append(1, [b"new"]) == survivors
        after.commit()
        again = make(path)
        assert contents(again, 1) == dict(enumerate([*payloads[:survivors], b"new"])), cut
        assert again.counters.torn == 0
        shutil.rmtree(path)


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_costs_only_the_record_that_it_hits(in_memory: Path, seed: int) -> None:
    path = Path(tempfile.mkdtemp(dir=in_memory))
    outbox = make(path, segment_bytes=400)
    rng = random.Random(seed)
    length_max = rng.choice((0, 20, 60))
    payloads = [rng.randbytes(rng.randint(0, length_max)) for _ in range(30)]
    outbox.append(1, payloads)
    outbox.commit()
    outbox.discard(1, range(3))
    outbox.commit()
    expected = dict(list(enumerate(payloads))[3:])
    file = rng.choice(sorted(path.iterdir()))
    raw = bytearray(file.read_bytes())
    at = rng.randrange(len(raw))
    raw[at] ^= 1 << rng.randrange(8)
    file.write_bytes(raw)
    after = make(path, segment_bytes=400)
    found = contents(after, 1)
    assert after.ways()[1][1] >= (30 if file.name != logs(path)[-1].name else 29)
    counters = after.counters
    if file.suffix == ".done":
        assert found in (expected, dict(enumerate(payloads)))
    elif counters.put_aside:
        assert at < HEADER_BYTES
        assert found.items() <= expected.items()
        assert after.ways()[1][1] >= 30
        assert (path / (file.name + ".damaged")).exists()
    else:
        lost = expected.keys() - found.keys()
        assert found.items() <= expected.items()
        assert len(lost) <= 1
        assert counters.damaged + counters.torn == 1 or not lost
    # What was skipped is not met again, and what follows still works.
    position = after.append(1, [b"after"])
    after.commit()
    assert contents(make(path, segment_bytes=400), 1) == {**found, position: b"after"}


def test_damage_is_counted_once_and_its_room_is_free(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    outbox.append(1, [b"first", b"second", b"third"])
    outbox.commit()
    log = tmp_path / "1_0.log"
    log.write_bytes(log.read_bytes().replace(b"second", b"sEcond"))
    for _ in range(2):
        assert outbox.read(1, 0, 9, ALL) == [(0, b"first"), (2, b"third")]
        assert outbox.counters.damaged == 1
        assert outbox.bytes == 2 * RECORD_BYTES + 10


def test_a_bad_place_on_the_disk_costs_the_record_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = make(tmp_path)
    outbox.append(1, numbered(5))
    outbox.commit()
    read = os.pread
    bad = HEADER_BYTES + 2 * (RECORD_BYTES + 10) + 3

    def failing(file: int, count: int, at: int) -> bytes:
        if at <= bad < at + count:
            raise OSError(5, "Input/output error")
        return read(file, count, at)

    monkeypatch.setattr(os, "pread", failing)
    assert list(contents(outbox, 1)) == [0, 1, 3, 4]
    assert outbox.counters.damaged == 1


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    names = ["notes.txt", "1_x.log", "01_0.log", "1_99999999999999999999.log", "1_0.log.damaged"]
    for name in names:
        (tmp_path / name).write_bytes(b"something else")
    (tmp_path / "3_0.log.new").write_bytes(b"a compaction that was cut off")
    (tmp_path / "3_7.done").write_bytes(b"its log was deleted")
    outbox = make(tmp_path)
    assert outbox.ways() == {3: (7, 7)}
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize("content", [b"HANSEOB9" + bytes(40), b"\xff" * 500])
def test_a_log_without_its_header_is_put_aside_and_its_positions_stay_used(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "1_100.log").write_bytes(content)
    outbox = make(tmp_path)
    assert "damaged" in caplog.text
    assert outbox.counters.put_aside == 1
    assert (tmp_path / "1_100.log.damaged").read_bytes() == content
    end = outbox.ways()[1][1]
    assert end >= 100 + (len(content) - HEADER_BYTES) // RECORD_BYTES
    assert make(tmp_path).ways()[1][1] == end  # also over a restart, although nothing was appended


def test_what_the_done_file_names_is_used_though_the_log_lost_it(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    outbox.append(1, numbered(10))
    outbox.commit()
    outbox.discard(1, [8])
    outbox.commit()
    log = tmp_path / "1_0.log"
    os.truncate(log, HEADER_BYTES + 4 * (RECORD_BYTES + 10))
    (tmp_path / "1.end").unlink()  # as an older version leaves it
    after = make(tmp_path)
    assert after.append(1, [b"new"]) == 9  # not 4 to 8, or the old discard would hit it
    after.commit()
    assert list(contents(make(tmp_path), 1)) == [0, 1, 2, 3, 9]


def test_a_commit_returns_when_records_and_names_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "outbox"
    outbox = make(path, segment_bytes=200)
    order: list[str] = []

    def seen(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def record(target: int | Path, **options: bool) -> None:
            file = target if isinstance(target, Path) else Path(f"/proc/self/fd/{target}").readlink()
            order.append(f"{name} {file.name}")
            call(target, **options)

        return record

    monkeypatch.setattr(os, "fsync", seen("sync", os.fsync))
    monkeypatch.setattr(os, "fdatasync", seen("sync", os.fdatasync))
    monkeypatch.setattr(Path, "unlink", seen("unlink", Path.unlink))

    def commit() -> list[str]:
        order.clear()
        outbox.commit()
        return list(order)

    outbox.append(1, [bytes(100)])
    assert commit() == ["sync 1_0.log", "sync outbox"]
    outbox.append(1, [bytes(100)])
    assert commit() == ["sync 1_0.log"]
    outbox.append(1, [bytes(200)])
    assert commit() == ["sync 1_2.log", "sync outbox"]
    outbox.discard(1, [0])
    assert commit() == []  # a discard needs no sync
    outbox.discard(1, [1, 2])
    # The file that keeps the next position is there before the last one goes.
    assert commit() == [
        *("unlink 1_0.log", "unlink 1_0.done", "sync outbox"),
        *("sync 1_3.log", "sync outbox", "unlink 1_2.log", "unlink 1_2.done", "sync outbox"),
    ]


# A disk that refuses.


def test_a_failed_sync_is_tried_again_with_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = make(tmp_path)
    outbox.append(1, [b"one"])
    outbox.commit()
    log = tmp_path / "1_0.log"
    outbox.append(1, [b"two", b"three"])

    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        for _ in range(2):
            with pytest.raises(LocalError, match=r"1_0\.log cannot be used: Input/output error"):
                outbox.commit()
    assert outbox.counters.commits_failed == 2
    assert outbox.pending_bytes == 2 * RECORD_BYTES + 8
    assert outbox.read(1, 0, 9, ALL) == [(0, b"one"), (1, b"two"), (2, b"three")]
    outbox.discard(1, [1])
    outbox.append(1, [b"four"])
    # What the kernel calls written may be lost: all of it must be written again, not only synced.
    size = HEADER_BYTES + RECORD_BYTES + 3
    os.truncate(log, size)
    outbox.commit()
    assert outbox.pending_bytes == 0
    assert contents(make(tmp_path), 1) == {0: b"one", 2: b"three", 3: b"four"}
    assert make(tmp_path).counters.torn == 0


def test_nothing_of_a_failed_write_is_left_behind_a_shorter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = make(tmp_path)
    outbox.append(1, [b"one"])
    outbox.commit()
    outbox.append(1, [bytes(500)])

    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        with pytest.raises(LocalError):
            outbox.commit()
    outbox.discard(1, [1])
    outbox.append(1, [b"two"])
    outbox.commit()
    again = make(tmp_path)
    assert contents(again, 1) == {0: b"one", 2: b"two"}
    assert again.counters.torn == again.counters.damaged == 0


def test_one_way_that_cannot_be_written_does_not_hold_the_others(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    outbox.append(1, [b"a"])
    outbox.append(2, [b"b"])
    (tmp_path / "1_0.log").mkdir()  # stands in the way
    with pytest.raises(LocalError, match=r"1_0\.log.*check the disk"):
        outbox.commit()
    assert outbox.pending_bytes == RECORD_BYTES + 1
    (tmp_path / "1_0.log").rmdir()
    outbox.commit()
    again = make(tmp_path)
    assert contents(again, 1) == {0: b"a"}
    assert contents(again, 2) == {0: b"b"}


def test_discards_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    outbox.append(1, numbered(4))
    outbox.commit()
    (tmp_path / "1_0.done").mkdir()
    outbox.discard(1, [1])
    with pytest.raises(LocalError, match="done"):
        outbox.commit()
    (tmp_path / "1_0.done").rmdir()
    outbox.discard(1, [3])
    outbox.commit()
    assert list(contents(make(tmp_path), 1)) == [0, 2]


FILLS_THE_DISK = """
import resource, sys
from pathlib import Path
from hanse.errors import LocalError
from hanse.federator.outbox import DAMAGES_MAX, Outbox

path, limit = Path(sys.argv[1]), int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
outbox = Outbox(path, bytes_max=1 << 30, segment_bytes=limit * 2 or 40_000)
appended = committed = 0
try:
    while appended < 5_000:
        outbox.append(1, [b"%0100d" % number for number in range(appended, appended + 50)])
        appended += 50
        outbox.commit()
        committed = appended
except LocalError as error:
    assert "check the disk, its space" in str(error), error
assert 0 < committed < appended, "the disk was not full"

def positions():
    found, at = [], 0
    while records := outbox.read(1, at, 64, 1 << 20):
        assert all(payload == b"%0100d" % position for position, payload in records)
        found += [position for position, _ in records]
        at = found[-1] + 1
    return found

assert positions() == list(range(appended)), "the refused ones are still pending"
crashed = Outbox(path, bytes_max=1 << 30)
assert crashed.records >= committed, "what was committed is on disk"
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
else:
    outbox.discard(1, range(committed // 2))  # whole segments go, and make room
outbox.commit()
first = 0 if limit else committed // 2
outbox = Outbox(path, bytes_max=1 << 30)
assert positions() == list(range(first, appended))
print("ok")
"""


WITHOUT_DESCRIPTORS = """
import resource, sys
from pathlib import Path
from hanse.errors import LocalError
from hanse.federator.outbox import DAMAGES_MAX, Outbox

outbox = Outbox(Path(sys.argv[1]), bytes_max=1 << 30)
outbox.append(1, [b"a", b"b"])
outbox.commit()
outbox.append(1, [b"c"])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
for call in (outbox.commit, lambda: outbox.read(1, 0, 9, 9)):
    try:
        call()
    except LocalError as error:
        assert "Too many open files" in str(error), error
    else:
        raise AssertionError("a descriptor was found")
assert outbox.read(1, 2, 9, 9) == [(2, b"c")]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
assert outbox.read(1, 0, 9, 9) == [(0, b"a"), (1, b"b"), (2, b"c")]
outbox.commit()
assert outbox.counters.damaged == 0
assert Outbox(Path(sys.argv[1]), bytes_max=1 << 30).records == 3
print("ok")
"""


@pytest.mark.processes
def test_a_process_without_descriptors_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "ok\n", done.stderr


def run_filling(prefix: list[str], path: Path, limit: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-c", FILLS_THE_DISK, str(path), str(limit)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.processes
def test_a_file_that_may_not_grow_loses_nothing(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = run_filling([], tmp_path / "outbox", 20_000)
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.processes
def test_a_full_disk_loses_nothing_and_has_room_again_after_discards(tmp_path: Path) -> None:
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    words = f'mount -t tmpfs -o size=200k none "{tmp_path}" && exec "$@"'
    if shutil.which("unshare") is None or subprocess.run([*mount, words, "sh", "true"], check=False).returncode:
        pytest.skip("no small file system can be mounted here")
    done = run_filling([*mount, words, "sh"], tmp_path / "outbox", 0)
    assert done.stdout == "ok\n", done.stderr


# Threads, memory, kill.


def test_a_commit_in_a_thread_and_the_loop_do_not_disturb_each_other(in_memory: Path) -> None:
    outbox = make(in_memory, segment_bytes=5_000)
    rng = random.Random(1)
    is_over = threading.Event()
    failures: list[BaseException] = []

    def committing() -> None:
        try:
            while not is_over.is_set():
                outbox.commit()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    thread = threading.Thread(target=committing)
    live: dict[int, dict[int, bytes]] = {1: {}, 2: {}}
    # With the usual 5 ms the loop below would be over after three commits: each of its writes gives the lock away.
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        thread.start()
        for _ in range(3_000):
            way = rng.choice((1, 2))
            payloads = [rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(1, 20))]
            first = outbox.append(way, payloads)
            live[way].update(enumerate(payloads, first))
            known = sorted(live[way])
            start = rng.choice(known)
            expected = [(at, live[way][at]) for at in known if at >= start][:16]
            assert outbox.read(way, start, 16, ALL) == expected
            gone = rng.sample(known, k=min(len(known), rng.randrange(22)))
            outbox.discard(way, sorted(gone))
            for position in gone:
                del live[way][position]
    finally:
        sys.setswitchinterval(interval_s)
        is_over.set()
        thread.join()
    assert not failures
    outbox.close()
    again = make(in_memory)
    for way, records in live.items():
        assert contents(again, way, count_max=500) == records
    assert again.records == outbox.records == sum(map(len, live.values()))
    assert again.bytes == outbox.bytes
    assert outbox.pending_bytes == 0
    assert outbox.counters.compactions


def fill(path: Path, records: int) -> Outbox:
    """Every third is done with."""
    outbox = make(path)
    for first in range(0, records, 500):
        outbox.append(1, [b"0123456789abcdef"] * 500)
        outbox.commit()
        outbox.discard(1, range(first, first + 500, 3))
    outbox.commit()
    return outbox


def test_a_record_on_disk_costs_little_memory(in_memory: Path) -> None:
    records = 20_000
    tracemalloc.start()
    try:
        outbox = fill(in_memory, records)
        assert outbox.records > records // 2
        assert tracemalloc.get_traced_memory()[0] < 20 * records
        outbox.read(1, 0, records, ALL)
        assert tracemalloc.get_traced_memory()[0] < 20 * records
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_million_records_cost_less_than_20_mb(in_memory: Path) -> None:
    records = 1_000_000
    found = fill(in_memory, records).records
    tracemalloc.start()
    try:
        outbox = make(in_memory)
        assert outbox.records == found > 600_000
        assert tracemalloc.get_traced_memory()[0] < 20_000_000
    finally:
        tracemalloc.stop()


COMMITS = """
import random, sys
from pathlib import Path
from hanse.federator.outbox import DAMAGES_MAX, Outbox

rng = random.Random(int(sys.argv[2]))
outbox = Outbox(Path(sys.argv[1]), bytes_max=1 << 30, segment_bytes=3_000)
gone = []
while True:
    appended = []
    for _ in range(rng.randrange(1, 6)):
        way = rng.randrange(-1, 3)
        position = outbox.ways().get(way, (0, 0))[1]
        count = rng.randrange(1, 30)
        outbox.append(way, [b"%d %d " % (way, position + n) + bytes(rng.randrange(50)) for n in range(count)])
        appended.append(f"a {way} {position} {count}")
    for way, (first, end) in outbox.ways().items():
        for position in rng.sample(range(first, end), k=(end - first) * 9 // 10):
            outbox.discard(way, [position])
            appended.append(f"d {way} {position} 1")
    print("try", *appended, sep="|", flush=True)
    outbox.commit()
    print("done", flush=True)
"""


@pytest.mark.processes
def test_what_was_committed_survives_a_kill_at_any_moment(in_memory: Path) -> None:
    committed: dict[int, dict[int, bool]] = {}  # way, position, whether it is live
    rng = random.Random(3)
    for seed in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", COMMITS, str(in_memory), str(seed)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(rng.randrange(1, 60))]
        process.kill()
        lines += process.communicate()[0].splitlines(keepends=True)
        assert sum(line == "done\n" for line in lines) > 0 or len(lines) < 3
        attempt: list[str] = []
        unsure: set[tuple[int, int]] = set()
        for line in lines:
            if line.startswith("try|") and line.endswith("\n"):
                attempt = line.strip().split("|")[1:]
                continue
            if line == "done\n":
                for word in attempt:
                    words = word.split()
                    for number in range(int(words[3])):
                        committed.setdefault(int(words[1]), {})[int(words[2]) + number] = words[0] == "a"
                attempt = []
        for word in attempt:  # the kill came during this commit
            words = word.split()
            unsure.update((int(words[1]), int(words[2]) + number) for number in range(int(words[3])))
        outbox = make(in_memory, segment_bytes=3_000)
        assert outbox.counters.damaged == outbox.counters.put_aside == 0
        for way, state in committed.items():
            found = contents(outbox, way, count_max=500)
            for position, payload in found.items():
                assert payload.startswith(b"%d %d " % (way, position))
                assert state.get(position) or (way, position) in unsure
            for position, is_live in state.items():
                assert not is_live or position in found or (way, position) in unsure
            assert outbox.ways()[way][1] > max(found, default=-1)
            committed[way] = dict.fromkeys(range(outbox.ways()[way][1]), False) | dict.fromkeys(found, True)


# Against a plain model.


class OutboxAgainstModel(RuleBasedStateMachine):
    """Any history of calls, commits and crashes gives what a dictionary of committed records gives."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.path = Path(self.folder.name)
        self.live: dict[int, dict[int, bytes]] = {-2: {}, 0: {}, 7: {}}
        self.next = dict.fromkeys(self.live, 0)
        self.durable: dict[int, dict[int, bytes]] = {way: {} for way in self.live}

    @initialize(segment_bytes=st.sampled_from([40, 150, 1_000]))
    def begin(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.outbox = make(self.path, bytes_max=3_000, segment_bytes=segment_bytes)

    def teardown(self) -> None:
        self.folder.cleanup()

    ways = st.sampled_from([-2, 0, 7])

    @rule(way=ways, payloads=st.lists(st.binary(max_size=80), max_size=8))
    def append(self, way: int, payloads: list[bytes]) -> None:
        needed = Outbox.bytes_of(payloads)
        if self.outbox.bytes + needed > 3_000:
            with pytest.raises(Unavailable):
                self.outbox.append(way, payloads)
            before = sorted(self.live[way])
            count = self.outbox.drop_oldest(way, needed)
            for position in before[:count]:
                del self.live[way][position]
            if self.outbox.bytes + needed > 3_000:
                assert not self.live[way]
                return
        assert self.outbox.append(way, payloads) == self.next[way]
        self.live[way].update(enumerate(payloads, self.next[way]))
        self.next[way] += len(payloads)

    @rule(way=ways, data=st.data())
    def discard(self, way: int, data: st.DataObject) -> None:
        top = max(self.next[way] + 2, 1)
        gone = data.draw(
            st.one_of(
                st.lists(st.integers(0, top), max_size=12),
                st.tuples(st.integers(0, top), st.integers(0, 30)).map(lambda pair: range(pair[0], sum(pair))),
            )
        )
        # What never existed must not be hit later.
        self.outbox.discard(way, gone)
        for position in gone:
            self.live[way].pop(position, None)

    @rule()
    def commit(self) -> None:
        self.outbox.commit()
        self.durable = {way: dict(records) for way, records in self.live.items()}

    @rule()
    def crash(self) -> None:
        self.outbox = make(self.path, bytes_max=3_000, segment_bytes=self.segment_bytes)
        assert self.outbox.counters.torn == self.outbox.counters.damaged == 0
        self._take_over()
        assert self.live == self.durable

    @precondition(lambda self: any(self.durable.values()))
    @rule(data=st.data())
    def power_cut(self, data: st.DataObject) -> None:
        way = data.draw(st.sampled_from([way for way, records in self.durable.items() if records]))
        last = [file for file in logs(self.path) if file.name.startswith(f"{way}_")][-1]
        cut = data.draw(st.integers(0, last.stat().st_size))
        os.truncate(last, cut)
        before = self.durable
        self.outbox = make(self.path, bytes_max=3_000, segment_bytes=self.segment_bytes)
        self._take_over()
        for other, records in before.items():
            kept = list(self.live[other].items())
            assert kept == list(records.items())[: len(kept)]
            assert other == way or len(kept) == len(records)
        self.durable = {way: dict(records) for way, records in self.live.items()}

    def _take_over(self) -> None:
        ways = self.outbox.ways()
        for way in self.live:
            self.live[way] = contents(self.outbox, way)
            end = ways.get(way, (0, 0))[1]
            assert end <= self.next[way]
            assert end > max(self.live[way], default=-1)
            self.next[way] = end

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "outbox"):
            return
        for way, records in self.live.items():
            assert contents(self.outbox, way) == records
            if way in self.outbox.ways():
                assert self.outbox.ways()[way] == (min(records, default=self.next[way]), self.next[way])
        every = [payload for records in self.live.values() for payload in records.values()]
        assert self.outbox.records == len(every)
        assert self.outbox.bytes == Outbox.bytes_of(every)


OutboxAgainstModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestOutboxAgainstModel = OutboxAgainstModel.TestCase


def test_a_read_beyond_its_limit_in_bytes_takes_nothing_more(tmp_path: Path) -> None:
    outbox = make(tmp_path, segment_bytes=100)
    first = outbox.append(1, [b"four", b"1", b""])
    assert outbox.read(1, first, 16, 2) == [(first, b"four")]  # one at least, and then no other that has a byte
    assert outbox.read(1, first, 16, 4) == [(first, b"four")]
    outbox.append(2, [b"x" * 60])
    outbox.commit()
    outbox.append(2, [b""])
    outbox.commit()
    outbox.append(2, [b"", b"y"])
    assert [position for position, _ in outbox.read(2, 0, 16, 60)] == [0, 1, 2]


# Reports of damage.


def filled(path: Path, count: int = 10, **options: int) -> Path:
    """Return the only log of a way with numbered records."""
    outbox = make(path, **options)
    outbox.append(1, numbered(count))
    outbox.commit()
    outbox.close()
    return path / "1_0.log"


def start_of(number: int) -> int:
    return HEADER_BYTES + number * (RECORD_BYTES + 10)


def flip(file: Path, at: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= 0x40
    file.write_bytes(raw)


def test_a_lost_end_of_a_log_is_reported_with_its_positions_and_its_copy_is_kept(tmp_path: Path) -> None:
    log = filled(tmp_path)
    os.truncate(log, start_of(4) + 7)
    outbox = make(tmp_path)
    (damage,) = outbox.damages
    assert (damage.way, damage.file, damage.start, damage.size) == (1, "1_0.log", start_of(4), 7)
    assert (damage.first, damage.end, damage.records) == (4, 10, 6)
    assert (damage.before, damage.after) == (numbered(10)[3], b"")
    assert (outbox.counters.damaged_records, outbox.counters.damaged_bytes) == (6, 7)
    assert (tmp_path / "1_0.log.damaged").stat().st_size == start_of(4) + 7
    assert list(contents(outbox, 1)) == [0, 1, 2, 3]
    assert outbox.append(1, [b"new"]) == 10
    outbox.commit()
    again = make(tmp_path)
    assert (again.damages, list(contents(again, 1))) == ([], [0, 1, 2, 3, 10])


def test_a_log_that_is_gone_is_reported(tmp_path: Path) -> None:
    filled(tmp_path).unlink()
    outbox = make(tmp_path)
    assert [(one.first, one.end, one.records, one.size) for one in outbox.damages] == [(0, 10, 10, 0)]
    assert outbox.ways() == {1: (10, 10)}
    assert make(tmp_path).damages == []


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1])
def test_a_log_that_lost_its_header_and_all_behind_it_is_reported(tmp_path: Path, size: int) -> None:
    os.truncate(filled(tmp_path), size)
    outbox = make(tmp_path)
    assert [(one.first, one.end, one.records, one.size) for one in outbox.damages] == [(0, 10, 10, size)]
    assert outbox.ways() == {1: (10, 10)}
    assert make(tmp_path).damages == []


def test_damage_between_records_is_reported_with_its_neighbours(tmp_path: Path) -> None:
    log = filled(tmp_path)
    flip(log, start_of(3) + RECORD_BYTES)
    flip(log, start_of(7))  # a marker
    outbox = make(tmp_path)
    assert [(one.first, one.end, one.records, one.size) for one in outbox.damages] == [
        (3, 4, 1, RECORD_BYTES + 10),
        (7, 8, 1, RECORD_BYTES + 10),
    ]
    assert (outbox.damages[0].before, outbox.damages[0].after) == (numbered(10)[2], numbered(10)[4])
    assert list(contents(outbox, 1)) == [0, 1, 2, 4, 5, 6, 8, 9]


def test_damage_to_finished_records_costs_nothing(tmp_path: Path) -> None:
    log = filled(tmp_path)
    outbox = make(tmp_path)
    outbox.discard(1, [2, 3, 8, 9])
    outbox.commit()
    flip(log, start_of(3))
    os.truncate(log, start_of(8))
    after = make(tmp_path)
    assert [one.records for one in after.damages] == [0, 0]
    assert after.counters.damaged_records == 0
    assert list(contents(after, 1)) == [0, 1, 4, 5, 6, 7]


@pytest.mark.parametrize("at", range(0, HEADER_BYTES, 3))
def test_a_damaged_header_costs_no_record(tmp_path: Path, at: int) -> None:
    log = filled(tmp_path)
    flip(log, at)
    outbox = make(tmp_path)
    assert len(contents(outbox, 1)) == 10
    assert (outbox.counters.damaged, outbox.counters.damaged_records) == (1, 0)
    outbox.append(1, [b"more"])
    outbox.commit()
    again = make(tmp_path)
    assert len(contents(again, 1)) == 11
    assert again.counters.damaged == 0


def test_damage_in_older_logs_is_reported_when_the_outbox_is_opened(tmp_path: Path) -> None:
    log = filled(tmp_path, 40, segment_bytes=400)
    assert len(logs(tmp_path)) > 2
    flip(log, start_of(1) + RECORD_BYTES)
    outbox = make(tmp_path, segment_bytes=400)
    assert [(one.first, one.end) for one in outbox.damages] == [(1, 2)]
    assert len(contents(outbox, 1)) == 39


def test_copies_and_descriptions_of_damage_are_bounded(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    for way in range(DAMAGES_MAX + 9):
        outbox.append(way, [b"x"])
    outbox.commit()
    for log in logs(tmp_path):
        flip(log, HEADER_BYTES + RECORD_BYTES)
    after = make(tmp_path)
    assert len(after.damages) == DAMAGES_MAX
    assert after.counters.damaged_records == DAMAGES_MAX + 9
    assert len(list(tmp_path.glob("*.damaged"))) == COPIES_MAX


def test_the_noted_end_may_be_damaged_or_missing(tmp_path: Path) -> None:
    filled(tmp_path)
    for raw in (b"", b"\0" * 28, b"\xff" * 28, (tmp_path / "1.end").read_bytes()[:-1] + b"\0"):
        (tmp_path / "1.end").write_bytes(raw)
        outbox = make(tmp_path)
        assert (len(contents(outbox, 1)), outbox.damages) == (10, [])
    (tmp_path / "1.end").unlink()
    assert make(tmp_path).damages == []


# Records in parts.


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_costs_one_part_of_a_record(in_memory: Path, seed: int) -> None:
    path = Path(tempfile.mkdtemp(dir=in_memory))
    rng = random.Random(seed)
    records = [tuple(rng.randbytes(rng.randint(0, 40)) for _ in range(rng.randint(1, 6))) for _ in range(12)]
    outbox = make(path, segment_bytes=700)
    outbox.append(1, records)
    assert contents(outbox, 1) == {number: b"".join(parts) for number, parts in enumerate(records)}
    outbox.commit()
    assert contents(outbox, 1) == {number: b"".join(parts) for number, parts in enumerate(records)}
    file = rng.choice(logs(path))
    flip(file, rng.randrange(file.stat().st_size))
    after = make(path, segment_bytes=700)
    found = contents(after, 1)
    differing = [number for number, parts in enumerate(records) if found.get(number, b"") != b"".join(parts)]
    assert len(differing) <= 1
    for number in differing:
        parts = records[number]
        assert found.get(number, b"") in [b"".join(parts[:k] + parts[k + 1 :]) for k in range(len(parts))]
        assert after.counters.damaged_records == 1
        assert [damage.records for damage in after.damages] == [1]
    # It is reported once, and a reader meets it without another report.
    assert contents(after, 1) == found
    assert after.counters.damaged <= 1
    shutil.rmtree(path)


def test_damage_that_comes_while_the_outbox_is_open_is_reported_once(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    outbox.append(1, [(b"one", b"two", b"three"), (b"four",)])
    outbox.commit()
    log = tmp_path / "1_0.log"
    log.write_bytes(log.read_bytes().replace(b"two", b"tWo"))
    for _ in range(2):
        assert outbox.read(1, 0, 9, ALL) == [(0, b"onethree"), (1, b"four")]
    assert [(one.first, one.end, one.records) for one in outbox.damages] == [(0, 1, 1)]
    log.write_bytes(log.read_bytes().replace(b"one", b"oNe").replace(b"three", b"thrEe"))
    assert outbox.read(1, 0, 9, ALL) == [(1, b"four")]
    assert outbox.ways() == {1: (1, 2)}


def test_a_record_of_which_only_the_first_parts_were_written_is_cut_off(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    outbox.append(1, [b"first"])
    outbox.commit()
    outbox.append(1, [(b"a" * 30, b"b" * 30, b"c" * 30)])
    noted = (tmp_path / "1.end").read_bytes()
    outbox.commit()
    (tmp_path / "1.end").write_bytes(noted)  # the commit did not return
    log = tmp_path / "1_0.log"
    os.truncate(log, log.stat().st_size - 10)
    after = make(tmp_path)
    assert (contents(after, 1), after.damages, after.counters.torn) == ({0: b"first"}, [], 1)
    assert after.append(1, [b"again"]) == 1
    after.commit()
    assert contents(make(tmp_path), 1) == {0: b"first", 1: b"again"}


def test_the_end_of_a_record_that_is_lost_is_reported(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    outbox.append(1, [b"first", (b"a" * 30, b"b" * 30, b"c" * 30)])
    outbox.commit()
    log = tmp_path / "1_0.log"
    os.truncate(log, log.stat().st_size - 10)
    after = make(tmp_path)
    assert contents(after, 1) == {0: b"first", 1: b"a" * 30 + b"b" * 30}
    assert [(one.first, one.end, one.records, one.before) for one in after.damages] == [(1, 2, 1, b"b" * 30)]
    again = make(tmp_path)
    assert contents(again, 1) == contents(after, 1)
