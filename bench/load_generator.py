"""Measure the cost of the load generator itself: one Mosquitto, QoS 0, 1 and 2, and the CPU time of its processes.

    python bench/load_generator.py [--json]

The first row publishes without subscribers: the speed of one publisher process. The CPU figures of a row are
microseconds of the generator's processes per message, without those of the broker.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from hanse.load import Load, Result, run
from hanse.local import mosquitto, ports
from hanse.local.client import broker_answers
from hanse.local.processes import ProcessSettings, SupervisedProcess

RUNS: dict[str, dict[str, object]] = {
    "QoS 0, no subscriber": {"count": 1_000_000, "subscribers": 0},
    "QoS 0": {"count": 300_000},
    "QoS 0, 3 subscribers": {"count": 100_000, "subscribers": 3},
    "QoS 1": {"count": 100_000, "qos": 1},
    "QoS 1, 10 KiB": {"count": 20_000, "qos": 1, "size_bytes": 10_240},
    "QoS 2": {"count": 20_000, "qos": 2},
    "QoS 0 at 1,000/s": {"count": 3_000, "rate_per_s": 1_000.0, "warm_up": 300},
    "QoS 1 at 1,000/s": {"count": 3_000, "rate_per_s": 1_000.0, "warm_up": 300, "qos": 1},
}


async def measure(options: dict[str, object], directory: Path) -> Result:
    # Each run has its own broker, because leftovers of the last one would be counted as foreign.
    port = ports.free(1)[0]
    url = f"mqtt://127.0.0.1:{port}"
    settings = mosquitto.BrokerSettings(port, directory, persistence=False)
    broker = SupervisedProcess(
        "broker", mosquitto.command(settings), directory / "output.log", ProcessSettings(restarts=False)
    )
    await broker.start()
    try:
        await broker.wait_ready(lambda: broker_answers(url), 10)
        return await run(Load((url,), (url,), **options))  # type: ignore[arg-type]
    finally:
        await broker.stop()


async def main() -> None:
    as_json = "--json" in sys.argv
    results: dict[str, Result] = {}
    for name, options in RUNS.items():
        with tempfile.TemporaryDirectory() as directory:
            result = results[name] = await measure(options, Path(directory))
        if not as_json:
            arrivals = max(1, result.received)
            print(
                f"{name:22} sent {result.publish_rate_per_s:9,.0f}/s  received {result.receive_rate_per_s:9,.0f}/s"
                f"  lost {result.lost}  p50 {result.latency.p50_ms:8.3f} ms  p99 {result.latency.p99_ms:8.3f} ms"
                f"  CPU {result.publisher_cpu_s / result.published * 1e6:5.2f} us to send,"
                f" {result.subscriber_cpu_s / arrivals * 1e6:6.2f} us to receive",
                flush=True,
            )
    if as_json:
        print(json.dumps({name: result.to_json() for name, result in results.items()}))


if __name__ == "__main__":
    asyncio.run(main())
