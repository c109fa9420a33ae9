"""Rows of telemetry, decoded from bronze payloads.

Rules of this module:

- A telemetry payload that equals another on the same topic byte for byte is a duplicate, because it contains the
  reporter's own times; it is read once. Equal rows in different payloads are different rows.
- A payload that cannot be decoded affects nothing else. It becomes one row of `refused` with the decoder's error.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.errors import RemoteError
from hanse.pipeline.schemas import quarantine, silver
from hanse.pipeline.transforms.shown_text import show
from hanse.telemetry import decode_columns
from hanse.telemetry.topic import ROOT, VERSION

# Rows per batch sent back to the JVM. Payloads are small (hundreds of rows); with one batch per payload, the fixed cost
# of a batch would dominate the job.
BATCH_ROWS = 20_000


def is_telemetry() -> Column:
    """Return a condition: the bronze row is on a telemetry topic, of any version or kind."""
    return F.col("topic").startswith(ROOT)


def _distinct(bronze: DataFrame) -> DataFrame:
    return bronze.groupBy("topic", "payload").agg(F.min("received_at").alias("received_at"))


def telemetry_rows(bronze: DataFrame, kind: str) -> DataFrame:
    """Return the rows of one kind, in the schema of `silver_<kind>`."""
    of_kind = bronze.where(F.col("topic").startswith(f"{ROOT}v{VERSION}/{kind}/"))
    return _distinct(of_kind).mapInArrow(partial(_decode, kind=kind), silver.TABLES[kind].struct)


def refused(bronze: DataFrame) -> DataFrame:
    """Return the telemetry payloads of all kinds that cannot be decoded, in the schema of the quarantine."""
    return _distinct(bronze.where(is_telemetry())).mapInArrow(_refuse, quarantine.TABLE.struct)


def _payloads(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, bytes, Any]]:
    for batch in batches:
        columns = [batch.column(name) for name in ("topic", "payload", "received_at")]
        for topic, payload, received_at in zip(*columns, strict=True):
            yield topic.as_py(), payload.as_py(), received_at


def _decode(batches: Iterator[pa.RecordBatch], kind: str) -> Iterator[pa.RecordBatch]:
    schema = silver.TABLES[kind].arrow
    columns: list[list[Any]] = [[] for _ in schema]
    for topic, payload, received_at in _payloads(batches):
        try:
            said, decoded = decode_columns(topic, payload)
        except RemoteError:
            continue  # `refused` reports it
        rows = len(next(iter(decoded.values())))
        columns[0] += [said.reporter] * rows
        columns[1] += [received_at.value] * rows
        for column, values in zip(columns[2:], decoded.values(), strict=True):
            column.extend(values)
        if len(columns[0]) >= BATCH_ROWS:
            yield _batch(columns, schema)
            columns = [[] for _ in schema]
    yield _batch(columns, schema)


def _batch(columns: list[list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _refuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    columns: list[list[Any]] = [[] for _ in quarantine.TABLE.columns]
    for topic, payload, received_at in _payloads(batches):
        try:
            decode_columns(topic, payload)
        except RemoteError as error:
            row = (received_at.value, "telemetry", show(topic), str(error), show(payload), len(payload))
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    yield _batch(columns, quarantine.TABLE.arrow)
