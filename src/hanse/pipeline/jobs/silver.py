"""Bronze to silver: decode and check the new rows of bronze, and add them once."""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline import quality
from hanse.pipeline.jobs import progress
from hanse.pipeline.jobs.store import BRONZE, Store, Warehouse
from hanse.pipeline.transforms.messages import messages
from hanse.pipeline.transforms.telemetry_rows import refused, telemetry_rows
from hanse.telemetry import KINDS

Tell = Callable[[str], None]


def run_silver(store: Store, checkpoint: Path, tell: Tell = lambda _: None) -> int:
    """Bring silver up to date with bronze; return the number of batches done (0 or 1, or 2 after a crash).

    Args:
        store: The tables.
        checkpoint: The file with the job's progress; it belongs to the tables.
        tell: Called with each step.
    """
    done = 0
    # Read only once: bronze may grow faster than this job runs, and the job must end.
    ends = _ends(store.read(BRONZE))
    while batch := progress.following(progress.load(checkpoint), ends):
        progress.save(checkpoint, batch)
        _write(store, batch, tell)
        progress.save(checkpoint, replace(batch, is_done=True))
        done += 1
    return done


def refresh_silver(spark: SparkSession, warehouse: Path) -> str:
    """Run the job on the tables in a directory, for the command line; return a sentence for the operator."""
    store = Warehouse(spark, warehouse)
    refused_before = store.table("silver_quarantine").rows()
    batches = run_silver(store, warehouse / "checkpoints" / "silver.json")
    rows = sum(store.table(f"silver_{kind}").rows() for kind in KINDS)
    refused_now = store.table("silver_quarantine").rows()
    if not batches:
        return f"nothing new; {rows} rows of telemetry"
    return f"{rows} rows of telemetry, {refused_now - refused_before} refused in this run, {refused_now} in all"


def _ends(bronze: DataFrame) -> dict[str, int]:
    ends = bronze.groupBy("producer").agg((F.max("seq") + 1).alias("end")).collect()
    return {row["producer"]: row["end"] for row in ends}


def _write(store: Store, batch: progress.Batch, tell: Tell) -> None:
    bronze = store.read(BRONZE).where(_within(batch))
    rejected = [refused(bronze)]
    frames = {f"silver_{kind}": telemetry_rows(bronze, kind) for kind in KINDS}
    frames["silver_messages"] = messages(bronze)
    for name, frame in frames.items():
        tell(f"batch {batch.batch_id}: {name}")
        seen = Observation()
        is_new = store.append(name, quality.valid(frame, name, seen), batch.batch_id)
        # Decoding everything a second time only to find no broken row would take a third of the job's time.
        if not is_new or seen.get["broken"]:
            rejected.append(quality.quarantined(frame, name))
    tell(f"batch {batch.batch_id}: silver_quarantine")
    store.append("silver_quarantine", reduce(DataFrame.unionByName, rejected), batch.batch_id)


def _within(batch: progress.Batch) -> Column:
    # Plain comparisons instead of a join let Parquet skip row groups outside the range.
    ranges = [
        (F.col("producer") == producer) & (F.col("seq") >= since) & (F.col("seq") < batch.until[producer])
        for producer, since in sorted(batch.since.items())
    ]
    return reduce(Column.__or__, ranges)
