"""Conversion of spool slices to the batches that Spark reads, for the streaming and the batch reader.

This code runs on executors, on a pickled copy of the reader; the partition holds everything that it needs. Small blocks
(a quiet topic commits one every few milliseconds) are joined, because a batch costs the JVM the same whatever its size.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from hanse.pipeline.schemas.mqtt import conform
from hanse.pipeline.spool import Slice, SpoolCorruptError, read_slice

_log = logging.getLogger(__name__)

# Blocks are joined until a batch has this many rows or bytes. Larger batches gain nothing, and joining copies data. A
# busy collector's blocks (1 MiB) pass unchanged.
JOINED_ROWS_MIN = 2048
JOINED_BYTES_MIN = 512 * 1024

# A task costs about 0.1 s to start, so there are only as many as keep all cores busy. Below the minimum a task costs
# more to start than to run; above the maximum a retry costs too much.
TASK_BYTES_MIN = 1024 * 1024
TASK_BYTES_MAX = 128 * 1024 * 1024

# A task reads one slice at a time into memory: at least this many bytes, up to the end of a block. The value equals the
# smallest task, so that tasks come out even.
SLICE_BYTES = 1024 * 1024


@dataclass
class SpoolPartition(InputPartition):
    """Input of one task."""

    slices: tuple[Slice, ...]
    topics: tuple[str, ...] = ()
    since_us: int | None = None
    until_us: int | None = None
    fail_on_data_loss: bool = True


def cut(slices: Sequence[Slice], partitions_min: int) -> list[tuple[Slice, ...]]:
    """Distribute the slices over tasks."""
    total_bytes = sum(part.end_pos - part.start_pos for part in slices)
    return pack(slices, count_tasks(total_bytes, partitions_min))


def count_tasks(total_bytes: int, partitions_min: int) -> int:
    """Return the number of tasks for `total_bytes`: a multiple of the cores, unless the tasks would be tiny."""
    rounds = -(-total_bytes // (partitions_min * TASK_BYTES_MAX))
    return min(partitions_min * rounds, -(-total_bytes // TASK_BYTES_MIN))


def pack(slices: Sequence[Slice], tasks: int) -> list[tuple[Slice, ...]]:
    """Distribute slices, in order, over `tasks` of about equal size; fewer if there are fewer slices."""
    sizes = [part.end_pos - part.start_pos for part in slices]
    total, before = sum(sizes), 0
    shared: dict[int, list[Slice]] = {}
    for part, size in zip(slices, sizes, strict=True):
        # The middle of a slice decides its task.
        shared.setdefault((2 * before + size) * tasks // (2 * total), []).append(part)
        before += size
    return [tuple(held) for _, held in sorted(shared.items())]


def topic_regex(filters: Sequence[str]) -> str:
    """Return an expression for the topics that match any of the filters (MQTT 5, section 4.7)."""
    alternatives = []
    for one in filters:
        levels = one.split("/")
        # 4.7.2: a leading wildcard does not match topics that begin with $.
        guard = r"[^$/][^/]*|" if levels[0] == "+" else ""
        parts = [
            f"(?:{guard})" if n == 0 and guard else "[^/]*" if level == "+" else re.escape(level)
            for n, level in enumerate(levels)
        ]
        if levels == ["#"]:
            alternatives.append(r"(?:[^$](?s:.*))?")
        elif levels[-1] == "#":
            # 4.7.1.2: sport/# also matches sport itself.
            alternatives.append("/".join(parts[:-1]) + r"(?:/(?s:.*))?")
        else:
            alternatives.append("/".join(parts))
    return "^(?:" + "|".join(alternatives) + r")\z"


def read_rows(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task, in order and in the schema of the source."""
    # Spark turns an empty list of partitions into one partition without a value.
    if not isinstance(partition, SpoolPartition):
        return iter(())
    return _joined(_wanted(partition))


def _wanted(partition: SpoolPartition) -> Iterator[pa.RecordBatch]:
    on_damage: Callable[[SpoolCorruptError], None] | None = None if partition.fail_on_data_loss else _warn
    expression = topic_regex(partition.topics) if partition.topics else None
    for part in partition.slices:
        for block in read_slice(part, on_damage=on_damage):
            batch = conform(block)
            mask = None
            if expression is not None:
                mask = pc.match_substring_regex(batch.column("topic"), expression)
            received = (
                batch.column("received_at").cast(pa.int64()) if partition.since_us or partition.until_us else None
            )
            if partition.since_us is not None:
                mask = _both(mask, pc.greater_equal(received, partition.since_us))
            if partition.until_us is not None:
                mask = _both(mask, pc.less(received, partition.until_us))
            yield batch if mask is None else batch.filter(mask)


def _both(one: pa.Array | None, other: pa.Array) -> pa.Array:
    return other if one is None else pc.and_(one, other)


def _warn(error: SpoolCorruptError) -> None:
    _log.warning("Rows are left out because failOnDataLoss=false: %s", error)


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= JOINED_ROWS_MIN or size >= JOINED_BYTES_MIN:
            yield _join(held)
            held, rows, size = [], 0, 0
    if held:
        yield _join(held)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
