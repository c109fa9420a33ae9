"""Sink: publishes the rows of a batch or a stream at a broker.

Rules:

1. A task is complete when the broker has acknowledged every one of its rows (QoS 1 and 2).
2. At least once: if Spark repeats a task or a batch, its rows are published again. Each row carries a message id that
   is the same in every attempt: `<app>/<batch>/<partition>/<row>` in the user property `hanse-message-id`. Federators
   drop repetitions by this id at their ingress; subscribers at the same broker may see them.
3. A row that cannot be published (no topic, or a wildcard in it) fails the batch with an error that names the row.
   Nothing is left out.
"""

import asyncio
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, BooleanType, IntegralType, StringType, StructType

from hanse.errors import HanseError, LocalError, Unavailable
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import encode
from hanse.mqtt.tls import TlsSettings
from hanse.pipeline.schemas import mqtt as contract
from hanse.pipeline.sources.options import WriteOptions

MESSAGE_ID_PROPERTY = "hanse-message-id"

# Packets passed to the client in one call; larger runs save calls, smaller ones memory.
_ROWS_A_RUN = 500
# If no acknowledgement arrives for this long, the task fails and Spark retries it.
_PROGRESS_DEADLINE_S = 60.0
# Long enough to resume a broken connection before the deadline.
_SESSION_EXPIRY_S = 120

_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


@dataclass
class Published(WriterCommitMessage):
    """Result of one task."""

    rows: int


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Raise LocalError if rows of this schema cannot be published."""
    known = {"topic", "payload", "qos", "retain", "properties", *contract.ROW.names}
    strange = [name for name in schema.names if name not in known]
    if strange:
        raise LocalError(
            f"The mqtt sink does not know the columns {', '.join(strange)}; select topic and payload, and "
            "optionally qos, retain and properties."
        )
    kinds = {field.name: field.dataType for field in schema.fields}
    if "topic" not in kinds and options.topic is None:
        raise LocalError("There is no column topic; add one, or give the option topic for all rows.")
    if "payload" not in kinds:
        raise LocalError("There is no column payload; add one of binary or string.")
    wanted: dict[str, tuple[type, ...]] = {
        "topic": (StringType,),
        "payload": (BinaryType, StringType),
        "qos": (IntegralType,),
        "retain": (BooleanType,),
    }
    for name, types in wanted.items():
        if name in kinds and not isinstance(kinds[name], types):
            names = " or ".join(kind.__name__ for kind in types)
            raise LocalError(f"The column {name} is {kinds[name].simpleString()}; expected {names}. Cast it.")
    if "properties" in kinds and kinds["properties"] != contract.struct_type()["properties"].dataType:
        raise LocalError("The column properties is not of the source's type; see docs/pipeline.md for its fields.")


class MqttBatchWriter(DataSourceArrowWriter):
    """Writer for `df.write.format("mqtt")`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        # Created once for all tasks and their retries: this object is pickled into them.
        self._app_id = options.app_id or uuid.uuid4().hex[:16]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of one task."""
        return publish_task(iterator, self._options, self._app_id, batch_id="0")


class MqttStreamWriter(DataSourceStreamArrowWriter):
    """Writer for `df.writeStream.format("mqtt")`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of one task of a micro-batch."""
        context = TaskContext.get()
        batch_id = context.getLocalProperty(_BATCH_ID) if context else None
        app_id = self._options.app_id or (context.getLocalProperty(_QUERY_ID) if context else None)
        if batch_id is None or app_id is None:
            raise LocalError("Spark did not provide the ids of the query and the batch; give the option appId.")
        return publish_task(iterator, self._options, app_id, batch_id)


def publish_task(batches: Iterator[pa.RecordBatch], options: WriteOptions, app_id: str, batch_id: str) -> Published:
    """Publish a task's rows and wait until the broker has acknowledged all of them."""
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    prefix = f"{app_id}/{batch_id}/{partition}/"
    return Published(asyncio.run(_publish(batches, options, prefix)))


async def _publish(batches: Iterator[pa.RecordBatch], options: WriteOptions, prefix: str) -> int:
    tally = _Tally()
    has_tls = options.ca_file or options.cert_file
    name = options.client_id or "hanse-sink"
    client = Client(
        ClientSettings(
            url=options.url,
            # Tasks of one query run in parallel, and a retry may run beside the attempt that it replaces.
            client_id=f"{name}-{uuid.uuid4().hex[:12]}",
            username=options.username,
            password=options.password,
            tls=TlsSettings(
                ca_file=Path(options.ca_file) if options.ca_file else None,
                cert_file=Path(options.cert_file) if options.cert_file else None,
                key_file=Path(options.key_file) if options.key_file else None,
            )
            if has_tls
            else None,
            session_expiry_s=_SESSION_EXPIRY_S,
        ),
        tally,
    )
    rows = 0
    await client.start(must_connect=True)
    try:
        for batch in batches:
            for run, count, acknowledgeable in _runs(batch, options, prefix, rows):
                while client.credit < acknowledgeable or not client.is_connected:
                    await tally.wait_for_progress()
                client.publish_run(run, count=count)
                tally.sent += acknowledgeable
                rows += count
                tally.raise_if_refused()
                # Let the event loop read the broker's replies between two runs.
                await asyncio.sleep(0)
        while tally.acknowledged < tally.sent:
            await tally.wait_for_progress()
        tally.raise_if_refused()
    finally:
        await client.stop()
    if dropped := sum(client.counters.drops.values()):
        raise Unavailable(f"{dropped} publications at QoS 0 were not sent: the broker reads too slowly. Use QoS 1.")
    return rows


class _Tally(ClientHandler):
    """Acknowledgements and refusals of one task's publications."""

    def __init__(self) -> None:
        self.sent = self.acknowledged = 0
        self._refused: list[tuple[int, int]] = []
        self._last_error: HanseError | None = None
        self._progress = asyncio.Event()

    def on_connected(self, session_present: bool) -> None:
        del session_present
        self._progress.set()

    def on_disconnected(self, error: HanseError | None) -> None:
        self._last_error = error

    def on_acknowledged(self, numbers: list[int]) -> None:
        self.acknowledged += len(numbers)
        self._progress.set()

    def on_refused(self, refused: list[tuple[int, int]]) -> None:
        self._refused += refused
        self._progress.set()

    def on_credit(self) -> None:
        self._progress.set()

    async def wait_for_progress(self) -> None:
        self._progress.clear()
        self.raise_if_refused()
        try:
            await asyncio.wait_for(self._progress.wait(), _PROGRESS_DEADLINE_S)
        except TimeoutError:
            why = f": {self._last_error}" if self._last_error else ""
            raise Unavailable(
                f"The broker acknowledged {self.acknowledged} of {self.sent} publications and then nothing for "
                f"{_PROGRESS_DEADLINE_S:.0f} s{why}"
            ) from None
        self.raise_if_refused()

    def raise_if_refused(self) -> None:
        if self._refused:
            codes = sorted({f"0x{code:02X}" for _, code in self._refused})
            raise LocalError(
                f"The broker refused {len(self._refused)} publications, with reason {', '.join(codes)} (MQTT 5, "
                "table 2-6); check its access rules and limits."
            )


def _runs(
    batch: pa.RecordBatch, options: WriteOptions, prefix: str, first_row: int
) -> Iterable[tuple[bytes, int, int]]:
    """Yield runs of packets: the bytes, the number of packets, and how many of them the broker will acknowledge."""
    count = batch.num_rows
    topics = _column(batch, "topic", options.topic)
    payloads = _column(batch, "payload", None)
    qos_of = _column(batch, "qos", options.qos)
    retain_of = _column(batch, "retain", options.retain)
    properties = _column(batch, "properties", None)
    for start in range(0, count, _ROWS_A_RUN):
        packets, acknowledgeable = [], 0
        for n in range(start, min(start + _ROWS_A_RUN, count)):
            row, payload = first_row + n, payloads[n]
            try:
                qos = options.qos if qos_of[n] is None else qos_of[n]
                packets.append(
                    encode(
                        topics[n] if topics[n] is not None else options.topic or "",
                        payload.encode() if isinstance(payload, str) else payload or b"",
                        qos=qos,
                        retain=bool(retain_of[n]),
                        **_properties(properties[n], f"{prefix}{row}"),
                    )
                )
            except (LocalError, ValueError) as error:
                raise LocalError(f"Row {prefix}{row} cannot be published: {error}") from error
            acknowledgeable += 1 if qos else 0
        yield b"".join(packets), len(packets), acknowledgeable


def _column(batch: pa.RecordBatch, name: str, default: object) -> Sequence[Any]:
    if name in batch.schema.names:
        found: list[Any] = batch.column(name).to_pylist()
        return found
    return [default] * batch.num_rows


def _properties(found: dict[str, Any] | None, message_id: str) -> dict[str, Any]:
    given = found or {}
    user = [(one["name"], one["value"]) for one in given.get("user") or () if one["name"] != MESSAGE_ID_PROPERTY]
    return {
        "expiry_s": given.get("message_expiry_s"),
        "payload_format_indicator": given.get("payload_format") or 0,
        "content_type": given.get("content_type"),
        "response_topic": given.get("response_topic"),
        "correlation_data": given.get("correlation_data"),
        "user_properties": [*user, (MESSAGE_ID_PROPERTY, message_id)],
    }
