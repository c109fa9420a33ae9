"""Live alarms: a small stateful query beside the ingest, from the spool to `gold_alarms` and the operator."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from hanse.errors import LocalError
from hanse.pipeline.schemas.alarms import TABLE
from hanse.pipeline.tables import StoredTable, checkpoint_id
from hanse.pipeline.transforms.live_alarms import FORGET_S, SILENT_S, live_alarms
from hanse.telemetry.topic import FILTER_ALL

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Alarms:
    """Settings of the alarm query."""

    warehouse: Path
    spool: Path
    silent_s: float = SILENT_S
    trigger_s: float = 2.0
    options: dict[str, str] = field(default_factory=dict)
    """Further options of the source `mqtt`."""

    def __post_init__(self) -> None:
        if not 1.0 <= self.silent_s <= FORGET_S:
            raise LocalError(f"An alarm after {self.silent_s} s of silence; it must be 1 s to a day, 10 s by default.")

    @property
    def checkpoint(self) -> Path:
        """Directory where Spark keeps the query's progress and state."""
        return (self.warehouse / "checkpoints" / TABLE.name).absolute()


@dataclass(frozen=True, slots=True)
class AlarmSink:
    """Sink for `foreachBatch`: stores a micro-batch's alarms exactly once and reports them.

    An empty micro-batch is not committed.
    """

    path: str
    checkpoint: str
    tell: Tell

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Store one micro-batch; the query is evaluated only once."""
        rows = frame.collect()
        if not rows:
            return
        alarms = frame.sparkSession.createDataFrame(rows, TABLE.struct)
        table = StoredTable(self.path, TABLE.arrow)
        if not table.append(alarms, app_id=checkpoint_id(self.checkpoint), batch_id=batch_id).skipped:
            for row in sorted(rows, key=lambda one: (one["at"], one["reporter"])):
                self.tell(describe(row))


def describe(row: Row) -> str:
    """Format an alarm as one line."""
    what = "has been silent for" if row["alarm"] == "silent" else "is back after"
    return f"{row['at']:%Y-%m-%d %H:%M:%S} {row['reporter']} {what} {row['silent_s']:.1f} s"


def alarms_table(warehouse: Path) -> StoredTable:
    """Return the table that stores the alarms."""
    return StoredTable(warehouse.absolute() / TABLE.name, TABLE.arrow)


def start(spark: SparkSession, alarms: Alarms, tell: Tell, *, once: bool = False) -> StreamingQuery:
    """Start the query; with `once`, it reads the data that is there and ends."""
    # Alarms from before the start are in gold; reported here they would only be late.
    options = {"startingOffsets": "earliest" if once else "latest", "topics": FILTER_ALL, "consumer": TABLE.name}
    options |= {"spool": str(alarms.spool.absolute())} | alarms.options
    rows = spark.readStream.format("mqtt").options(**options).load()
    sink = AlarmSink(str(alarms_table(alarms.warehouse).path), str(alarms.checkpoint), tell)
    writer = (
        live_alarms(rows, alarms.silent_s)
        .writeStream.queryName(TABLE.name)
        .foreachBatch(sink)
        .outputMode("append")
        .option("checkpointLocation", str(alarms.checkpoint))
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{alarms.trigger_s} seconds").start()
