# ruff: noqa: N802 - the methods have Spark's names
"""Streaming reader: offsets, limits and tasks. It reads only indexes; the tasks read the rows.

Rules:

1. An offset is `{producer: {seg, pos, rows}}` at block boundaries. It grows when a producer appears.
2. A batch respects the limits and divides them fairly between producers. It takes at least one block from each producer
   that has one, so that none starves. It exceeds a limit by at most one block per producer.
3. The same range always gives the same tasks and rows, whenever it is planned.
4. Nothing relies on `commit` (it comes one batch late, and never for the last batch) or on `stop` (it may never come).
5. The helper process starts with the first request for offsets, not in `__init__`, which Spark runs twice.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from hanse.pipeline.sources.helper import CollectorHelper
from hanse.pipeline.sources.options import ReadOptions
from hanse.pipeline.sources.rows import SLICE_BYTES, SpoolPartition, cut, read_rows
from hanse.pipeline.spool import Position, Slice, SpoolReader, list_producers, save_mark

_log = logging.getLogger(__name__)

Offset = dict[str, Position]


def to_json(offset: Mapping[str, Position]) -> dict[str, Any]:
    """Convert an offset to the form in Spark's log."""
    return {producer: position.to_json() for producer, position in sorted(offset.items())}


def from_json(value: Mapping[str, Any]) -> Offset:
    """Read an offset from Spark's log."""
    return {producer: Position.from_json(position) for producer, position in value.items()}


class MqttStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("mqtt")`."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._readers: dict[str, SpoolReader] = {}
        self._target: Offset | None = None
        self._helper: CollectorHelper | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need only the options; indexes and the helper stay with the driver.
        return {"options": self.options, "_readers": {}, "_target": None, "_helper": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset where a query without a checkpoint starts."""
        self._keep_helper()
        starting = self.options.starting
        if isinstance(starting, dict):
            return to_json(starting)
        ends = self._tails() if starting == "latest" else self._heads()
        return to_json(ends)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the row limit; `latestOffset` applies the byte limit, because Spark passes only one limit."""
        return ReadMaxRows(self.options.rows_per_batch_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch."""
        self._keep_helper()
        rows_max: int | None = None
        bytes_max: int | None = None
        match limit:
            case ReadMaxRows(max_rows):
                rows_max, bytes_max = max_rows, self.options.bytes_per_batch_max
            case ReadMaxBytes(max_bytes):
                rows_max, bytes_max = self.options.rows_per_batch_max, max_bytes
            case _:
                # ReadAllAvailable: Spark wants everything in one batch.
                pass
        target = self._target if self._target is not None else self._tails()
        return to_json(self._advance(self._from(start, target), target, rows_max, bytes_max))

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of the spool, from which the query's progress shows the lag."""
        return to_json(self._tails())

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run: it reads only rows that are in the spool now."""
        self._keep_helper()
        if self._helper is not None:
            # With a collector of our own, "now" means after it has received the messages that the broker had queued for
            # it.
            self._helper.wait_until_settled()
        self._target = self._tails()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of a batch."""
        ends = from_json(end)
        begins = self._from(start, ends)
        ranges = [(self._reader(producer), begins[producer], ends[producer]) for producer in sorted(ends)]
        slices: list[Slice] = []
        for reader, begin, stop in ranges:
            slices.extend(reader.slices(begin, stop, slice_bytes=SLICE_BYTES))
        return [
            SpoolPartition(task, self.options.topics, fail_on_data_loss=self.options.fail_on_data_loss)
            for task in cut(slices, self.options.partitions_min)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
        return read_rows(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Save the consumer's mark, so that the janitor may delete older segments."""
        if self.options.consumer:
            save_mark(self.options.spool, self.options.consumer, from_json(end))

    def stop(self) -> None:
        """End the helper; without this call it ends with this process."""
        if self._helper is not None:
            self._helper.stop()

    def _keep_helper(self) -> None:
        if self.options.collector is not None:
            if self._helper is None:
                self._helper = CollectorHelper(self.options.collector)
            self._helper.ensure_running()

    def _reader(self, producer: str) -> SpoolReader:
        if producer not in self._readers:
            self._readers[producer] = SpoolReader(self.options.spool, producer)
        return self._readers[producer]

    def _producers(self) -> list[str]:
        there = list_producers(self.options.spool)
        return [one for one in there if self.options.producer in {None, one}]

    def _tails(self) -> Offset:
        found = {producer: self._reader(producer).tail() for producer in self._producers()}
        return {producer: position for producer, position in found.items() if position.seg}

    def _heads(self) -> Offset:
        found = {producer: self._reader(producer).head() for producer in self._producers()}
        return {producer: position for producer, position in found.items() if position.seg}

    def _from(self, start: Mapping[str, Any], ends: Offset) -> Offset:
        """Return the position from which to read each producer in `ends`."""
        begins = from_json(start)
        for producer in ends:
            head = self._reader(producer).head()
            begin = begins.setdefault(producer, head)
            if begin.rows < head.rows and not self.options.fail_on_data_loss:
                _log.warning(
                    "Rows %d to %d of producer %s were deleted before they were read; continuing without them because "
                    "failOnDataLoss=false.",
                    begin.rows,
                    head.rows - 1,
                    producer,
                )
                begins[producer] = head
        return begins

    def _advance(self, begins: Offset, target: Offset, rows_max: int | None, bytes_max: int | None) -> Offset:
        reached = dict(begins)
        # Producers with the least to read come first; the rest of their share goes to the others.
        waiting = sorted(target, key=lambda producer: (target[producer].rows - begins[producer].rows, producer))
        waiting = [producer for producer in waiting if target[producer].rows > begins[producer].rows]
        rows_left, bytes_left = rows_max, bytes_max
        for n, producer in enumerate(waiting):
            others = len(waiting) - n
            reader, begin = self._reader(producer), begins[producer]
            end = reader.advance(
                begin,
                end=target[producer],
                rows_max=None if rows_left is None else max(0, rows_left) // others,
                bytes_max=None if bytes_left is None else max(0, bytes_left) // others,
            )
            reached[producer] = end
            if rows_left is not None:
                rows_left -= end.rows - begin.rows
            if bytes_left is not None:
                parts = reader.slices(begin, end, slice_bytes=2**62)
                bytes_left -= sum(part.end_pos - part.start_pos for part in parts)
        return reached
