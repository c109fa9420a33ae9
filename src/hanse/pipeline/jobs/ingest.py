"""The ingest job: everything the spool holds (or a broker sends) into bronze, in one wide query."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from hanse.errors import HanseError, LocalError
from hanse.pipeline.schemas import mqtt
from hanse.pipeline.tables import BatchSink, bronze


@dataclass(frozen=True, slots=True)
class Ingest:
    """What to read, where to, how often."""

    warehouse: Path
    options: Mapping[str, str] = field(default_factory=dict)
    """The options of the source `mqtt`."""
    trigger_s: float = 5.0
    """A batch this often; each costs about 0.4 s of its own."""

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps how far the query has come; it belongs to the table beside it."""
        return self.warehouse / "checkpoints" / "bronze_mqtt"


def start(spark: SparkSession, ingest: Ingest, *, once: bool = False) -> StreamingQuery:
    """Start the query; with `once`, it reads what is there and ends."""
    table = bronze(ingest.warehouse)
    options = dict(ingest.options)
    # Under this name the janitor knows what is still to be read.
    options.setdefault("consumer", "bronze_mqtt")
    rows = spark.readStream.format("mqtt").options(**options).load()
    sink = BatchSink(str(table.path.absolute()), mqtt.ROW, str(ingest.checkpoint.absolute()))
    writer = (
        rows.writeStream.queryName("bronze_mqtt")
        .foreachBatch(sink)
        .option("checkpointLocation", str(ingest.checkpoint.absolute()))
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{ingest.trigger_s} seconds").start()


@dataclass(frozen=True, slots=True)
class Progress:
    """One batch, as the operator sees it."""

    batch_id: int
    rows: int
    rows_per_s: float
    lag_rows: int


def read_progress(progress: Any) -> Progress:  # noqa: ANN401 - classic and Connect have types of their own
    """What Spark reports of a batch, and how far the spool is ahead of it."""
    # Connect's object lacks some of the keys that classic's has; both have the same JSON.
    progress = json.loads(progress.json)
    source = progress["sources"][0]
    reached, latest = _rows(source["endOffset"]), _rows(source["latestOffset"])
    return Progress(
        batch_id=int(progress["batchId"]),
        rows=int(source["numInputRows"] or 0),
        rows_per_s=float(source["processedRowsPerSecond"] or 0.0),
        lag_rows=max(0, latest - reached),
    )


def watch(query: StreamingQuery, tell: Callable[[Progress], None], *, poll_s: int = 1) -> None:
    """Tell each batch until the query ends.

    Raises:
        HanseError: the query failed; the message is what its source or sink said.
    """
    told = -1

    def tell_new() -> None:
        nonlocal told
        for one in query.recentProgress:
            seen = read_progress(one)
            if seen.batch_id > told and seen.rows:
                told = seen.batch_id
                tell(seen)

    try:
        while not query.awaitTermination(poll_s):
            tell_new()
    except StreamingQueryException as failure:
        tell_new()
        raise explain(failure) from failure
    tell_new()


def explain(failure: Exception) -> HanseError:
    """Spark's error as one sentence: our own, if one of ours stands in the trace."""
    text = str(failure)
    for line in text.splitlines():
        kind, _, message = line.strip().partition(": ")
        if kind.startswith("hanse.") and message:
            return LocalError(message)
    return LocalError(f"The query failed: {text.splitlines()[0][:500] if text else type(failure).__name__}")


def _rows(offset: Any) -> int:  # noqa: ANN401 - JSON text on classic, perhaps parsed already
    value = json.loads(offset) if isinstance(offset, str) else offset
    return sum(int(position["rows"]) for position in (value or {}).values())
