"""Schema of an `mqtt` row, as stored in the spool, read from the source and kept in bronze.

`ROW` is the only definition. Spark's StructType is derived from it (`struct_type`), so the two cannot differ: the JVM
refuses a batch whose Arrow schema differs in order, names, types or nullability. Rules:

1. `(producer, seq)` identifies a row; `seq` is gapless per producer.
2. Times are UTC, in microseconds, by the collector's clock.
3. `origin_broker`, `message_id` and `hops` are null for a plain client, because only a federation's frames carry them.
4. `properties` is null if the publication had none; this common case costs one bit.
5. The spool has one more column, `packet_id`, by which a restarted collector recognises a redelivery. It has no meaning
   outside the collector, and the source leaves it out.
"""

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

USER_PROPERTY = pa.struct(
    [pa.field("name", pa.string(), nullable=False), pa.field("value", pa.string(), nullable=False)]
)

PROPERTIES = pa.struct(
    [
        pa.field("payload_format", pa.int32()),
        pa.field("message_expiry_s", pa.int64()),
        pa.field("content_type", pa.string()),
        pa.field("response_topic", pa.string()),
        pa.field("correlation_data", pa.binary()),
        pa.field("user", pa.list_(pa.field("element", USER_PROPERTY, nullable=False))),
    ]
)

ROW = pa.schema(
    [
        pa.field("producer", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("received_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("qos", pa.int32(), nullable=False),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("dup", pa.bool_(), nullable=False),
        pa.field("properties", PROPERTIES),
        pa.field("origin_broker", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("hops", pa.int32()),
    ]
)

SPOOLED_ROW = ROW.append(pa.field("packet_id", pa.int32()))


def struct_type() -> "StructType":
    """Return the same schema for Spark."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - the spool must not load pyspark

    return from_arrow_schema(ROW)


def conform(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert a spooled batch to `ROW`: drop `packet_id`, and fill columns of a later version with nulls."""
    if batch.schema.equals(SPOOLED_ROW):
        return batch.select(ROW.names)
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in ROW
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW)
