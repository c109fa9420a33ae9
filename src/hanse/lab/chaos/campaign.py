"""Campaign: rounds, one after another, on one ground as long as it recovers.

If a federation started here does not converge again after a round, it is stopped, its files are kept, and a new one is
started for the next round. The user's own federation is left as it is, and the campaign ends there.
"""

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hanse.errors import LocalError, Unavailable
from hanse.lab.chaos.faults import FAULTS, NONE, named
from hanse.lab.chaos.ground import BROKERS_DEFAULT, CONVERGED_S, INTERVAL_S, GivenGround, Ground, OwnGround
from hanse.lab.chaos.rounds import Round, Workload, require, run_round

# Below the directory.
HISTORIES = "histories"
_NO_TELL: Callable[[str], None] = lambda _: None  # noqa: E731


@dataclass(frozen=True, slots=True)
class Campaign:
    """Arguments of `hanse chaos`.

    Attributes:
        faults: names, in order; none means all that the ground supports, after a workload without a fault.
        state_path: state file of a running federation; None starts one.
        directory: where a federation started here keeps its files; None uses a temporary one, kept if a promise broke.
        seeds: seeds; each fault runs with each.
    """

    faults: tuple[str, ...] = ()
    workload: Workload = field(default_factory=Workload)
    seeds: tuple[int, ...] = (1,)
    state_path: Path | None = None
    directory: Path | None = None
    brokers: int = BROKERS_DEFAULT
    overlay: str = "ring"
    link: str = "direct"
    interval_s: float = INTERVAL_S
    flags: tuple[str, ...] = ()


class Runner:
    """Runner of a campaign; `results` grows as it runs."""

    def __init__(self, campaign: Campaign, tell: Callable[[str], None] = _NO_TELL) -> None:
        """Prepare a campaign. Raise LocalError for an unknown fault."""
        self.campaign = campaign
        self.results: list[Round] = []
        self.kept: Path | None = None
        self._tell = tell
        # Directory for the files of a federation started here, and for histories of rounds that broke a promise.
        self._base = campaign.directory
        for name in campaign.faults:
            named(name)

    async def run(self, on_round: Callable[[Round], None] = lambda _: None) -> bool:
        """Run all rounds, and return whether every promise held in all of them."""
        if self.campaign.state_path is not None:
            given = GivenGround(self.campaign.state_path)
            await self._rounds(given, self._todo(given), on_round)
            return self._held
        base = self._base = self.campaign.directory or Path(tempfile.mkdtemp(prefix="hanse-chaos-"))
        todo: list[tuple[str, int]] | None = None
        attempt = 0
        while todo is None or todo:
            directory = base / f"federation-{attempt}"
            attempt += 1
            async with _started(directory, self.campaign, self._tell) as ground:
                todo = self._todo(ground) if todo is None else todo
                todo = await self._rounds(ground, todo, on_round)
        if self._held and self.campaign.directory is None:
            shutil.rmtree(base, ignore_errors=True)
        else:
            self.kept = base
        return self._held

    @property
    def _held(self) -> bool:
        return bool(self.results) and all(result.held for result in self.results)

    def _todo(self, ground: Ground) -> list[tuple[str, int]]:
        names: Sequence[str] = self.campaign.faults
        if not names:
            names = [NONE, *(name for name, fault in FAULTS.items() if fault.needs <= ground.abilities)]
        for name in names:
            require(named(name), ground)
        return [(name, seed) for name in names for seed in self.campaign.seeds]

    async def _rounds(
        self, ground: Ground, todo: list[tuple[str, int]], on_round: Callable[[Round], None]
    ) -> list[tuple[str, int]]:
        """Run until the federation does not recover, and return the remaining rounds."""
        while todo:
            (name, seed), todo = todo[0], todo[1:]
            self._tell(f"{name}, seed {seed}")
            result = await run_round(ground, named(name, ground.interval_s), self.campaign.workload, seed, self._tell)
            self.results.append(result)
            on_round(result)
            if not result.held and self._base is not None:
                self._tell(f"the fate of each message is in {result.keep_history(self._base / HISTORIES)}")
            if not todo:
                break
            try:
                await ground.wait_converged(CONVERGED_S)
            except Unavailable:
                if isinstance(ground, GivenGround):
                    raise
                self._tell("the federation did not recover; the next round gets a new one")
                return todo
        return []


@asynccontextmanager
async def _started(directory: Path, campaign: Campaign, tell: Callable[[str], None]) -> AsyncIterator[OwnGround]:
    if campaign.brokers < 2:
        raise LocalError(f"{campaign.brokers} brokers were requested; a message needs at least two.")
    tell(f"starting {campaign.brokers} brokers and federators below {directory}")
    async with OwnGround(
        directory,
        campaign.brokers,
        campaign.overlay,
        link=campaign.link,
        interval_s=campaign.interval_s,
        flags=campaign.flags,
    ) as ground:
        yield ground
