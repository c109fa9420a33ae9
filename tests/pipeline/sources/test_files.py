"""The Parquet files that a task of the ingest writes."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.spooling import rows, spool_rows

from hanse.errors import LocalError
from hanse.pipeline.schemas import mqtt
from hanse.pipeline.sources import files
from hanse.pipeline.sources.files import MqttFilesReader, MqttFilesSource, land
from hanse.pipeline.sources.stream import MqttStreamReader


def reader_of(spool: Path, into: Path, **options: str) -> MqttFilesReader:
    source = MqttFilesSource({"spool": str(spool), "into": str(into), **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, MqttFilesReader)
    return reader


def landed(reader: MqttStreamReader) -> list[dict[str, object]]:
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_task_writes_its_rows_unchanged(tmp_path: Path) -> None:
    spool_rows(tmp_path / "spool", "p", [100, 7])
    found = landed(reader_of(tmp_path / "spool", tmp_path / "into"))
    assert [one["rows"] for one in found] == [107]
    table = pq.read_table(str(found[0]["path"]))
    expected = pa.Table.from_batches([mqtt.conform(rows("p", 0, 107))])
    assert table.to_pylist() == expected.to_pylist()
    assert [(field.name, field.type) for field in table.schema] == [(field.name, field.type) for field in mqtt.ROW]


def test_every_attempt_writes_a_file_of_its_own(tmp_path: Path) -> None:
    spool_rows(tmp_path / "spool", "p", [10])
    reader = reader_of(tmp_path / "spool", tmp_path / "into")
    first, second = landed(reader), landed(reader)
    assert first[0]["path"] != second[0]["path"]
    assert len(list((tmp_path / "into").iterdir())) == 2


def test_a_task_whose_rows_are_all_filtered_out_writes_no_file(tmp_path: Path) -> None:
    spool_rows(tmp_path / "spool", "p", [10])
    assert landed(reader_of(tmp_path / "spool", tmp_path / "into", topics="elsewhere/#")) == []
    assert not (tmp_path / "into").exists()


def test_a_task_holds_at_most_one_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", 50_000)
    batches = [mqtt.conform(rows("p", first, 100)) for first in range(0, 3000, 100)]
    taken = 0

    def one_by_one() -> object:
        nonlocal taken
        for batch in batches:
            taken += 1
            yield batch

    (found,) = list(land(one_by_one(), tmp_path))  # type: ignore[arg-type]
    footer = pq.read_metadata(found.column("path")[0].as_py())
    assert (footer.num_rows, taken) == (3000, 30)
    assert footer.num_row_groups > 3
    largest = max(footer.row_group(n).num_rows for n in range(footer.num_row_groups))
    assert largest * batches[0].nbytes / 100 < 50_000 + batches[0].nbytes


def test_the_files_source_needs_a_directory_and_checks_the_other_options() -> None:
    source = MqttFilesSource({"spool": "/nowhere"})
    with pytest.raises(LocalError, match="needs the option into"):
        source.streamReader(source.schema())
    wrong = MqttFilesSource({"into": "/nowhere", "topcis": "a"})
    with pytest.raises(LocalError, match="did you mean topics"):
        wrong.streamReader(wrong.schema())
