"""Measure the spool alone: rows/s written, each block synced, and read; one process, 200-byte payloads. JSON out."""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from hanse.pipeline.schemas.mqtt import SPOOLED_ROW, conform
from hanse.pipeline.spool import SpoolReader, SpoolWriter, read_slice


def block(producer: str, first: int, count: int, payload_bytes: int) -> pa.RecordBatch:
    """Return rows in the form of a collector."""
    noise = os.urandom(payload_bytes * count)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([producer] * count),
            pa.array(range(first, first + count), pa.int64()),
            pa.array([1_700_000_000_000_000 + first + n for n in range(count)], pa.timestamp("us", tz="UTC")),
            pa.array([f"plant/{n % 50}/line/{n % 7}/temperature" for n in range(first, first + count)]),
            pa.array([noise[n * payload_bytes : (n + 1) * payload_bytes] for n in range(count)], pa.binary()),
            pa.array([1] * count, pa.int32()),
            pa.array([False] * count),
            pa.array([False] * count),
            pa.nulls(count, SPOOLED_ROW.field("properties").type),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.int32()),
            pa.array([n % 65535 + 1 for n in range(first, first + count)], pa.int32()),
        ],
        schema=SPOOLED_ROW,
    )


def fill(
    root: Path, producer: str, rows: int, *, rows_a_block: int = 4000, payload_bytes: int = 200, is_fresh: bool = False
) -> None:
    """Fill a spool to read from.

    Args:
        root: its directory.
        producer: producer of the rows.
        rows: number of rows.
        rows_a_block: rows per commit.
        payload_bytes: size of each payload.
        is_fresh: whether all payloads differ. Parquet stores a repeated one once, and would read the others for
            nothing.
    """
    template = block(producer, 0, rows_a_block, payload_bytes)
    offsets = pa.array(range(0, (rows_a_block + 1) * payload_bytes, payload_bytes), pa.int32()).buffers()[1]
    with SpoolWriter(root, producer) as writer:
        for first in range(0, rows, rows_a_block):
            numbered = template.set_column(
                1, SPOOLED_ROW.field("seq"), pa.array(range(first, first + rows_a_block), pa.int64())
            )
            if is_fresh:
                noise = pa.py_buffer(os.urandom(rows_a_block * payload_bytes))
                payloads = pa.Array.from_buffers(pa.binary(), rows_a_block, [None, offsets, noise])
                numbered = numbered.set_column(4, SPOOLED_ROW.field("payload"), payloads)
            at = 1_700_000_000_000_000
            writer.append(numbered, received_us_min=at, received_us_max=at + rows_a_block)


def run(rows: int, rounds: int) -> dict[str, object]:
    written, read, commits = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            fill(Path(folder), "bench", rows)
            took = time.perf_counter() - began
            written.append(rows / took)
            commits.append(took / (rows / 4000) * 1000)
            reader = SpoolReader(folder, "bench")
            began = time.perf_counter()
            found = sum(
                conform(batch).num_rows
                for part in reader.slices(reader.head(), reader.tail())
                for batch in read_slice(part)
            )
            read.append(found / (time.perf_counter() - began))
            assert found == rows
    return {
        "rows": rows,
        "rounds": rounds,
        "write_rows_per_s": spread(written),
        "read_rows_per_s": spread(read),
        "commit_ms_of_4000_rows": spread(commits),
    }


def spread(values: list[float]) -> dict[str, float]:
    """Return median and extremes."""
    return {
        "median": round(statistics.median(values), 2),
        "min": round(min(values), 2),
        "max": round(max(values), 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(json.dumps(run(given.rows, given.rounds), indent=2))
