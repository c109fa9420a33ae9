"""A federation measured by its own telemetry: gold agrees with the counts of the load tool."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import deltalake
import pytest
from tests.federation import RunningFederation, eventually

from hanse import load

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

TELEMETRY = "$hanse/telemetry/#"


def rows(warehouse: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deltalake.DeltaTable(str(warehouse / table)).to_pyarrow_table().to_pylist()
    return found


def hanse(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "hanse", *words], check=True, timeout=1800, stdout=subprocess.DEVNULL)


def measure(
    tmp_path: Path, seconds: float, rate_per_s: float, *, silent_s: float, window: str = "1m"
) -> tuple[load.Result, Path]:
    """Run a load, then kill federator 1 and leave it down for `silent_s` while the others continue."""
    spool, warehouse = tmp_path / "spool", tmp_path / "warehouse"
    with RunningFederation(tmp_path, 5, "--overlay", "ring", "--no-restart") as federation:
        command = [sys.executable, "-m", "hanse", "collect", "--url", f"mqtt://127.0.0.1:{federation.port(4)}"]
        command += ["--topics", TELEMETRY, "--spool", str(spool)]
        collector = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: federation.knows(TELEMETRY), "the collector's interest is known", 60)
            plan = load.Load(
                publish_urls=(f"mqtt://127.0.0.1:{federation.port(0)}",),
                subscribe_urls=tuple(f"mqtt://127.0.0.1:{federation.port(k)}" for k in (2, 3)),
                publishers=1,
                subscribers=2,
                count=int(seconds * rate_per_s),
                rate_per_s=rate_per_s,
                qos=1,
                topic="measured/{publisher}",
                filter="measured/#",
                # Longer than the two announcement intervals after which a subscriber must receive every message, and
                # longer than a report interval, so that its membership is complete before the first count.
                settle_s=6.0,
            )
            result = asyncio.run(load.run(plan))
            time.sleep(5)  # two reports, so that the last counts are included
            os.kill(federation.state["federators"][1]["federator_pid"], signal.SIGKILL)
            time.sleep(silent_s)
        finally:
            collector.send_signal(signal.SIGTERM)
            collector.wait(30)
    hanse("pipeline", "once", "--spool", str(spool), "--warehouse", str(warehouse), "--window", window)
    hanse("pipeline", "report", "--warehouse", str(warehouse), "--out", str(tmp_path / "report.html"))
    return result, warehouse


def check(result: load.Result, warehouse: Path) -> None:
    assert result.is_clean, result
    matrix = [row for row in rows(warehouse, "gold_traffic_matrix") if row["group"] == "measured/#"]
    counted: dict[tuple[str, str], int] = {}
    for row in matrix:
        key = (row["origin"], row["destination"])
        counted[key] = counted.get(key, 0) + row["publications"]
    assert counted == {("0", "2"): result.published, ("0", "3"): result.published}
    delivery = [row for row in rows(warehouse, "gold_delivery") if row["group"] == "measured/#"]
    assert delivery
    for destination in ("2", "3"):
        last = max((row for row in delivery if row["destination"] == destination), key=lambda row: row["window_start"])
        assert last["delivered_total"] == result.published
        assert last["unexplained_total"] == 0
        assert last["delivery_ratio"] == 1.0
    # One message in a thousand is traced at every hop, selected by its id. None can be slower than the slowest one
    # seen.
    paths = [row for row in rows(warehouse, "gold_latency_by_path") if row["origin"] == "0"]
    assert all(row["path"].startswith("0>") and row["hops"] <= 4 for row in paths)
    measured = [row for row in paths if row["destination"] in {"2", "3"} and row["deliveries"] > 5]
    assert all(row["latency_ms_p50"] <= result.latency.max_ms + (row["skew_error_ms_max"] or 0) for row in measured)


def check_health(warehouse: Path) -> None:
    """Check that the manager checked each federator both ways, and that the killed one did not answer."""
    checks = rows(warehouse, "silver_health")
    assert {row["target"] for row in checks if row["is_ok"]} == set("01234")
    assert {row["reporter"].partition("-")[0] for row in checks} == {"manager"}
    failed = [row for row in checks if not row["is_ok"]]
    assert {(row["target"], row["reason"]) for row in failed} == {("1", "federator")}
    # One machine has one clock, so there is nothing to correct.
    assert rows(warehouse, "gold_clock_skew") == []


def check_history(warehouse: Path) -> None:
    snapshots = sorted(rows(warehouse, "gold_topology_snapshots"), key=lambda row: row["at"])
    assert max(row["links"] for row in snapshots) == 5
    # Federator 1 was killed after the load: its links went down, and the ring became a line.
    assert snapshots[-1]["links"] < 5
    ended = {frozenset((row["federator"], row["neighbour"])) for row in intervals(warehouse) if row["down_at"]}
    assert {frozenset("01"), frozenset("12")} <= ended


def intervals(warehouse: Path) -> list[dict[str, Any]]:
    return [row for row in rows(warehouse, "gold_topology_intervals") if row["neighbour"] is not None]


def test_counts_in_gold_equal_those_of_the_load_tool(tmp_path: Path) -> None:
    result, warehouse = measure(tmp_path, 5, 1_000, silent_s=12)
    check(result, warehouse)
    check_health(warehouse)
    check_history(warehouse)
    page = (tmp_path / "report.html").read_text()
    assert "measured/#" in page


def test_two_minutes_of_load_agree_too_and_the_dead_federator_is_an_anomaly(tmp_path: Path) -> None:
    # With windows of 20 s, the load fills the five that a baseline needs, and the silence one whole and one open
    # window.
    result, warehouse = measure(tmp_path, 120, 1_000, silent_s=50, window="20s")
    check(result, warehouse)
    check_history(warehouse)
    found = rows(warehouse, "gold_anomalies")
    silent = [row for row in found if (row["name"], row["measure"], row["direction"]) == ("1", "reports", "low")]
    assert silent, found
    assert silent[-1]["value"] == 0
