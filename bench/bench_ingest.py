"""Compare spool to bronze with Spark's own Parquet file source into the same table, in turns. JSON out.

Each round brings all rows into a Delta table three times, by streaming queries with the same trigger and commit:

- `ingest`: the job of `hanse pipeline`, from the spool, whose tasks write the Parquet;
- `source`: the source `mqtt`, from the spool, whose rows Spark writes, as in a user's own query;
- `parquet`: Spark's own source, from Parquet files with the same rows, which Spark writes.

The order alternates, and the first round is warm-up. `rows_per_s` is by the time of the batches, as Spark reports it.
`whole_run` is by the clock, including the start of the query (with a Python source also of a Python process beside the
driver, which a long run pays once). `cpu_s` is the CPU time of JVM and Python together, including the start. On a
machine that does other work as well, it is the figure to compare.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

sys.path.insert(0, str(Path(__file__).parent))
from bench_spool import fill, spread

from hanse.pipeline import session
from hanse.pipeline.jobs.ingest import Ingest, start
from hanse.pipeline.schemas import mqtt
from hanse.pipeline.tables import BatchSink, StoredTable, bronze

WAYS = ("ingest", "source", "parquet")


@dataclass(frozen=True, slots=True)
class Round:
    """One method, once."""

    batches_s: float
    whole_s: float
    cpu_s: float


def begin(spark: SparkSession, way: str, root: Path, into: Path, rows: int) -> tuple[StreamingQuery, StoredTable]:
    if way == "ingest":
        ingest = Ingest(into, {"spool": str(root / "spool"), "maxRowsPerBatch": str(rows)})
        return start(spark, ingest, once=True), bronze(into)
    if way == "source":
        frame = spark.readStream.format("mqtt").option("maxRowsPerBatch", str(rows)).load(str(root / "spool"))
    else:
        frame = spark.readStream.schema(mqtt.struct_type()).parquet(str(root / "parquet"))
    query = (
        frame.writeStream.foreachBatch(BatchSink(str(into / "table"), mqtt.ROW, str(into / "checkpoint")))
        .option("checkpointLocation", str(into / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    return query, StoredTable(into / "table", mqtt.ROW)


def cpu_s() -> float:
    """Return the CPU time of this process, the JVM and all Python workers, including ended ones."""
    me = psutil.Process()
    used = me.cpu_times()
    total = used.user + used.system
    for process in me.children(recursive=True):
        try:
            used = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system + used.children_user + used.children_system
    return float(total)


def once(spark: SparkSession, way: str, root: Path, into: Path, rows: int) -> Round:
    cpu_before, began = cpu_s(), time.perf_counter()
    query, table = begin(spark, way, root, into, rows)
    query.awaitTermination()
    whole_s, used_s = time.perf_counter() - began, cpu_s() - cpu_before
    assert table.rows() == rows
    batches_s = sum(one["durationMs"]["triggerExecution"] for one in query.recentProgress) / 1000
    return Round(batches_s, whole_s, used_s)


def run(spark: SparkSession, rows: int, rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        fill(root / "spool", "bench", rows, is_fresh=True)
        # As many files as the source has tasks, so that all use both cores.
        spark.read.format("mqtt").load(str(root / "spool")).write.parquet(str(root / "parquet"))
        found: dict[str, list[Round]] = {way: [] for way in WAYS}
        for n in range(rounds + 1):
            for way in sorted(WAYS, reverse=bool(n % 2)):
                took = once(spark, way, root, root / f"{way}-{n}", rows)
                if n:
                    found[way].append(took)
    pairs = list(zip(found["ingest"], found["source"], found["parquet"], strict=True))
    return {
        "rows": rows,
        "payload_bytes": 200,
        "rounds": rounds,
        "spool_to_bronze_rows_per_s": spread([rows / one.batches_s for one in found["ingest"]]),
        "parquet_to_bronze_rows_per_s": spread([rows / one.batches_s for one in found["parquet"]]),
        "ratio": spread([theirs.batches_s / ours.batches_s for ours, _, theirs in pairs]),
        "source_ratio": spread([theirs.batches_s / ours.batches_s for _, ours, theirs in pairs]),
        "whole_run": {
            "spool_to_bronze_rows_per_s": spread([rows / one.whole_s for one in found["ingest"]]),
            "parquet_to_bronze_rows_per_s": spread([rows / one.whole_s for one in found["parquet"]]),
            "ratio": spread([theirs.whole_s / ours.whole_s for ours, _, theirs in pairs]),
            "source_ratio": spread([theirs.whole_s / ours.whole_s for _, ours, theirs in pairs]),
        },
        "cpu_s": {way: spread([one.cpu_s for one in found[way]]) for way in WAYS},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    built = session.build(master=given.master, app_name="bench ingest")
    try:
        print(json.dumps(run(built, given.rows, given.rounds), indent=2))
    finally:
        built.stop()
