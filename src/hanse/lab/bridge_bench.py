"""Hanse beside Mosquitto's bridges, on the same machine, in the same run: the ratio is the figure.

Rules: the two alternate, and the order within a pair alternates too; the figure of a scenario is the median of the
ratios of its pairs, with the spread beside it; a run that lost, doubled or reordered anything is no run.
"""

import statistics
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse import load
from hanse.errors import Unavailable
from hanse.lab.bridges import BridgeChain
from hanse.local.agents import agent_command, is_converged
from hanse.local.supervise import Federation, FederationSettings


@dataclass(frozen=True, slots=True)
class Scenario:
    """One comparison. `rate_per_s` None measures throughput, else latency at that rate."""

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


@asynccontextmanager
async def hanse_chain(directory: Path, brokers: int) -> AsyncIterator[list[str]]:
    """Brokers in a line, federated; their URLs."""
    settings = FederationSettings(brokers=brokers, directory=directory, overlay="line", restarts=False)
    async with Federation(settings, agent_command, is_converged) as federation:
        yield [site.broker_url for site in federation.sites]


async def _measure(scenario: Scenario, urls: list[str]) -> load.Result:
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


async def compare(scenario: Scenario, rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run one scenario's pairs."""
    runs: dict[str, list[load.Result]] = {"hanse": [], "bridges": []}
    brokers = scenario.hops + 1
    with tempfile.TemporaryDirectory(prefix="hanse-bench-") as name:
        directory = Path(name)
        async with (
            hanse_chain(directory / "hanse", brokers) as federated,
            BridgeChain(directory / "bridges", brokers=brokers, qos=1) as bridged,
        ):
            urls = {"hanse": federated, "bridges": bridged.urls}
            for turn in range(rounds):
                for system in ("hanse", "bridges") if turn % 2 else ("bridges", "hanse"):
                    result = await _measure(scenario, urls[system])
                    if not result.is_clean:
                        raise Unavailable(
                            f"{scenario.name}, {system}: {result.lost} lost, {result.duplicates} twice, "
                            f"{result.reordered} out of order; such a run gives no figure."
                        )
                    runs[system].append(result)
                    tell(f"{scenario.name} {turn + 1}/{rounds} {system}: {_figure(scenario, result):,.2f}")
    return _summary(scenario, runs)


def _figure(scenario: Scenario, result: load.Result) -> float:
    return result.receive_rate_per_s if scenario.rate_per_s is None else result.latency.p50_ms


def _summary(scenario: Scenario, runs: dict[str, list[load.Result]]) -> dict[str, Any]:
    figures = {system: [_figure(scenario, result) for result in results] for system, results in runs.items()}
    ratios = [ours / theirs for ours, theirs in zip(figures["hanse"], figures["bridges"], strict=True)]
    summary: dict[str, Any] = {
        "unit": "messages/s" if scenario.rate_per_s is None else "ms (p50)",
        "hanse_median": statistics.median(figures["hanse"]),
        "bridges_median": statistics.median(figures["bridges"]),
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "rounds": len(ratios),
        **figures,
    }
    if scenario.rate_per_s is not None:
        summary["hanse_p99_ms"] = statistics.median(result.latency.p99_ms for result in runs["hanse"])
        summary["bridges_p99_ms"] = statistics.median(result.latency.p99_ms for result in runs["bridges"])
    return summary
