"""Client messages with a printable payload, from bronze."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from hanse.pipeline.schemas.messages import TABLE
from hanse.pipeline.transforms.shown_text import is_text, show
from hanse.pipeline.transforms.telemetry_rows import is_telemetry


def messages(bronze: DataFrame) -> DataFrame:
    """Return one row per message in bronze that is not telemetry."""
    plain = bronze.where(~is_telemetry()).select(
        F.col("received_at").alias("collected_at"),
        "topic",
        F.size(F.split("topic", "/")).alias("levels"),
        F.octet_length("payload").alias("payload_bytes"),
        "payload",
        "qos",
        F.col("retain").alias("is_retained"),
        # size() of null is null, and a message without properties has no array.
        F.coalesce(F.size("properties.user"), F.lit(0)).alias("properties"),
        F.col("origin_broker").alias("origin"),
        "message_id",
    )
    shown = StructType(
        [
            *[field for field in plain.schema if field.name != "payload"],
            StructField("payload_text", StringType()),
            StructField("is_text", BooleanType()),
        ]
    )
    return TABLE.conform(plain.mapInArrow(_show_payload, shown))


def _show_payload(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        payloads = batch.column("payload").to_pylist()
        rest = batch.drop_columns(["payload"])
        rest = rest.append_column("payload_text", pa.array([show(payload) for payload in payloads], pa.string()))
        yield rest.append_column("is_text", pa.array([is_text(payload) for payload in payloads], pa.bool_()))
