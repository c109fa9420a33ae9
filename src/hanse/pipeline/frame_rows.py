"""From a federation's runs to rows of the spool, and back to the ids that a restarted collector must know.

Rules: a publication's id is written `origin-epoch-seq`, in `message_id`; `hops` are the links that it crossed, and
`origin_broker` is the id of the federator beside the broker where it was published. A run becomes rows a block at a
time, in the committing thread.
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

# How far back a restart looks, in the time that the rows were received: the ring of ids is a mapped file, of which a
# power cut may lose what the kernel has not written back, half a minute by Linux's defaults.
LOOK_BACK_S = 120.0

# Origin, epoch, the first sequence number, and how many.
Ids = tuple[int, int, int, int]


class Received(NamedTuple):
    """Runs that came together, and when."""

    received_us: int
    runs: list[Run]

    @property
    def rows(self) -> int:
        """The publications in them."""
        return sum(run.length for run in self.runs)


def build(producer: str, batches: list[Received], first_row: int) -> tuple[pa.RecordBatch, int]:
    """The Arrow batch of these publications, and how many rows of it are of QoS 1 or 2."""
    received = [(one.received_us, run) for one in batches for run in one.runs]
    packets = [decode(run.body[start:end]) for _, run in received for start, end in split(run.body)]
    count = len(packets)

    def each(values: Iterable[object], kind: pa.DataType) -> pa.Array:
        """One value a run, for each of its publications."""
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
    """The ids of what was spooled last, by time received: what is durable, whatever the ring knows."""
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
    """Ids as ranges; a spool that a plain client wrote before has rows without."""
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
