"""Benchmark of Hanse against Mosquitto's bridges on one machine in one run; the result is their ratio.

Rules: the two systems alternate, and so does their order within a pair. The result of a scenario is the median of its
pairs' ratios, with the spread. A run that lost, duplicated or reordered a message is invalid.

The results include CPU time per message, by kind of process. It determines the throughput when all cores are busy, and
it stays meaningful on a machine that others use too.
"""

import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse import load
from hanse.errors import Unavailable
from hanse.lab.bridges import BridgeChain
from hanse.local.agents import agent_command, is_converged
from hanse.local.processes import SupervisedProcess
from hanse.local.supervise import Federation, FederationSettings


@dataclass(frozen=True, slots=True)
class Scenario:
    """One comparison: throughput if `rate_per_s` is None, otherwise latency at that rate."""

    name: str
    hops: int
    qos: int
    size_bytes: int = 64
    count: int = 300_000
    rate_per_s: float | None = None


SCENARIOS = (
    Scenario("qos0_1hop", hops=1, qos=0),
    Scenario("qos0_3hops", hops=3, qos=0),
    Scenario("qos1_1hop", hops=1, qos=1, count=150_000),
    Scenario("qos1_3hops", hops=3, qos=1, count=150_000),
    Scenario("qos1_1hop_10kib", hops=1, qos=1, size_bytes=10_240, count=20_000),
    Scenario("latency_3hops", hops=3, qos=0, count=5_000, rate_per_s=1_000),
    Scenario("qos0_7hops", hops=7, qos=0),
)

# More messages than a run has: a publisher of QoS 0 does not notice limits, and a broker with a full queue drops
# silently.
QUEUED_MAX = 400_000


@dataclass(frozen=True, slots=True)
class Chain:
    """System under test: its brokers' addresses, and its processes by kind."""

    urls: list[str]
    processes: dict[str, list[SupervisedProcess]]

    def cpu_s(self) -> dict[str, float]:
        """Return the user and system time of each kind of process so far."""
        return {kind: sum(map(_cpu_s, processes)) for kind, processes in self.processes.items()}


def _cpu_s(process: SupervisedProcess) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one system."""

    result: load.Result
    # CPU time by kind of process, in microseconds per message.
    cpu_us: dict[str, float]


@asynccontextmanager
async def hanse_chain(directory: Path, brokers: int) -> AsyncIterator[Chain]:
    """Start a line of federated brokers."""
    settings = FederationSettings(
        brokers=brokers, directory=directory, overlay="line", restarts=False, queued_max=QUEUED_MAX
    )
    async with Federation(settings, agent_command, is_converged) as federation:
        urls = [site.broker_url for site in federation.sites]
        yield Chain(urls, {"brokers": federation.brokers, "federators": federation.agents})


@asynccontextmanager
async def bridge_chain(directory: Path, brokers: int) -> AsyncIterator[Chain]:
    """Start a line of bridged brokers."""
    async with BridgeChain(directory, brokers=brokers, qos=1, queued_max=QUEUED_MAX) as chain:
        yield Chain(chain.urls, {"brokers": chain.processes})


# Starts a system in a directory, with the given number of brokers in a line.
StartChain = Callable[[Path, int], AbstractAsyncContextManager[Chain]]

# The system under test, and the system that it is compared with.
SYSTEMS: Mapping[str, StartChain] = {"hanse": hanse_chain, "bridges": bridge_chain}


async def _measure(scenario: Scenario, chain: Chain) -> Measured:
    before = chain.cpu_s()
    result = await _run(scenario, chain.urls)
    cpu_s = {kind: now_s - before[kind] for kind, now_s in chain.cpu_s().items()}
    # These two include start-up time, so compare them only with each other.
    cpu_s |= {"publisher": result.publisher_cpu_s, "subscriber": result.subscriber_cpu_s}
    return Measured(result, {kind: seconds * 1e6 / scenario.count for kind, seconds in cpu_s.items()})


async def _run(scenario: Scenario, urls: list[str]) -> load.Result:
    first, last = urls[0], urls[scenario.hops]
    if scenario.rate_per_s is not None:
        return await load.latency(
            first,
            last,
            count=scenario.count,
            rate_per_s=scenario.rate_per_s,
            size_bytes=scenario.size_bytes,
            qos=scenario.qos,
        )
    return await load.throughput(
        first,
        last,
        count=scenario.count,
        size_bytes=scenario.size_bytes,
        qos=scenario.qos,
        warm_up=scenario.count // 20,
    )


async def compare(
    scenario: Scenario, rounds: int, tell: Callable[[str], None], systems: Mapping[str, StartChain] = SYSTEMS
) -> dict[str, Any]:
    """Run one scenario's pairs; the ratios are first system to second."""
    (ours, start_ours), (theirs, start_theirs) = systems.items()
    runs: dict[str, list[Measured]] = {ours: [], theirs: []}
    brokers = scenario.hops + 1
    with tempfile.TemporaryDirectory(prefix="hanse-bench-") as name:
        directory = Path(name)
        async with (
            start_ours(directory / ours, brokers) as our_chain,
            start_theirs(directory / theirs, brokers) as their_chain,
        ):
            chains = {ours: our_chain, theirs: their_chain}
            for turn in range(rounds):
                for system in (ours, theirs) if turn % 2 else (theirs, ours):
                    measured = await _measure(scenario, chains[system])
                    result = measured.result
                    if not result.is_clean:
                        raise Unavailable(
                            f"{scenario.name}, {system}: {result.lost} lost, {result.duplicates} duplicated, "
                            f"{result.reordered} reordered; the run is invalid."
                        )
                    runs[system].append(measured)
                    spent = ", ".join(f"{kind} {us:.1f}" for kind, us in measured.cpu_us.items())
                    tell(
                        f"{scenario.name} {turn + 1}/{rounds} {system}: {_figure(scenario, result):,.2f} "
                        f"({sum(measured.cpu_us.values()):.1f} us of CPU time per message: {spent})"
                    )
    return _summary(scenario, runs)


def _figure(scenario: Scenario, result: load.Result) -> float:
    return result.receive_rate_per_s if scenario.rate_per_s is None else result.latency.p50_ms


def _summary(scenario: Scenario, runs: dict[str, list[Measured]]) -> dict[str, Any]:
    figures = {system: [_figure(scenario, one.result) for one in measured] for system, measured in runs.items()}
    ratios = [ours / theirs for ours, theirs in zip(*figures.values(), strict=True)]
    summary: dict[str, Any] = {
        "unit": "messages/s" if scenario.rate_per_s is None else "ms (p50)",
        **{f"{system}_median": statistics.median(values) for system, values in figures.items()},
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "rounds": len(ratios),
        "cpu_us_a_message": {system: _cpu_medians(measured) for system, measured in runs.items()},
        **figures,
    }
    if scenario.rate_per_s is not None:
        for system, measured in runs.items():
            summary[f"{system}_p99_ms"] = statistics.median(one.result.latency.p99_ms for one in measured)
    return summary


def _cpu_medians(measured: list[Measured]) -> dict[str, float]:
    medians = {kind: statistics.median(one.cpu_us[kind] for one in measured) for kind in measured[0].cpu_us}
    return {**medians, "all": statistics.median(sum(one.cpu_us.values()) for one in measured)}
