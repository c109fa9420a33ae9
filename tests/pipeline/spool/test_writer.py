import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.pipeline.spool.rows import ROOMY, batch, fill, numbers

from hanse.errors import LocalError
from hanse.pipeline.spool import (
    SpoolBrokenError,
    SpoolCorruptError,
    SpoolFullError,
    SpoolLimits,
    SpoolLockedError,
    SpoolReader,
    SpoolWriter,
)
from hanse.pipeline.spool.format import HEADER_BYTES, RECORD_BYTES


def segment(root: Path, n: int = 0) -> Path:
    return sorted((root / "p").glob("*.seg"))[n]


def index(root: Path, n: int = 0) -> Path:
    return sorted((root / "p").glob("*.idx"))[n]


def test_appended_rows_are_read_in_order_also_after_reopening(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        fill(writer, [3, 1, 5])
        assert numbers(tmp_path, "p") == list(range(9))
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        assert writer.position.rows == 9
        assert (writer.recovery.blocks_indexed, writer.recovery.bytes_cut) == (0, 0)
        fill(writer, [2])
    assert numbers(tmp_path, "p") == list(range(11))


def test_an_empty_batch_leaves_no_block(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        before = writer.position
        assert writer.append(batch(0, 0), received_us_min=0, received_us_max=0) == before
    assert segment(tmp_path).stat().st_size == 0


def test_segments_roll_by_size_and_rows_go_on_counting(tmp_path: Path) -> None:
    limits = SpoolLimits(segment_bytes_max=1500, free_bytes_min=0)
    with SpoolWriter(tmp_path, "p", limits=limits) as writer:
        fill(writer, [4] * 10)
    assert len(list((tmp_path / "p").glob("*.seg"))) > 2
    assert numbers(tmp_path, "p") == list(range(40))
    with SpoolWriter(tmp_path, "p", limits=limits) as writer:
        assert writer.position.rows == 40


def test_a_segment_rolls_by_age_when_the_next_block_comes(tmp_path: Path) -> None:
    clock = [1_000_000]
    limits = SpoolLimits(segment_age_s_max=10, free_bytes_min=0)
    with SpoolWriter(tmp_path, "p", limits=limits, now_us=lambda: clock[0]) as writer:
        fill(writer, [1])
        clock[0] += 9_999_999
        fill(writer, [1])
        assert writer.position.seg == 1
        clock[0] += 1
        fill(writer, [1])
        assert writer.position.seg == 2
    assert numbers(tmp_path, "p") == [0, 1, 2]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_blocks_read_like_any_other(tmp_path: Path, compression: str) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY, compression=compression) as writer:  # type: ignore[arg-type]
        fill(writer, [100])
    assert numbers(tmp_path, "p") == list(range(100))


def test_a_second_writer_is_refused_while_the_first_is_open(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY):
        with pytest.raises(SpoolLockedError, match=f"process {os.getpid()}"):
            SpoolWriter(tmp_path, "p", limits=ROOMY)
        SpoolWriter(tmp_path, "q", limits=ROOMY).close()
    SpoolWriter(tmp_path, "p", limits=ROOMY).close()


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "-x", "a" * 129, "ä"])
def test_a_producer_name_that_is_not_a_valid_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LocalError, match="cannot name a producer"):
        SpoolWriter(tmp_path, name)


def test_a_torn_tail_is_cut_at_every_length(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        fill(writer, [3])
        whole = writer.position.pos
        fill(writer, [2])
        end = writer.position.pos
    data, records = segment(tmp_path).read_bytes(), index(tmp_path).read_bytes()
    for cut in [*range(whole, whole + HEADER_BYTES + 2), *range(whole + HEADER_BYTES + 2, end, 41), end - 1]:
        segment(tmp_path).write_bytes(data[:cut])
        index(tmp_path).write_bytes(records[:RECORD_BYTES])
        with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
            assert writer.recovery.bytes_cut == cut - whole
            assert writer.position.rows == 3
        assert segment(tmp_path).stat().st_size == whole


def test_a_torn_tail_of_zeros_or_noise_is_cut(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        fill(writer, [3])
    for tail in (bytes(700), b"\xff" * 700, b"HSB1" + bytes(60)):
        with segment(tmp_path).open("ab") as file:
            file.write(tail)
        with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
            assert writer.recovery.bytes_cut == len(tail)
    assert numbers(tmp_path, "p") == [0, 1, 2]


@pytest.mark.parametrize("kept", [0, 1, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 20])
def test_an_index_that_lags_is_completed_from_the_segment(tmp_path: Path, kept: int) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        fill(writer, [3, 4])
    records = index(tmp_path).read_bytes()
    index(tmp_path).write_bytes(records[:kept])
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        assert writer.recovery.blocks_indexed == 2 - kept // RECORD_BYTES
        assert writer.recovery.bytes_cut == 0
    assert index(tmp_path).read_bytes() == records
    assert numbers(tmp_path, "p") == list(range(7))


def test_a_damaged_index_is_rebuilt_on_opening(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        fill(writer, [3, 4, 5])
    records = index(tmp_path).read_bytes()
    index(tmp_path).write_bytes(records[:10] + b"\xaa" + records[11:])
    SpoolWriter(tmp_path, "p", limits=ROOMY).close()
    assert index(tmp_path).read_bytes() == records


def test_damage_before_whole_blocks_is_not_cut_as_a_tail(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        first = fill(writer, [3, 4, 5])[0]
    index(tmp_path).write_bytes(b"")
    data = bytearray(segment(tmp_path).read_bytes())
    for at in (10, HEADER_BYTES + 30, first.pos + 3, first.pos + HEADER_BYTES + 9):
        broken = bytearray(data)
        broken[at] ^= 1
        segment(tmp_path).write_bytes(broken)
        with pytest.raises(SpoolCorruptError, match="not a torn tail"):
            SpoolWriter(tmp_path, "p", limits=ROOMY)
        assert segment(tmp_path).stat().st_size == len(data)


def test_a_segment_shorter_than_its_index_is_refused(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        fill(writer, [3, 4])
    os.truncate(segment(tmp_path), segment(tmp_path).stat().st_size - 1)
    with pytest.raises(SpoolCorruptError, match="acknowledged rows are gone"):
        SpoolWriter(tmp_path, "p", limits=ROOMY)


@contextmanager
def file_size_limit(bytes_max: int) -> Iterator[None]:
    """Limit the file size, so that the kernel refuses after a partial write, as on a disk that fills up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, hard))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGXFSZ, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_shows_nothing_of_the_block_and_the_same_append_works_later(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        fill(writer, [3])
        before = writer.position
        for room in (1, HEADER_BYTES, HEADER_BYTES + 100):
            with file_size_limit(before.pos + room), pytest.raises(SpoolFullError, match="Free space"):
                fill(writer, [50])
            assert writer.position == before
            assert segment(tmp_path).stat().st_size == before.pos
            assert SpoolReader(tmp_path, "p").tail() == before
        fill(writer, [50])
    assert numbers(tmp_path, "p") == list(range(53))


def test_a_full_disk_at_the_index_also_undoes_the_block(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
        fill(writer, [1] * 60)
        before = writer.position
        # The index is longer than this limit, but the new segment is not.
        writer.limits = SpoolLimits(segment_bytes_max=1, free_bytes_min=0)
        fill(writer, [1])
        rolled = writer.position
        writer.limits = ROOMY
        assert rolled.seg == before.seg + 1
        size = segment(tmp_path, 1).stat().st_size
        fill(writer, [1] * 20)
        at = writer.position
        index_size = index(tmp_path, 1).stat().st_size
        assert index_size < size * 21
        with file_size_limit(at.pos + 10), pytest.raises(SpoolFullError):
            fill(writer, [1])
        assert (writer.position, index(tmp_path, 1).stat().st_size) == (at, index_size)
        fill(writer, [1])
    assert numbers(tmp_path, "p") == list(range(82))


def test_the_minimum_free_space_is_preserved(tmp_path: Path) -> None:
    room = os.statvfs(tmp_path)
    limits = SpoolLimits(free_bytes_min=room.f_blocks * room.f_frsize)
    with (
        SpoolWriter(tmp_path, "p", limits=limits) as writer,
        pytest.raises(SpoolFullError, match="must stay free"),
    ):
        fill(writer, [1])


def test_a_full_quota_refuses_until_segments_are_deleted(tmp_path: Path) -> None:
    limits = SpoolLimits(free_bytes_min=0, spool_bytes_max=4000, segment_bytes_max=1)
    with SpoolWriter(tmp_path, "p", limits=limits) as writer:
        with pytest.raises(SpoolFullError, match="quota of 4000"):
            fill(writer, [1] * 20)
        kept = writer.position.rows
        assert kept > 1
        segment(tmp_path).unlink()
        index(tmp_path).unlink()
        fill(writer, [1])
    assert numbers(tmp_path, "p") == list(range(1, kept + 1))


def test_after_a_failed_sync_the_writer_is_broken_until_reopened(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "p", limits=ROOMY)
    fill(writer, [2])
    # A pipe cannot be synced, so the kernel itself returns the error.
    read_end, write_end = os.pipe()
    kept, writer._seg_fd = writer._seg_fd, write_end
    with pytest.raises(SpoolBrokenError, match="durable"):
        fill(writer, [1])
    with pytest.raises(SpoolBrokenError, match="durable"):
        fill(writer, [1])
    writer.close()
    os.close(kept)
    os.close(read_end)
    with SpoolWriter(tmp_path, "p", limits=ROOMY) as again:
        assert again.position.rows == 2


KILLED = """
import sys
from hanse.pipeline.spool import SpoolLimits, SpoolWriter
sys.path.insert(0, sys.argv[2])
from tests.pipeline.spool.rows import batch
with SpoolWriter(sys.argv[1], "p", limits=SpoolLimits(segment_bytes_max=20_000, free_bytes_min=0)) as writer:
    while True:
        at = writer.append(batch(writer.position.rows, 7), received_us_min=0, received_us_max=0)
        print(at.rows, flush=True)
"""


@pytest.mark.processes
def test_every_appended_row_survives_kill_9(tmp_path: Path) -> None:
    promised = 0
    for kill_after in (5, 40, 90):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parents[3])],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout is not None
        for _ in range(kill_after):
            promised = int(process.stdout.readline())
        process.kill()
        rest = process.stdout.read().split(b"\n")[:-1]
        process.stdout.close()
        process.wait()
        promised = int(rest[-1]) if rest else promised
        with SpoolWriter(tmp_path, "p", limits=ROOMY) as writer:
            found = numbers(tmp_path, "p")
            assert found == list(range(len(found)))
            assert promised <= len(found) == writer.position.rows <= promised + 7
