"""Spools of real `mqtt` rows, without a broker."""

from pathlib import Path

import pyarrow as pa

from hanse.pipeline.schemas.mqtt import PROPERTIES, SPOOLED_ROW
from hanse.pipeline.spool import Position, SpoolLimits, SpoolWriter


def rows(
    producer: str, first: int, count: int, *, received_us: int = 0, topics: int = 4, payload_bytes: int = 20
) -> pa.RecordBatch:
    """Build rows `first` to `first + count - 1`, one per microsecond; row n is on `plant/<n % topics>`."""
    numbers = range(first, first + count)
    arrays = [
        pa.array([producer] * count),
        pa.array(numbers, pa.int64()),
        pa.array([received_us + n for n in numbers], pa.timestamp("us", tz="UTC")),
        pa.array([f"plant/{n % topics}" for n in numbers]),
        pa.array([str(n).encode().rjust(payload_bytes, b".") for n in numbers], pa.binary()),
        pa.array([1] * count, pa.int32()),
        pa.array([False] * count),
        pa.array([False] * count),
        pa.array(
            [
                {"content_type": "text/plain", "user": [{"name": "n", "value": str(n)}]} if n % 3 == 0 else None
                for n in numbers
            ],
            PROPERTIES,
        ),
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.int32()),
        pa.array([n % 65535 + 1 for n in numbers], pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SPOOLED_ROW)


def spool_rows(
    root: Path, producer: str, blocks: list[int], *, received_us: int = 0, segment_bytes_max: int = 64 * 1024 * 1024
) -> list[Position]:
    """Append one block per number to a producer's spool; return the position after each."""
    ends = []
    limits = SpoolLimits(segment_bytes_max=segment_bytes_max, free_bytes_min=0)
    with SpoolWriter(root, producer, limits=limits) as writer:
        for count in blocks:
            first = writer.position.rows
            batch = rows(producer, first, count, received_us=received_us)
            ends.append(
                writer.append(
                    batch, received_us_min=received_us + first, received_us_max=received_us + first + count - 1
                )
            )
    return ends
