# ruff: noqa: N802 - the methods have Spark's names
"""Batch reader: the rows in the spool at this moment, by time and topic.

Rules: the end is fixed when the tasks are planned. Blocks outside the requested time are never opened. Filters that
Spark pushes down only prune blocks; Spark applies them again to every row.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
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

from hanse.errors import LocalError
from hanse.pipeline.sources.options import ReadOptions
from hanse.pipeline.sources.rows import SLICE_BYTES, SpoolPartition, cut, read_rows
from hanse.pipeline.spool import Slice, SpoolReader, list_producers


class MqttBatchReader(DataSourceReader):
    """`spark.read.format("mqtt")`."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        # The query's own filters may ask for a producer that does not exist, and then have no rows; an option may not.
        self._named = options.producer

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks over all rows that are visible now."""
        options = self.options
        producers = self._producers()
        slices = [part for producer in producers for part in self._slices(SpoolReader(options.spool, producer))]
        return [
            SpoolPartition(task, options.topics, options.since_us, options.until_us, options.fail_on_data_loss)
            for task in cut(slices, options.partitions_min)
        ]

    def _producers(self) -> list[str]:
        """Return the producers to read.

        Raises:
            LocalError: The spool does not exist, or it has no producer of the given name.
        """
        spool = self.options.spool
        if not Path(spool).is_dir():
            raise LocalError(
                f"The spool {spool} does not exist; give the option spool the directory that a collector writes to."
            )
        there = list_producers(spool)
        if self._named is not None and self._named not in there:
            raise LocalError(
                f"The spool {spool} has no producer {self._named}; it has {', '.join(there) or 'none'}. Give one "
                "of them as clientId, or leave clientId out to read all."
            )
        return [one for one in there if self.options.producer in {None, one}]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
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
    """Batch reader that also uses the query's filters; Spark refuses this class unless its setting allows pushdown."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the time range and the producer; return all filters, so that Spark also applies them to the rows."""
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
    # Spark passes a timestamp as local time without a zone, or as UTC with one.
    aware = value if value.tzinfo else value.astimezone()
    return round(aware.astimezone(UTC).timestamp() * 1_000_000)
