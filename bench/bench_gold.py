"""Process generated telemetry from bronze to gold on a bounded heap: rows, seconds per step, and memory.

    python bench/bench_gold.py --rows 10000000 --heap 2g > gold.json

The rows are telemetry rows (hops, deliveries, counts, …), which travel in batches. Bronze therefore has fewer rows, and
silver has these.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent))
from generate_traffic import Traffic, plan_for, to_arrow

from hanse.pipeline import session
from hanse.pipeline.jobs.gold import run_gold
from hanse.pipeline.jobs.silver import run_silver
from hanse.pipeline.jobs.store import BRONZE, Warehouse
from hanse.pipeline.schemas.catalog import GOLD


class PeakMemory(threading.Thread):
    """Memory of this process's children, the JVM and its Python workers, measured twice per second.

    The memory is proportional, because the workers are forks of one process and share most of it.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.jvm_bytes = 0
        self.workers_bytes = 0
        self.ended = threading.Event()

    def run(self) -> None:
        """Measure until `ended`."""
        me = psutil.Process()
        while not self.ended.wait(0.5):
            jvm = workers = 0
            for child in me.children(recursive=True):
                try:
                    used = child.memory_full_info().pss
                    if "java" in child.name():
                        jvm += used
                    else:
                        workers += used
                except psutil.Error:
                    continue
            self.jvm_bytes = max(self.jvm_bytes, jvm)
            self.workers_bytes = max(self.workers_bytes, workers)


def measure(rows: int, heap: str, directory: Path) -> dict[str, Any]:
    begun = time.monotonic()
    traffic = Traffic(plan_for(rows))
    source = directory / "generated.parquet"
    pq.write_table(to_arrow(traffic.batches()), source)
    generated_s = time.monotonic() - begun
    steps: dict[str, float] = {}
    last, last_at = "start", time.monotonic()

    def tell(step: str) -> None:
        nonlocal last, last_at
        now = time.monotonic()
        steps[last] = round(now - last_at, 2)
        last, last_at = step, now
        print(f"{step} …", file=sys.stderr, flush=True)

    watch = PeakMemory()
    watch.start()
    # More partitions than cores, so that each fits the heap. Spark joins the small ones again by itself.
    parts = {"spark.sql.shuffle.partitions": "8"}
    spark = session.build(master="local[2]", settings={"spark.driver.memory": heap} | parts)
    try:
        store = Warehouse(spark, directory / "warehouse")
        tell("bronze")
        store.table(BRONZE).append(spark.read.parquet(str(source)), app_id="bench", batch_id=0)
        tell("silver")
        from_bronze = time.monotonic()
        run_silver(store, directory / "warehouse" / "checkpoints" / "silver.json", tell)
        silver_s = time.monotonic() - from_bronze
        from_silver = time.monotonic()
        run_gold(store, tell=tell)
        gold_s = time.monotonic() - from_silver
        tell("end")
        matrix = store.read("gold_traffic_matrix").groupBy("origin", "destination", "group").sum("publications")
        counted = {(row[0], row[1], row[2]): row[3] for row in matrix.collect()}
        tables = {name: store.table(name).rows() for name in GOLD}
    finally:
        spark.stop()
        watch.ended.set()
    return {
        "bench": "bronze to gold",
        "rows": traffic.truth.rows,
        "heap": heap,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average_1m": os.getloadavg()[0],
        "generated_s": round(generated_s, 1),
        "silver_s": round(silver_s, 1),
        "gold_s": round(gold_s, 1),
        "rows_per_s": round(traffic.truth.rows / (silver_s + gold_s)),
        "jvm_mb_max": watch.jvm_bytes >> 20,
        "python_workers_mb_max": watch.workers_bytes >> 20,
        "traffic_matrix_is_exact": counted == dict(traffic.truth.delivered),
        "gold_rows": tables,
        "steps_s": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--heap", default="2g", help="the JVM's, driver and executor in one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hanse-bench-") as directory:
        print(json.dumps(measure(asked.rows, asked.heap, Path(directory)), indent=2))


if __name__ == "__main__":
    main()
