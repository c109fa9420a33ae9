"""Conversion of a federation's runs to spool rows, and of spool rows to the ids that a restarted collector needs.

Rules: `message_id` is `origin-epoch-seq`; `hops` is the number of links that the publication crossed; `origin_broker`
is the id of the federator beside the broker where it was published. Rows are built one block at a time, in the commit
thread.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from hanse.mqtt.publication import decode
from hanse.pipeline.collector_rows import properties_column, properties_of
from hanse.pipeline.schemas.mqtt import SPOOLED_ROW
from hanse.pipeline.spool import SpoolReader, read_slice
from hanse.protocol.messages import Run
from hanse.protocol.packets import split

# How far back a restart reads, in time of receipt. The ring of ids is a mapped file: a power cut may lose the part that
# the kernel has not written back, which is half a minute by Linux's defaults.
LOOK_BACK_S = 120.0

# Origin, epoch, first sequence number, count.
Ids = tuple[int, int, int, int]


class Received(NamedTuple):
    """Runs that arrived together, and their time of receipt."""

    received_us: int
    runs: list[Run]

    @property
    def rows(self) -> int:
        """Number of publications in the runs."""
        return sum(run.length for run in self.runs)


def build(producer: str, batches: list[Received], first_row: int) -> tuple[pa.RecordBatch, int]:
    """Return the Arrow batch of these publications, and the number of its rows with QoS 1 or 2."""
    received = [(one.received_us, run) for one in batches for run in one.runs]
    packets = [decode(run.body[start:end]) for _, run in received for start, end in split(run.body)]
    count = len(packets)

    def each(values: Iterable[object], kind: pa.DataType) -> pa.Array:
        """Repeat each run's value for each of its publications."""
        lengths = (run.length for _, run in received)
        return pa.array([value for value, length in zip(values, lengths, strict=True) for _ in range(length)], kind)

    columns = [
        pa.array([producer] * count, pa.string()),
        pa.array(range(first_row, first_row + count), pa.int64()),
        each((received_us for received_us, _ in received), pa.timestamp("us", tz="UTC")),
        pa.array([packet.topic for packet in packets], pa.string()),
        pa.array([bytes(packet.payload) for packet in packets], pa.binary()),
        each((run.qos for _, run in received), pa.int32()),
        pa.array([packet.retain for packet in packets], pa.bool_()),
        pa.array([False] * count, pa.bool_()),
        properties_column([properties_of(packet) for packet in packets]),
        each((str(run.origin) for _, run in received), pa.string()),
        pa.array(
            [f"{run.origin}-{run.epoch}-{run.first + offset}" for _, run in received for offset in range(run.length)],
            pa.string(),
        ),
        each((run.hops for _, run in received), pa.int32()),
        pa.nulls(count, pa.int32()),
    ]
    owed = sum(run.length for _, run in received if run.qos)
    return pa.RecordBatch.from_arrays(columns, schema=SPOOLED_ROW), owed


def last_ids(spool: str, producer: str, look_back_s: float = LOOK_BACK_S) -> list[Ids]:
    """Return the ids of the rows received last. They are durable, even if the ring has lost them."""
    reader = SpoolReader(spool, producer)
    end, found = reader.tail(), list[list[Ids]]()
    newest_us: int | None = None
    for start in reversed(reader.starts()):
        here: list[Ids] = []
        oldest_us: int | None = None
        for part in reader.slices(start, end):
            for batch in read_slice(part):
                here += _ranges(batch.column("message_id").to_pylist())
                times_us = batch.column("received_at").cast(pa.int64()).to_pylist()
                oldest_us = min(times_us) if oldest_us is None else min(oldest_us, *times_us)
                newest_us = max(times_us) if newest_us is None else max(newest_us, *times_us)
        found.append(here)
        end = start
        if oldest_us is not None and newest_us is not None and newest_us - oldest_us >= look_back_s * 1e6:
            break
    return [ids for some in reversed(found) for ids in some]


def _ranges(names: list[str | None]) -> Iterator[Ids]:
    """Yield the ids as ranges; skip rows without an id, which a collector that was a plain client wrote."""
    current: Ids | None = None
    for name in names:
        if name is None:
            continue
        origin, epoch, seq = map(int, name.split("-"))
        if current is not None and current[:2] == (origin, epoch) and current[2] + current[3] == seq:
            current = (origin, epoch, current[2], current[3] + 1)
            continue
        if current is not None:
            yield current
        current = (origin, epoch, seq, 1)
    if current is not None:
        yield current
