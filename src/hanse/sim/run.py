"""Run of one federation without faults, at any size: does it converge, and what does a quiet round cost?

Rules:
- Group k is wanted by core k modulo `cores` and by a few others with larger ids. The number of cores is therefore as
  requested. Core 0 is also the core of the management group.
- A round is one announcement interval. Quiet rounds are counted after the federation has converged and the last news
  has spread.
- The seed decides everything but `seconds`, `rss_bytes` and `processes`. If two processes simulate the federation
  (`halves`), both run this module, and the first has the result.
"""

import gc
import os
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from hanse.errors import LocalError
from hanse.protocol.settings import Settings
from hanse.sim import overlay
from hanse.sim.checkers import Checkers
from hanse.sim.halves import Part
from hanse.sim.host import Client
from hanse.sim.ledger import Ledger
from hanse.sim.peer import Peer, second_process
from hanse.sim.seeds import overlay_random

# Frames pass as objects in federations larger than this, unless told otherwise. The codec is proved on smaller ones.
WIRE_BROKERS_MAX = 499
# Two processes share the work from this many brokers on, unless told otherwise. Below, one is as fast.
SHARED_BROKERS_MIN = 500
# A federation that has not converged after this many rounds never will.
ROUNDS_MAX = 60
# Rounds for the last news to spread after convergence, and rounds that are counted.
SETTLING_ROUNDS = 1
COUNTED_ROUNDS = 1
# Publications that prove the meshes. All must have arrived at the end of the counted rounds.
PUBLICATIONS_MAX = 200


@dataclass(frozen=True, slots=True)
class RunProfile:
    """Parameters of a simulation."""

    brokers: int = 20
    degree: int = 5
    groups: int = 1
    # None means as many as there are groups, but no more than brokers.
    cores: int | None = None
    subscribers: int = 4
    seed: int = 1
    overlay: str = "random"
    # All federators start within this many announcement intervals. A federator that starts long before its neighbours
    # claims the management group itself, so a slow start floods the overlay once per such claim.
    start_a: float = 0.05
    latency_ms: tuple[float, float] = (10.0, 10.0)
    is_wire: bool | None = None
    redundancy: int = 2
    announcements: str = "per_core"
    outsider: str = "all_parents"
    # 1 or 2. None means 2 for a large federation on a machine with two processors.
    processes: int | None = None

    def __post_init__(self) -> None:
        for name in ("brokers", "groups", "subscribers"):
            if getattr(self, name) < 1:
                raise LocalError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.cores is not None and not 1 <= self.cores <= min(self.brokers, self.groups):
            raise LocalError(
                f"cores is {self.cores}; it must be between 1 and the smaller of brokers ({self.brokers}) and "
                f"groups ({self.groups})."
            )
        low, high = self.latency_ms
        if not 0 < low <= high:
            raise LocalError(f"The latency is {low} to {high} ms; it must be above 0, and not end before it begins.")
        if self.processes not in {None, 1, 2}:
            raise LocalError(f"processes is {self.processes}; a federation is simulated by 1 process or by 2.")


@dataclass(slots=True)
class RunResult:
    """Result of a simulation."""

    converged: bool
    brokers: int
    links: int
    groups: int
    cores: int
    seed: int
    overlay: str
    # Announcement intervals until the federation converged.
    rounds: int
    announcements_per_round: float
    announcements_per_round_max: int
    frames_per_round: float
    control_bytes_per_round: int
    frame_bytes_largest: int
    published: int
    eligible: int
    delivered: int
    duplicates: int
    forwards_per_message: float
    events: int
    trouble: str
    trace_hash: str
    seconds: float
    # Sum of the peak sizes of the processes.
    rss_bytes: int
    processes: int


def run(profile: RunProfile) -> RunResult:
    """Simulate one federation from its start to the end of its quiet rounds."""
    begun = time.perf_counter()
    was_collecting = gc.isenabled()
    try:
        if _processes(profile) == 1:
            return _simulate(profile, None, begun)
        with second_process(_simulate, profile) as peer:
            return _simulate(profile, peer, begun)
    finally:
        if was_collecting:
            gc.enable()


def _processes(profile: RunProfile) -> int:
    if profile.processes is not None:
        return profile.processes
    return 2 if profile.brokers >= SHARED_BROKERS_MIN and (os.cpu_count() or 1) >= 2 else 1


def _simulate(profile: RunProfile, peer: Peer | None, begun: float = 0.0) -> RunResult:
    # There are millions of long-lived objects and no cycles. The collector would only walk them over and over.
    gc.disable()
    federation, checkers = _build(profile, peer)
    trouble, rounds = _converge(federation)
    if not trouble:
        _join_others(federation, profile)
        trouble, more = _converge(federation)
        rounds += more
    federation.run(SETTLING_ROUNDS * federation.interval_s)
    if not trouble:
        _publish_to_all(federation, checkers, profile)
    quiet = _count_quiet_rounds(federation)
    counted = _account(checkers.ledger)
    result = _result(profile, federation, trouble, rounds, quiet, counted)
    result.seconds = round(time.perf_counter() - begun, 3)
    return result


def _result(
    profile: RunProfile, federation: Part, trouble: str, rounds: int, quiet: "_Quiet", counted: Counter[str]
) -> RunResult:
    """Combine the counts of all processes."""
    rss_bytes = federation.gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    counts = federation.gather(counted)
    total: Counter[str] = sum(counts, Counter())
    # Each process sees all publications.
    published = counts[0]["published"]
    cores = _cores(profile)
    return RunResult(
        converged=not trouble,
        brokers=profile.brokers,
        links=len(federation.links),
        groups=profile.groups,
        cores=cores,
        seed=profile.seed,
        overlay=profile.overlay,
        rounds=rounds,
        announcements_per_round=quiet.announcements,
        # Theorem 1, per core.
        announcements_per_round_max=2 * len(federation.links) * cores,
        frames_per_round=quiet.frames,
        control_bytes_per_round=round(quiet.bytes),
        frame_bytes_largest=quiet.frame_bytes_largest,
        published=published,
        eligible=total["delivered"] + total["lost"],
        delivered=total["delivered"],
        duplicates=total["duplicates"],
        forwards_per_message=round(total["forwards"] / published, 2) if published else 0.0,
        events=federation.events(),
        trouble=trouble,
        trace_hash=federation.trace_hash(),
        seconds=0.0,
        rss_bytes=sum(rss_bytes),
        processes=len(rss_bytes),
    )


def _account(ledger: Ledger) -> Counter[str]:
    """Close the ledger. Whatever has not arrived by now counts as lost."""
    ledger.judge(float("inf"), lambda _message, _client: "did not arrive")
    ledger.judge_kept(lambda _message, _client: "did not arrive")
    return ledger.counters + Counter(lost=sum(ledger.lost.values()))


def _build(profile: RunProfile, peer: Peer | None) -> tuple[Part, Checkers]:
    settings = Settings(redundancy=profile.redundancy, announcements=profile.announcements, outsider=profile.outsider)
    shape = overlay.build(profile.overlay, profile.brokers, profile.degree, overlay_random(profile.seed))
    is_wire = profile.brokers <= WIRE_BROKERS_MAX if profile.is_wire is None else profile.is_wire
    checkers = Checkers(is_eager=False)
    low_ms, high_ms = profile.latency_ms
    federation = Part(
        shape, settings, peer, seed=profile.seed, latency_s=(low_ms / 1e3, high_ms / 1e3), is_wire=is_wire
    )
    checkers.attach(federation)
    for k in range(profile.groups):
        broker = k % _cores(profile)
        federation.subscribe(Client(f"group-{k}-{broker}", broker), _topic(k))
    federation.start_all(within_s=profile.start_a * settings.announcement_interval_s)
    return federation, checkers


def _cores(profile: RunProfile) -> int:
    return profile.cores or min(profile.groups, profile.brokers)


def _join_others(federation: Part, profile: RunProfile) -> None:
    """Subscribe the others once each group has its core. As in the papers, that is the first subscriber's broker."""
    others = range(_cores(profile), profile.brokers)
    for k in range(profile.groups):
        for broker in sorted(federation.random.sample(others, min(profile.subscribers - 1, len(others)))):
            federation.subscribe(Client(f"group-{k}-{broker}", broker), _topic(k))


def _topic(k: int) -> str:
    # One object per name, like names that come from the other process.
    return sys.intern(f"group/{k}")


def _converge(federation: Part) -> tuple[str, int]:
    """Let rounds pass until the federation has converged. Return what is missing, if anything, and the rounds."""
    trouble: str | None = "not started"
    rounds = 0
    while trouble is not None and rounds < ROUNDS_MAX:
        federation.run(federation.interval_s)
        rounds += 1
        trouble = federation.why_not_converged()
    return trouble or "", rounds


class _Quiet(NamedTuple):
    """Cost of a quiet round."""

    frames: float
    announcements: float
    bytes: float
    frame_bytes_largest: int


def _count_quiet_rounds(federation: Part) -> _Quiet:
    """Count the control traffic of quiet rounds, while the last publications pass."""
    federation.is_weighing = True
    before = federation.control_frames, federation.announcements, federation.control_bytes
    federation.control_bytes_largest = 0
    federation.run(COUNTED_ROUNDS * federation.interval_s)
    after = federation.control_frames, federation.announcements, federation.control_bytes
    federation.is_weighing = federation.is_wire
    parts = federation.gather([b - a for a, b in zip(before, after, strict=True)])
    frames, announcements, size = (sum(counts) / COUNTED_ROUNDS for counts in zip(*parts, strict=True))
    return _Quiet(frames, announcements, size, max(federation.gather(federation.control_bytes_largest)))


def _publish_to_all(federation: Part, checkers: Checkers, profile: RunProfile) -> None:
    """Publish to the groups from random brokers. The monitor is attached only now, when it has something to check."""
    federation.monitor = checkers
    for number in range(min(profile.groups, PUBLICATIONS_MAX)):
        broker = federation.random.randrange(profile.brokers)
        federation.publish(broker, [(number, _topic(number), 1)])
