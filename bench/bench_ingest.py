"""Spool to bronze against Spark's own Parquet file source, the same rows, the same sink, turn by turn. JSON out.

Each round ingests all rows twice through the same streaming query and the same Delta commit: once from the spool by
the source `mqtt`, once from Parquet files by Spark's own source. The order alternates, the first round is warm-up.
`rows_per_s` is by the time of the batches, as Spark reports it; `whole_run` is by the clock, with the start of the
query in it (with a Python source also of a Python process beside the driver, which a long run pays once).
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

sys.path.insert(0, str(Path(__file__).parent))
from bench_spool import fill, spread

from hanse.pipeline import session
from hanse.pipeline.schemas import mqtt
from hanse.pipeline.tables import BatchSink, StoredTable


def ingest(frame: DataFrame, into: Path) -> StreamingQuery:
    query = (
        frame.writeStream.foreachBatch(BatchSink(str(into / "table"), mqtt.ROW, str(into / "checkpoint")))
        .option("checkpointLocation", str(into / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def timed(frame: DataFrame, into: Path, rows: int) -> tuple[float, float]:
    """Rows/s by the batches' time, and by the clock."""
    began = time.perf_counter()
    query = ingest(frame, into)
    took = time.perf_counter() - began
    assert StoredTable(into / "table", mqtt.ROW).rows() == rows
    batches_s = sum(one["durationMs"]["triggerExecution"] for one in query.recentProgress) / 1000
    return rows / batches_s, rows / took


def run(spark: SparkSession, rows: int, rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        fill(root / "spool", "bench", rows)
        # As many files as the source makes tasks, so that both use both cores.
        spark.read.format("mqtt").load(str(root / "spool")).write.parquet(str(root / "parquet"))
        figures: dict[str, list[tuple[float, float]]] = {"mqtt": [], "parquet": []}
        for n in range(rounds + 1):
            frames = {
                "mqtt": spark.readStream.format("mqtt").option("maxRowsPerBatch", str(rows)).load(str(root / "spool")),
                "parquet": spark.readStream.schema(mqtt.struct_type()).parquet(str(root / "parquet")),
            }
            for name in sorted(frames, reverse=bool(n % 2)):
                rates = timed(frames[name], root / f"{name}-{n}", rows)
                if n:
                    figures[name].append(rates)
        pairs = list(zip(figures["mqtt"], figures["parquet"], strict=True))
        return {
            "rows": rows,
            "payload_bytes": 200,
            "rounds": rounds,
            "spool_to_bronze_rows_per_s": spread([rate for rate, _ in figures["mqtt"]]),
            "parquet_to_bronze_rows_per_s": spread([rate for rate, _ in figures["parquet"]]),
            "ratio": spread([ours[0] / theirs[0] for ours, theirs in pairs]),
            "whole_run": {
                "spool_to_bronze_rows_per_s": spread([rate for _, rate in figures["mqtt"]]),
                "parquet_to_bronze_rows_per_s": spread([rate for _, rate in figures["parquet"]]),
                "ratio": spread([ours[1] / theirs[1] for ours, theirs in pairs]),
            },
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
