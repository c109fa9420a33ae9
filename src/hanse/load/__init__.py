"""The load generator that benchmarks, the lab and users share: precise, light, and honest about what it saw.

Publishers and subscribers run in processes of their own (`worker`), on raw sockets and pre-encoded packets, so that
the broker is measured and not the generator. Every message says which run and publisher it is of, its number and
its send time; subscribers count each one: lost, doubled, out of order, altered, and how long it took. One clock:
`time.perf_counter_ns` is CLOCK_MONOTONIC on Linux, the same for all processes of a machine, so publishers and
subscribers have to run on one.

    result = await throughput("mqtt://127.0.0.1:1883", "mqtt://127.0.0.1:1884", count=200_000)
    result = await latency("mqtt://127.0.0.1:1883", "mqtt://127.0.0.1:1884", count=10_000, rate_per_s=1_000)
"""

from hanse.load.plan import Load
from hanse.load.result import Latency, Result
from hanse.load.run import latency, run, throughput

__all__ = ["Latency", "Load", "Result", "latency", "run", "throughput"]
