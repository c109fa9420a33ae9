"""Small batches and spools for the tests of the spool."""

from pathlib import Path

import pyarrow as pa

from hanse.pipeline.spool import Position, SpoolLimits, SpoolReader, SpoolWriter, read_slice

ROOMY = SpoolLimits(free_bytes_min=0)


def batch(first: int, count: int, size: int = 8) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict(
        {
            "seq": pa.array(numbers, pa.int64()),
            "payload": pa.array([str(n).encode().rjust(size, b".") for n in numbers], pa.binary()),
        }
    )


def fill(writer: SpoolWriter, sizes: list[int], received_us: int = 0) -> list[Position]:
    """Append one block per size; block n is received at `received_us + n`."""
    ends = []
    for n, count in enumerate(sizes):
        at = received_us + n
        ends.append(writer.append(batch(writer.position.rows, count), received_us_min=at, received_us_max=at))
    return ends


def numbers(root: Path, producer: str, start: Position | None = None, end: Position | None = None) -> list[int]:
    reader = SpoolReader(root, producer)
    parts = reader.slices(start or reader.head(), end or reader.tail())
    return [n for part in parts for found in read_slice(part) for n in found.column("seq").to_pylist()]
