# ruff: noqa: N802 - the methods have Spark's names
"""The batch reader: what the spool holds at this moment, by time and by topic.

Rules: the end is fixed when the tasks are planned; blocks outside the time asked for are never opened; filters that
Spark pushes down only prune, Spark applies them again to every row.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from hanse.pipeline.sources.options import ReadOptions
from hanse.pipeline.sources.rows import SLICE_BYTES, SpoolPartition, cut, read_rows
from hanse.pipeline.spool import Slice, SpoolReader, list_producers


class MqttBatchReader(DataSourceReader):
    """`spark.read.format("mqtt")`."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """The tasks over all that is visible now."""
        options = self.options
        producers = [one for one in list_producers(options.spool) if options.producer in {None, one}]
        slices = [part for producer in producers for part in self._slices(SpoolReader(options.spool, producer))]
        return [
            SpoolPartition(task, options.topics, options.since_us, options.until_us, options.fail_on_data_loss)
            for task in cut(slices, options.partitions_min)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_rows(partition)

    def _slices(self, reader: SpoolReader) -> list[Slice]:
        until_us = self.options.until_us
        return reader.slices(
            reader.head(),
            reader.tail(),
            slice_bytes=SLICE_BYTES,
            received_us_min=self.options.since_us,
            received_us_max=None if until_us is None else until_us - 1,
        )


class MqttPushdownReader(MqttBatchReader):
    """The same with the query's own filters; Spark refuses this class unless its setting allows pushdown."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the times and the producer; every filter goes back to Spark, which applies it to the rows."""
        for one in filters:
            column = getattr(one, "attribute", ())
            value: Any = getattr(one, "value", None)
            if column == ("received_at",) and isinstance(value, datetime):
                self._narrow(one, _to_us(value))
            elif column == ("producer",) and isinstance(one, EqualTo) and isinstance(value, str):
                self.options = replace(self.options, producer=value)
        return filters

    def _narrow(self, one: Filter, at_us: int) -> None:
        since, until = self.options.since_us, self.options.until_us
        if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            since = at_us if since is None else max(since, at_us)
        if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
            until = at_us + 1 if until is None else min(until, at_us + 1)
        self.options = replace(self.options, since_us=since, until_us=until)


def _to_us(value: datetime) -> int:
    # Spark hands over a timestamp as local time without a zone, or as UTC with one.
    aware = value if value.tzinfo else value.astimezone()
    return round(aware.astimezone(UTC).timestamp() * 1_000_000)
