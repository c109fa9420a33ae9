"""docs/pipeline.md matches the code: its tables are compared with the code's own."""

import re
import zlib
from pathlib import Path

from hanse.pipeline.collector_status import CollectorStatus
from hanse.pipeline.schemas.mqtt import ROW
from hanse.pipeline.sources.options import KNOWN
from hanse.pipeline.spool.format import HEADER_BYTES, RECORD_BYTES, Header, Record

DOC = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return DOC.split(f"# {title}\n", 1)[1].split("\n#", 1)[0]


def names(title: str) -> set[str]:
    """Return the names in code quotes in the first column of a section's table."""
    cells = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def layout(after: str) -> dict[int, int | None]:
    """Return offset to size from the first table after a sentence."""
    table = DOC.split(after, 1)[1].split("\n\n", 2)[1]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    return {int(offset): int(size) if size.strip() else None for offset, size in rows}


def test_the_documented_options_are_the_existing_ones() -> None:
    assert names("Options") == set(KNOWN)


def test_every_column_is_documented() -> None:
    assert names("Columns") == set(ROW.names)


def test_every_counter_of_the_collector_is_documented() -> None:
    said = section("The collector")
    for name in CollectorStatus.__slots__:
        assert f"`{name}`" in said or name == "pid", name


def test_the_block_header_is_as_documented() -> None:
    fields = layout("A **block** is")
    packed = Header(0x11223344, 7, 2**40, -5, 6, 0xDEADBEEF).pack()
    assert len(packed) == HEADER_BYTES == 48
    read = {offset: packed[offset : offset + size] for offset, size in fields.items() if size}
    assert read[0] == b"HSB1"
    assert [int.from_bytes(read[offset], "little") for offset in (4, 6, 8, 12, 16)] == [1, 0, 0x11223344, 7, 2**40]
    assert [int.from_bytes(read[offset], "little", signed=True) for offset in (24, 32)] == [-5, 6]
    assert int.from_bytes(read[40], "little") == 0xDEADBEEF
    assert int.from_bytes(read[44], "little") == zlib.crc32(packed[:44])
    assert sum(size for size in fields.values() if size) == 48


def test_the_index_record_is_as_documented() -> None:
    fields = layout("An **index record** is")
    packed = Record(100, 9, -5, 6, 0xDEADBEEF, 7).pack()
    assert len(packed) == RECORD_BYTES == 48
    read = {offset: packed[offset : offset + size] for offset, size in fields.items() if size}
    assert [int.from_bytes(read[offset], "little") for offset in (0, 8, 32, 36, 40)] == [100, 9, 0xDEADBEEF, 7, 0]
    assert [int.from_bytes(read[offset], "little", signed=True) for offset in (16, 24)] == [-5, 6]
    assert int.from_bytes(read[44], "little") == zlib.crc32(packed[:44])
    assert sum(size for size in fields.values() if size) == 48


def test_the_python_examples_compile() -> None:
    found = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
    assert len(found) >= 3
    for text in found:
        compile(text, "docs/pipeline.md", "exec")
