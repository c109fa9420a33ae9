"""Whole histories of a federation with all faults: every promise is kept.

These tests have a file of their own so that no other test waits for the fifty seeds, which take as long as all other
tests together.
"""

import os

import pytest
from tests.sim.lives import live_through

from hanse.sim.seeds import SeedResult

# Number of seeds of the long run, the first fifty among them.
SEEDS = int(os.environ.get("HANSE_TEST_SEEDS", "1000"))

# Seeds that failed once, apart from the first fifty.
ONCE_FAILED = (
    53,
    55,
    64,
    73,
    74,
    76,
    79,
    88,
    92,
    115,
    117,
    119,
    134,
    140,
    146,
    164,
    175,
    183,
    188,
    193,
    205,
    222,
    224,
    232,
    259,
    264,
    272,
    296,
    315,
    320,
    333,
    347,
    354,
    376,
    378,
    390,
    394,
    412,
    419,
    437,
    439,
    473,
    499,
    563,
    922,
)


def report(results: list[SeedResult]) -> str:
    return "\n".join(f"{result.failure}\n  {result.reproduce}" for result in results if result.failure)


def check(results: list[SeedResult]) -> None:
    assert not report(results), report(results)
    for result in results:
        assert result.rounds >= 300
        assert result.published >= 1_000
        assert result.eligible > 0
        assert sum(result.faults.values()) >= 5
        assert len(result.faults) >= 3
        assert result.duplicates == 0
        assert "no reason" not in result.lost
        # A quiet round costs one frame per link and direction.
        assert result.quiet_frames_per_round <= 2 * result.links


@pytest.mark.timeout(1200)
def test_fifty_seeds_keep_every_promise() -> None:
    check(live_through(range(1, 51)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_seeds_that_failed_once_keep_every_promise() -> None:
    check(live_through(ONCE_FAILED))


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_a_thousand_seeds_keep_every_promise() -> None:
    check(live_through(range(51, SEEDS + 1)))
