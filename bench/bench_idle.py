"""Measure the cost of a federator: memory idle and under load with 1,000 groups, processor time idle with them.

    python bench/bench_idle.py [--brokers 5] [--groups 1000] [--seconds 10] [--count 200000]

Starts `hanse up`, measures the federators' processes from outside, and prints JSON. The limits are
45 MB idle, 80 MB under load, 1 % of a core idle with 1,000 groups on five brokers.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

import hanse
from hanse.load.plan import Load
from hanse.load.run import run
from hanse.local import ports
from hanse.local.client import Connection
from hanse.local.http import get_json

LIMITS = {"idle_mb": 45.0, "loaded_mb": 80.0, "idle_cpu_percent": 1.0}
START_S = 90.0
MB = 1e6


def start(brokers: int, directory: Path) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    state = directory / "state.json"
    base = ports.free(1)[0]
    command = [sys.executable, "-m", "hanse", "up", "--no-gateway", "--brokers", str(brokers), "--base-port", str(base)]
    command += ["--dir", str(directory / "run"), "--state", str(state)]
    environment = {**os.environ, "PYTHONPATH": str(Path(hanse.__file__).parent.parent)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    until = time.monotonic() + START_S
    while not state.exists():
        if process.poll() is not None or time.monotonic() > until:
            process.terminate()
            raise SystemExit("hanse up did not converge")
        time.sleep(0.1)
    return process, json.loads(state.read_bytes())


def resident_mb(processes: list[psutil.Process]) -> list[float]:
    return [round(process.memory_info().rss / MB, 1) for process in processes]


def peak_mb(process: psutil.Process) -> float:
    """Return the kernel's own high-water mark: sampling from outside can miss a peak, this cannot."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return round(int(line.split()[1]) * 1024 / MB, 1)


async def counted(rows: list[dict[str, Any]], name: str) -> list[int]:
    return [(await get_json(row["metrics"] + "/healthz"))["counters"].get(name, 0) for row in rows]


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def measure(state: dict[str, Any], groups: int, seconds: float, count: int) -> dict[str, Any]:
    rows = state["federators"]
    processes = [psutil.Process(row["federator_pid"]) for row in rows]
    await asyncio.sleep(2)
    found: dict[str, Any] = {"idle_mb": resident_mb(processes)}

    # One client per broker, each with its share of the filters.
    clients = [Connection(row["broker"], client_id=f"bench-{k}") for k, row in enumerate(rows)]
    for k, client in enumerate(clients):
        await client.__aenter__()
        for number in range(k, groups, len(rows)):
            await client.subscribe([f"idle/{number}/#"])
    try:
        until = time.monotonic() + 120
        while min([len((await get_json(row["metrics"] + "/groups"))["groups"]) for row in rows]) < groups:
            if time.monotonic() > until:
                raise SystemExit("the groups did not spread")
            await asyncio.sleep(0.5)
        # Retained messages are fetched for new interest; then all is quiet.
        await asyncio.sleep(10)
        before, began = [cpu_s(process) for process in processes], time.monotonic()
        await asyncio.sleep(seconds)
        took_s = time.monotonic() - began
        found["idle_cpu_percent"] = [
            round(100 * (cpu_s(process) - first) / took_s, 2) for process, first in zip(processes, before, strict=True)
        ]
        found["with_groups_mb"] = resident_mb(processes)
        peaks = list(found["with_groups_mb"])
        marks, before = [peak_mb(process) for process in processes], [cpu_s(process) for process in processes]
        load = Load((rows[0]["broker"],), (rows[-1]["broker"],), count=count, settle_s=1.0)
        running = asyncio.create_task(run(load))
        while not running.done():
            peaks = [max(pair) for pair in zip(peaks, resident_mb(processes), strict=True)]
            await asyncio.sleep(0.05)
        result = await running
        found["sampled_mb"] = peaks
        found["high_water_before_load_mb"] = marks
        found["loaded_mb"] = [peak_mb(process) for process in processes]
        found["load"] = {
            "messages_per_s": round(result.receive_rate_per_s),
            "received": result.received,
            "lost": result.lost,
            # Shows that the load went through these processes.
            "cpu_s": [round(cpu_s(one) - first, 2) for one, first in zip(processes, before, strict=True)],
            "forwarded": await counted(rows, "forwarded"),
            "delivered": await counted(rows, "delivered"),
        }
    finally:
        for client in clients:
            await client.__aexit__(None, None, None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, default=5)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--count", type=int, default=200_000)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hanse-bench-idle-") as directory:
        process, state = start(words.brokers, Path(directory))
        try:
            found = asyncio.run(measure(state, words.groups, words.seconds, words.count))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    found |= {"brokers": words.brokers, "groups": words.groups, "limits": LIMITS}
    found["within_limits"] = {name: max(found[name]) <= limit for name, limit in LIMITS.items()}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
