"""Faults against real processes: a ring of five Mosquittos and federators, each link through an emulator.

One federation serves all tests. One that does not recover is replaced, so that a failure affects only one test.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from hanse.errors import Unavailable
from hanse.lab.chaos import report
from hanse.lab.chaos.campaign import HISTORIES
from hanse.lab.chaos.faults import FAULTS, NONE, named
from hanse.lab.chaos.ground import OwnGround
from hanse.lab.chaos.rounds import Round, Workload, run_round

pytestmark = pytest.mark.processes

# A shorter announcement interval than the default: 2KA are three seconds.
INTERVAL_S = 0.5
RECOVERED_S = 20.0
MESSAGES = 3_000
# Faults of the short tests. The long ones have every fault.
SHORT = (
    "kill-origin",
    "kill-transit",
    "kill-last",
    "kill-broker-origin",
    "kill-broker-transit",
    "kill-broker-last",
    "cut-link",
    "one-way-cut",
    "stop-continue",
    "restart-all",
)


class Arena:
    """One federation after another."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runner = asyncio.Runner()
        self._ground: OwnGround | None = None
        self._count = 0

    def round(self, fault: str, workload: Workload, seed: int) -> Round:
        return self._runner.run(self._round(fault, workload, seed))

    def close(self) -> None:
        try:
            self._runner.run(self._end())
        finally:
            self._runner.close()

    async def _round(self, fault: str, workload: Workload, seed: int) -> Round:
        if self._ground is not None:
            try:
                await self._ground.wait_converged(RECOVERED_S)
            except Unavailable:
                await self._end()
        if self._ground is None:
            self._count += 1
            ground = OwnGround(self._directory / f"federation-{self._count}", interval_s=INTERVAL_S)
            self._ground = await ground.__aenter__()
        result = await run_round(self._ground, named(fault, INTERVAL_S), workload, seed)
        if not result.held:
            result.keep_history(self._directory / HISTORIES)
        return result

    async def _end(self) -> None:
        ground, self._ground = self._ground, None
        if ground is not None:
            await ground.__aexit__(None, None, None)


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    arena = Arena(tmp_path_factory.mktemp("chaos"))
    try:
        yield arena
    finally:
        arena.close()


def check(result: Round) -> None:
    assert result.held, "\n".join(report.lines(result))


def test_without_a_fault_both_qos_arrive_once_and_in_order(arena: Arena) -> None:
    check(arena.round(NONE, Workload(MESSAGES, qos=0), 1))


@pytest.mark.parametrize("fault", SHORT)
def test_in_the_middle_of_a_stream_at_qos_1(arena: Arena, fault: str) -> None:
    check(arena.round(fault, Workload(MESSAGES, qos=1, quiet_s=8.0), 1))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", FAULTS)
def test_ten_seeds_in_the_middle_of_20_000_messages_at_qos_1(arena: Arena, fault: str) -> None:
    broken = [
        line
        for seed in range(1, 11)
        if not (result := arena.round(fault, Workload(20_000, qos=1), seed)).held
        for line in report.lines(result)
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", FAULTS)
def test_ten_seeds_in_the_middle_of_20_000_messages_at_both_qos(arena: Arena, fault: str) -> None:
    broken = [
        line
        for seed in range(11, 21)
        if not (result := arena.round(fault, Workload(20_000, qos=0), seed)).held
        for line in report.lines(result)
    ]
    assert not broken, "\n".join(broken)
