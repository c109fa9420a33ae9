"""Ingest job: one query that writes everything from the spool (or from a broker) into bronze."""

import json
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own docs use
from pyspark.sql.streaming.query import StreamingQuery

from hanse.errors import HanseError, LocalError, Unavailable
from hanse.pipeline.schemas import mqtt
from hanse.pipeline.tables import FilesSink, bronze

_COUNTED = "bronze_mqtt"

# How often in a row a query is restarted because its Python process is late. Each attempt takes ten seconds, so this is
# five minutes. More attempts would hide a machine that is too slow for it at all.
STARTS_MAX = 30
# A message is cut between two words, never inside one.
_ERROR_CHARACTERS_MAX = 500
_WORKER_LATE = "Python worker failed to connect back"


@dataclass(frozen=True, slots=True)
class Ingest:
    """Source options, target and trigger interval of the ingest."""

    warehouse: Path
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the source `mqtt`."""
    trigger_s: float = 5.0
    """Time between two batches; each batch has a fixed cost of about 0.4 s."""

    @property
    def checkpoint(self) -> Path:
        """Directory where Spark keeps the query's progress; it belongs to the table beside it."""
        return self.warehouse / "checkpoints" / "bronze_mqtt"


def start(spark: SparkSession, ingest: Ingest, *, once: bool = False) -> StreamingQuery:
    """Start the query; with `once`, it reads the data that is there and ends."""
    table = bronze(ingest.warehouse)
    options = dict(ingest.options)
    # The janitor uses this name to see how far the ingest has read.
    options.setdefault("consumer", "bronze_mqtt")
    into = table.path.absolute()
    files = spark.readStream.format("mqtt_files").options(**options).option("into", str(table.data.absolute())).load()
    # The query's own row count counts files.
    counted = files.observe(_COUNTED, F.sum("rows").alias("rows"))
    sink = FilesSink(str(into), mqtt.ROW, str(ingest.checkpoint.absolute()))
    writer = (
        counted.writeStream.queryName("bronze_mqtt")
        .foreachBatch(sink)
        .option("checkpointLocation", str(ingest.checkpoint.absolute()))
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{ingest.trigger_s} seconds").start()


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of one batch, as shown to the operator."""

    batch_id: int
    rows: int
    rows_per_s: float
    lag_rows: int


def read_progress(progress: Any) -> Progress:  # noqa: ANN401 - classic and Connect have different types
    """Read Spark's report of a batch, and compute how far the spool is ahead of it."""
    # Connect's object lacks some keys that the classic one has; both have the same JSON.
    progress = json.loads(progress.json)
    source = progress["sources"][0]
    reached, latest = _rows(source["endOffset"]), _rows(source["latestOffset"])
    # Spark counts rows for a query on `mqtt`, but files for the ingest.
    counted = (progress.get("observedMetrics") or {}).get(_COUNTED)
    if counted and "values" in counted:  # Connect encodes a row as schema and values, classic by name
        counted = {"rows": counted["values"][0]}
    rows = int((counted["rows"] if counted else source["numInputRows"]) or 0)
    took_ms = int((progress.get("durationMs") or {}).get("triggerExecution") or 0)
    return Progress(
        batch_id=int(progress["batchId"]),
        rows=rows,
        rows_per_s=rows / took_ms * 1000 if took_ms else 0.0,
        lag_rows=max(0, latest - reached),
    )


def follow(
    begin: Callable[[], StreamingQuery],
    tell: Callable[[Progress], None],
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Start the query and report each batch until it ends; restart it if only its Python process was late.

    Spark gives that process ten seconds to start and fails the query after that. On a busy machine this happens to
    healthy queries. Continuing from the checkpoint neither loses nor duplicates rows.

    Args:
        begin: starts the query.
        tell: called with each batch.
        say: called with the reason before the query is restarted.

    Raises:
        HanseError: the query failed for another reason, or too many times in a row.
    """
    late = 0

    def tell_of_work(progress: Progress) -> None:
        nonlocal late
        late = 0
        tell(progress)

    while True:
        query: StreamingQuery | None = None
        try:
            query = _begun(begin)
            watch(query, tell_of_work)
        except Unavailable as failure:
            late += 1
            if late == STARTS_MAX:
                raise
            say(f"{failure} Starting it again.")
        else:
            return
        finally:
            if query is not None:
                query.stop()


def _begun(begin: Callable[[], StreamingQuery]) -> StreamingQuery:
    try:
        return begin()
    except PySparkException as failure:
        # Over Connect, the Python process for the batches starts before the query does.
        if _WORKER_LATE in str(failure):
            raise explain(failure) from failure
        raise


def watch(query: StreamingQuery, tell: Callable[[Progress], None], *, poll_s: int = 1) -> None:
    """Report each batch until the query ends.

    Raises:
        HanseError: the query failed; the message is the one of its source or sink.
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
    """Turn Spark's error into one sentence: the message of our own error if the trace contains one."""
    text = str(failure)
    for line in text.splitlines():
        kind, _, message = line.strip().partition(": ")
        if kind.startswith("hanse.") and message:
            return LocalError(message)
    if _WORKER_LATE in text:
        return Unavailable(
            "Spark's Python process did not start within the ten seconds that Spark allows it: the machine is busy."
        )
    first = text.strip().splitlines()[0] if text.strip() else type(failure).__name__
    return LocalError(f"The query failed: {textwrap.shorten(first, _ERROR_CHARACTERS_MAX, placeholder=' ...')}")


def _rows(offset: Any) -> int:  # noqa: ANN401 - JSON text in classic mode, sometimes already parsed
    value = json.loads(offset) if isinstance(offset, str) else offset
    return sum(int(position["rows"]) for position in (value or {}).values())
