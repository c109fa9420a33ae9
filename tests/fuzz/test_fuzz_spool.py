"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is a producer's directory in the spool after an accident with its disk: an index, a segment, a mark, a
status. Only written rows are read. All else is one sentence for the operator, or (on request) omitted and counted.
"""

import os
from pathlib import Path

import pytest
from hypothesis import strategies as st
from tests.fuzz.fuzzing import fuzz
from tests.pipeline.spooling import spool_rows

from hanse.errors import HanseError
from hanse.pipeline import collector_status
from hanse.pipeline.spool import SpoolLimits, SpoolReader, SpoolWriter, load_marks, read_slice, save_mark
from hanse.pipeline.spool.format import START, Header, Position, Record

PRODUCER = "c"


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("spool")
    ends = spool_rows(root, PRODUCER, [3, 1, 2])
    save_mark(root, "job", {PRODUCER: ends[0]})
    return root


def rows_of(root: Path, damages: list[object] | None = None) -> list[int]:
    reader = SpoolReader(root, PRODUCER)
    found: list[int] = []
    for part in reader.slices(START, reader.tail()):
        for batch in read_slice(part, on_damage=None if damages is None else damages.append):
            found += batch.column("seq").to_pylist()
    return found


def test_no_row_is_invented_from_any_spool(spool: Path) -> None:
    folder = spool / PRODUCER
    segment, index = min(folder.glob("*.seg")), min(folder.glob("*.idx"))
    mark, status = spool / ".consumers" / "job.json", folder / collector_status._FILE
    collector_status.write_status(spool, PRODUCER, collector_status.CollectorStatus(os.getpid()))
    files = {b"s": segment, b"i": index, b"m": mark, b"t": status}
    whole = {letter: path.read_bytes() for letter, path in files.items()}

    def take(data: bytes) -> None:
        path = files.get(data[:1], index)
        path.write_bytes(data[1:])
        try:
            damages: list[object] = []
            assert set(rows_of(spool, damages)) <= set(range(6))
            collector_status.read_status(spool, PRODUCER)
            assert all(position.rows >= 0 for position in load_marks(spool)["job"].values())
            # A reopened writer repairs only its own parts, and nothing that was complete before it.
            Header.unpack(data[1:])
            if len(data) > 49:
                Record.unpack(data, 1)
            assert rows_of(spool) == list(range(6)) or path is index
            if path not in (mark, status):
                with SpoolWriter(spool, PRODUCER, limits=SpoolLimits(free_bytes_min=0)) as writer:
                    assert writer.position.rows <= 6
        finally:
            for letter, one in files.items():
                one.write_bytes(whole[letter])
            for left in set(folder.iterdir()) - {segment, index, status}:
                left.unlink()

    inputs = st.sampled_from([letter + content for letter, content in whole.items()])
    fuzz("spool", inputs, take, refusals=(HanseError,))


def test_an_invalid_offset_is_refused() -> None:
    whole = {"seg": 1, "pos": 0, "rows": 0}
    values: list[object] = [None, [], {}, {**whole, "seg": -1}, {**whole, "seg": True}, {"seg": 2**70}, "x"]
    for value in values:
        with pytest.raises(HanseError):
            Position.from_json(value)
