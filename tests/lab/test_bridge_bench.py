"""The comparison with bridges: pairs of clean runs, and ratios per pair."""

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hanse.errors import Unavailable
from hanse.lab.bridge_bench import SYSTEMS, Chain, Scenario, bridge_chain, compare

SMALL = Scenario("small", hops=1, qos=1, count=400)


@pytest.mark.processes
def test_ratios_are_per_pair_and_the_order_alternates() -> None:
    lines: list[str] = []
    result = asyncio.run(compare(SMALL, 2, lines.append))

    ratios = [ours / theirs for ours, theirs in zip(result["hanse"], result["bridges"], strict=True)]
    assert result["rounds"] == 2
    assert result["ratio_median"] == statistics.median(ratios)
    assert (result["ratio_min"], result["ratio_max"]) == (min(ratios), max(ratios))
    assert set(result["cpu_us_a_message"]["hanse"]) == {"brokers", "federators", "publisher", "subscriber", "all"}
    assert set(result["cpu_us_a_message"]["bridges"]) == {"brokers", "publisher", "subscriber", "all"}
    assert [line.split()[2].rstrip(":") for line in lines] == ["bridges", "hanse", "hanse", "bridges"]


@pytest.mark.slow
@pytest.mark.processes
def test_a_run_with_losses_is_invalid() -> None:
    @asynccontextmanager
    async def unconnected(directory: Path, brokers: int) -> AsyncIterator[Chain]:
        async with (
            bridge_chain(directory / "first", brokers) as one,
            bridge_chain(directory / "second", brokers) as other,
        ):
            yield Chain([one.urls[0], other.urls[-1]], {"brokers": one.processes["brokers"]})

    with pytest.raises(Unavailable, match="unconnected: 400 lost, 0 duplicated, 0 reordered; the run is invalid"):
        asyncio.run(compare(SMALL, 1, lambda _line: None, {"unconnected": unconnected, "bridges": SYSTEMS["bridges"]}))
