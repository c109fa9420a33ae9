"""Load generator that benchmarks, the lab and users share: precise, light, and strict about its observations.

Publishers and subscribers run in processes of their own (`worker`), on raw sockets and pre-encoded packets, so that the
broker is measured and not the generator. Every message carries its run, its publisher, its number and its send time.
Subscribers count each message as lost, duplicated, reordered or altered, and measure its latency.

There is one clock: `time.perf_counter_ns` is CLOCK_MONOTONIC on Linux, the same for all processes of a machine.
Publishers and subscribers must therefore run on one machine.

    result = await throughput("mqtt://127.0.0.1:1883", "mqtt://127.0.0.1:1884", count=200_000)
    result = await latency("mqtt://127.0.0.1:1883", "mqtt://127.0.0.1:1884", count=10_000, rate_per_s=1_000)
"""

from hanse.load.plan import Load
from hanse.load.result import Latency, Result
from hanse.load.run import latency, run, throughput

__all__ = ["Latency", "Load", "Result", "latency", "run", "throughput"]
