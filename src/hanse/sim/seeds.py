"""Run of one seed, a whole history of a federation: it grows, faults strike and end, and all must be well again.

Rules:
- A run lasts at least 300 A and has at least 1,000 publications and five faults of three kinds. Its result has the
  counts. A run without eligible pairs fails.
- First, faults are on. Safety holds at every step. Between faults, once the bound has passed, nothing is lost. Then
  faults are off. The federation converges within the bound, loses nothing, and comes to rest: no distance and no parent
  changes in quiet rounds, with links of 5 to 100 ms. Custody ends within 10·K·A after that (R64).
- A failure names its seed and the one command that reproduces it.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from random import Random
from statistics import median

from hanse.errors import HanseError
from hanse.protocol.machine import Machine
from hanse.protocol.settings import Settings
from hanse.sim import faults, overlay
from hanse.sim.checkers import Checkers
from hanse.sim.federation import Federation, MachineFactory
from hanse.sim.workload import Workload, WorkloadProfile

# Ends of the phases of a run, in announcement intervals.
SETTLED_A = 12.0
FAULTS_UNTIL_A = 230.0
CLIENTS_UNTIL_A = 285.0
# Publishers continue up to this time if a seed has drawn few publications.
PUBLISHERS_UNTIL_A = 290.0
QUIET_FROM_A = 295.0
END_A = 305.0
PUBLICATIONS_MIN = 1_000

# A full mesh of 20 has 190 links and proves little more than one of 8, which the tests have.
OVERLAYS = ("random", "random", "placement", "scale-free", "ring", "grid")
WIRE_EVERY = 5
# Parents per member. The seed decides, so that half of the seeds have each value.
REDUNDANCIES = (1, 2)
LATENCY_S = (0.005, 0.100)


@dataclass(frozen=True, slots=True)
class SeedProfile:
    """Parameters that all seeds of a run share."""

    brokers: int = 20
    degree: int = 3
    # None draws one from the seed.
    overlay: str | None = None
    has_faults: bool = True
    # None passes every fifth seed through the codec. The codec has tests of its own and costs as much as the rest.
    is_wire: bool | None = None
    # None means 1 for even seeds and 2 for odd ones.
    redundancy: int | None = None
    outsider: str = "all_parents"
    announcements: str = "per_core"
    workload: WorkloadProfile = field(default_factory=WorkloadProfile)


@dataclass(slots=True)
class SeedResult:
    """Counts of one seed. `failure` is empty if every promise held."""

    seed: int
    failure: str = ""
    overlay: str = ""
    brokers: int = 0
    links: int = 0
    redundancy: int = 0
    rounds: float = 0.0
    published: int = 0
    eligible: int = 0
    delivered: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    # Repeated deliveries by federators that were killed or lost their disk.
    repeats: int = 0
    records: int = 0
    reordered: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    reconvergence_a_median: float = 0.0
    reconvergence_a_max: float = 0.0
    control_frames: int = 0
    control_bytes: int = 0
    quiet_frames_per_round: float = 0.0
    forwards_per_message: float = 0.0
    route_changes: int = 0
    elections: int = 0
    trace_hash: str = ""
    seconds: float = 0.0
    reproduce: str = ""


def run_seed(seed: int, profile: SeedProfile | None = None, *, machine: MachineFactory = Machine) -> SeedResult:
    """Run one seed to its end, or to the first broken promise."""
    was_collecting = gc.isenabled()
    # As in `hanse.sim.run`: objects are long-lived, and there are next to no cycles.
    gc.disable()
    try:
        return _run_seed(seed, profile or SeedProfile(), machine)
    finally:
        if was_collecting:
            gc.enable()


def _run_seed(seed: int, profile: SeedProfile, machine: MachineFactory) -> SeedResult:
    begun = time.perf_counter()
    checkers = Checkers()
    redundancy = profile.redundancy or REDUNDANCIES[seed % len(REDUNDANCIES)]
    settings = Settings(redundancy=redundancy, outsider=profile.outsider, announcements=profile.announcements)
    # The overlay has a source of its own, so that its draw depends on nothing else.
    draw = overlay_random(seed)
    kind = profile.overlay or draw.choice(OVERLAYS)
    shape = overlay.build(kind, profile.brokers, profile.degree, draw)
    federation = Federation(
        shape,
        settings,
        seed=seed,
        latency_s=LATENCY_S,
        is_wire=seed % WIRE_EVERY == 0 if profile.is_wire is None else profile.is_wire,
        machine=machine,
        monitor=checkers,
    )
    result = SeedResult(
        seed, overlay=kind, brokers=len(shape.identities), links=len(shape.links), redundancy=redundancy
    )
    result.reproduce = _command(seed, profile)
    try:
        _live(federation, checkers, profile, result)
        checkers.close()
        _check_length(profile, checkers, federation)
    except HanseError as error:
        result.failure = str(error)
    except (AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A machine that raises is a finding like any other. The seed reproduces it with its traceback.
        place = _place(error)
        result.failure = f"{type(error).__name__}: {error} ({place}, at {federation.engine.now:.3f} s)"
    _count(federation, checkers, result)
    result.seconds = time.perf_counter() - begun
    return result


def overlay_random(seed: int) -> Random:
    """Return the source of randomness for the overlay of a seed."""
    return Random(f"overlay {seed}")  # noqa: S311 - the same seed must give the same overlay


def _live(federation: Federation, checkers: Checkers, profile: SeedProfile, result: SeedResult) -> None:
    interval_s = federation.interval_s
    workload = Workload(federation, profile.workload)
    federation.start_all(within_s=2.0 * interval_s)
    workload.start()
    if profile.has_faults:
        plan = faults.schedule(
            federation.overlay,
            federation.random,
            start_s=SETTLED_A * interval_s,
            end_s=FAULTS_UNTIL_A * interval_s,
            interval_s=interval_s,
            expiry_factor=federation.settings.expiry_factor,
        )
        for fault in plan:
            faults.arm(federation, fault)
    _run_until(federation, checkers, CLIENTS_UNTIL_A)
    workload.is_changing = False
    until_a = CLIENTS_UNTIL_A
    while checkers.ledger.counters["published"] < PUBLICATIONS_MIN and until_a < PUBLISHERS_UNTIL_A:
        until_a += 1.0
        _run_until(federation, checkers, until_a)
    workload.is_publishing = False
    _run_until(federation, checkers, QUIET_FROM_A)
    checkers.freeze()
    frames = federation.control_frames
    _run_until(federation, checkers, END_A)
    result.quiet_frames_per_round = (federation.control_frames - frames) / (END_A - QUIET_FROM_A)
    _outwait_custody(federation, checkers)


def _run_until(federation: Federation, checkers: Checkers, until_a: float) -> None:
    interval_s = federation.interval_s
    while federation.engine.now < until_a * interval_s:
        federation.run(interval_s)
        checkers.sweep()


def _outwait_custody(federation: Federation, checkers: Checkers) -> None:
    """Continue while anything is in custody, for as long as a group that was given up is waited for (R64).

    That is 10·K·A, and clients change their interest until 20 A before the end. Only publications that would wait for
    ever wait longer.
    """
    until_s = federation.engine.now + federation.settings.retention_s_max + federation.interval_s
    while checkers.custody() and federation.engine.now < until_s:
        federation.run(federation.interval_s)
        checkers.sweep()


def _check_length(profile: SeedProfile, checkers: Checkers, federation: Federation) -> None:
    """Fail if the run was too short or too quiet to prove anything."""
    published, eligible = checkers.ledger.counters["published"], checkers.ledger.eligible
    kinds, count = len(checkers.faults), sum(checkers.faults.values())
    if eligible == 0 or published < PUBLICATIONS_MIN:
        raise HanseError(
            f"The run proves nothing: {published} publications and {eligible} eligible pairs, expected at least "
            f"{PUBLICATIONS_MIN} and 1; take more brokers or clients."
        )
    if profile.has_faults and (count < faults.FAULTS_MIN or kinds < faults.KINDS_MIN):
        raise HanseError(f"The run proves nothing: it had {count} faults of {kinds} kinds.")
    if federation.engine.now < 300 * federation.interval_s:
        raise HanseError(f"The run proves nothing: it ended after {federation.engine.now} s.")


def _count(federation: Federation, checkers: Checkers, result: SeedResult) -> None:
    ledger = checkers.ledger
    times = [a for found in checkers.reconvergence_a.values() for a in found]
    published = ledger.counters["published"]
    result.rounds = round(federation.engine.now / federation.interval_s, 3)
    result.published = published
    result.eligible = ledger.eligible
    result.delivered = ledger.counters["delivered"]
    result.lost = dict(sorted(ledger.lost.items()))
    result.duplicates = ledger.counters["duplicates"]
    result.repeats = ledger.counters["repeats"]
    result.records = federation.counters["records_stored"]
    result.reordered = ledger.counters["reordered"]
    result.faults = dict(sorted(checkers.faults.items()))
    result.reconvergence_a_median = round(median(times), 2) if times else math.nan
    result.reconvergence_a_max = round(max(times), 2) if times else math.nan
    result.control_frames = federation.control_frames
    result.control_bytes = federation.control_bytes
    result.forwards_per_message = round(ledger.counters["forwards"] / published, 2) if published else 0.0
    result.route_changes = checkers.route_changes
    result.elections = sum(checkers.core_changes.values())
    result.trace_hash = federation.engine.trace_hash()


def _command(seed: int, profile: SeedProfile) -> str:
    words = ["hanse sim seeds", f"--first {seed}", "--count 1", f"--brokers {profile.brokers}"]
    default = SeedProfile()
    if profile.degree != default.degree:
        words.append(f"--degree {profile.degree}")
    if profile.overlay is not None:
        words.append(f"--overlay {profile.overlay}")
    if not profile.has_faults:
        words.append("--no-faults")
    if profile.is_wire is not None:
        words.append("--wire" if profile.is_wire else "--no-wire")
    if profile.redundancy is not None:
        words.append(f"--redundancy {profile.redundancy}")
    return " ".join(words)


def _place(error: BaseException) -> str:
    """Return the innermost file and line of a traceback."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return "nowhere"
    name = frame.tb_frame.f_code.co_filename.rpartition("/")[2]
    return f"{name}:{frame.tb_lineno}"


def _run_one(work: tuple[int, SeedProfile]) -> SeedResult:
    seed, profile = work
    return run_seed(seed, profile)


def run_seeds(
    first: int,
    count: int,
    profile: SeedProfile | None = None,
    *,
    processes: int = 1,
    progress: Callable[[SeedResult], None] | None = None,
) -> Iterator[SeedResult]:
    """Run many seeds, in order, on the given number of processes."""
    profile = profile or SeedProfile()
    work = [(seed, profile) for seed in range(first, first + count)]
    if processes <= 1 or count == 1:
        for item in work:
            result = _run_one(item)
            if progress is not None:
                progress(result)
            yield result
        return
    with ProcessPoolExecutor(max_workers=min(processes, count)) as pool:
        for result in pool.map(_run_one, work):
            if progress is not None:
                progress(result)
            yield result
