from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hanse.mqtt.publication import encode
from hanse.pipeline.frame_rows import Received, build, last_ids
from hanse.pipeline.schemas.mqtt import SPOOLED_ROW
from hanse.pipeline.spool import SpoolLimits, SpoolWriter
from hanse.protocol.messages import Run


def run(origin: int, first: int, count: int, *, qos: int = 1, hops: int = 1, epoch: int = 7) -> Run:
    body = b"".join(encode(f"t/{first + n}", b"%d" % n, qos=qos) for n in range(count))
    return Run(origin, epoch, first, count, qos, hops, ("t/#",), body)


def test_every_publication_of_a_run_is_a_row_with_its_own_id() -> None:
    batches = [Received(5, [run(3, 10, 2, hops=2), run(4, 0, 1, qos=0)]), Received(6, [run(3, 12, 1, qos=2)])]
    batch, owed = build("p", batches, 100)
    assert batch.schema.equals(SPOOLED_ROW)
    assert owed == 3
    columns = ("seq", "topic", "qos", "origin_broker", "message_id", "hops", "dup")
    rows = list(zip(*(batch.column(name).to_pylist() for name in columns), strict=True))
    assert rows == [
        (100, "t/10", 1, "3", "3-7-10", 2, False),
        (101, "t/11", 1, "3", "3-7-11", 2, False),
        (102, "t/0", 0, "4", "4-7-0", 1, False),
        (103, "t/12", 2, "3", "3-7-12", 1, False),
    ]
    assert [at.microsecond for at in batch.column("received_at").to_pylist()] == [5, 5, 5, 6]


def spool(root: Path, received_us: int, *runs: Run, segment_bytes: int = 1 << 26) -> None:
    with SpoolWriter(root, "p", limits=SpoolLimits(segment_bytes_max=segment_bytes, free_bytes_min=0)) as writer:
        batch, _ = build("p", [Received(received_us, list(runs))], writer.position.rows)
        writer.append(batch, received_us_min=received_us, received_us_max=received_us)


def test_a_restart_reads_the_ids_of_the_last_rows_as_ranges(tmp_path: Path) -> None:
    assert last_ids(str(tmp_path), "p") == []
    spool(tmp_path, 1, run(3, 10, 3), run(3, 13, 2), run(4, 0, 1))
    spool(tmp_path, 2, run(3, 15, 1), run(3, 15, 1, epoch=8))
    assert last_ids(str(tmp_path), "p") == [(3, 7, 10, 5), (4, 7, 0, 1), (3, 7, 15, 1), (3, 8, 15, 1)]


def test_a_restart_reads_back_only_the_segments_that_a_power_cut_can_affect(tmp_path: Path) -> None:
    for n in range(4):
        spool(tmp_path, n * 100_000_000, run(3, n, 1), segment_bytes=1)
    assert last_ids(str(tmp_path), "p", look_back_s=120) == [(3, 7, 1, 1), (3, 7, 2, 1), (3, 7, 3, 1)]
    assert last_ids(str(tmp_path), "p", look_back_s=0) == [(3, 7, 3, 1)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=6))
def test_id_ranges_are_complete_in_any_order(pieces: list[tuple[int, int, int]]) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as root:
        spool(Path(root), 1, *(run(*piece) for piece in pieces))
        meant = {(origin, first + n) for origin, first, count in pieces for n in range(count)}
        found = {(origin, first + n) for origin, _, first, count in last_ids(root, "p") for n in range(count)}
        assert found == meant
