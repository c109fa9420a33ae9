"""One federation without faults, at any size: does it converge, and what does a quiet round cost?

Rules:
- Group k is wanted by core k modulo `cores` and by a few others with larger ids, so that the number of cores is what
  was asked for; core 0 anchors the management group as well.
- A round is one announcement interval. Quiet rounds are counted after the federation has converged and has had time
  to stop talking about it.
- Everything but `seconds` and `rss_bytes` is decided by the seed.
"""

import gc
import resource
import time
from dataclasses import dataclass

from hanse.errors import LocalError
from hanse.protocol.settings import Settings
from hanse.sim import overlay
from hanse.sim.checkers import Checkers
from hanse.sim.convergence import why_not_converged
from hanse.sim.federation import Federation
from hanse.sim.host import Client
from hanse.sim.seeds import overlay_random

# From this many brokers on frames pass as objects, unless told otherwise: the codec is proved on smaller ones.
WIRE_BROKERS_MAX = 499
# A federation that has not converged after this many rounds does not.
ROUNDS_MAX = 60
# Rounds to let the last words pass after convergence, and rounds that are counted.
SETTLING_ROUNDS = 1
COUNTED_ROUNDS = 1
# Publications that prove the meshes; all must have arrived when the counted rounds are over.
PUBLICATIONS_MAX = 200


@dataclass(frozen=True, slots=True)
class RunProfile:
    """What to simulate."""

    brokers: int = 20
    degree: int = 5
    groups: int = 1
    # None is as many as there are groups, but no more than brokers.
    cores: int | None = None
    subscribers: int = 4
    seed: int = 1
    overlay: str = "random"
    # All federators start within this many announcement intervals. Who starts long before its neighbours claims the
    # management group for itself, so a slow start floods the overlay once for every such claim.
    start_a: float = 0.05
    latency_ms: tuple[float, float] = (10.0, 10.0)
    is_wire: bool | None = None
    redundancy: int = 2
    announcements: str = "per_core"
    outsider: str = "all_parents"

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


@dataclass(slots=True)
class RunResult:
    """What was counted."""

    converged: bool
    brokers: int
    links: int
    groups: int
    cores: int
    seed: int
    overlay: str
    # Announcement intervals until the federation had converged.
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
    rss_bytes: int


def run(profile: RunProfile) -> RunResult:
    """Simulate one federation from its start until its quiet rounds have been counted."""
    begun = time.perf_counter()
    # Long-lived objects by the million and no cycles among them: the collector would only walk them over and over.
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        federation, checkers = _build(profile)
        trouble, rounds = _converge(federation)
        if not trouble:
            _join_others(federation, profile)
            trouble, more = _converge(federation)
            rounds += more
        federation.run(SETTLING_ROUNDS * federation.interval_s)
        if not trouble:
            _publish_to_all(federation, checkers, profile)
        frames, announcements, size = _count_quiet_rounds(federation)
        checkers.ledger.judge(float("inf"), lambda _message, _client: "did not arrive")
    finally:
        if was_collecting:
            gc.enable()
    ledger = checkers.ledger
    published = ledger.counters["published"]
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
        announcements_per_round=announcements,
        # Theorem 1, for each core.
        announcements_per_round_max=2 * len(federation.links) * cores,
        frames_per_round=frames,
        control_bytes_per_round=round(size),
        frame_bytes_largest=federation.control_bytes_largest,
        published=published,
        eligible=ledger.eligible,
        delivered=ledger.counters["delivered"],
        duplicates=ledger.counters["duplicates"],
        forwards_per_message=round(ledger.counters["forwards"] / published, 2) if published else 0.0,
        events=federation.engine.handled,
        trouble=trouble,
        trace_hash=federation.engine.trace_hash(),
        seconds=round(time.perf_counter() - begun, 3),
        rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _build(profile: RunProfile) -> tuple[Federation, Checkers]:
    settings = Settings(redundancy=profile.redundancy, announcements=profile.announcements, outsider=profile.outsider)
    shape = overlay.build(profile.overlay, profile.brokers, profile.degree, overlay_random(profile.seed))
    is_wire = profile.brokers <= WIRE_BROKERS_MAX if profile.is_wire is None else profile.is_wire
    checkers = Checkers(is_eager=False)
    low_ms, high_ms = profile.latency_ms
    federation = Federation(
        shape,
        settings,
        seed=profile.seed,
        latency_s=(low_ms / 1e3, high_ms / 1e3),
        is_wire=is_wire,
        monitor=None,
    )
    checkers.attach(federation)
    for k in range(profile.groups):
        broker = k % _cores(profile)
        federation.subscribe(Client(f"group-{k}-{broker}", broker), _topic(k))
    federation.start_all(within_s=profile.start_a * settings.announcement_interval_s)
    return federation, checkers


def _cores(profile: RunProfile) -> int:
    return profile.cores or min(profile.groups, profile.brokers)


def _join_others(federation: Federation, profile: RunProfile) -> None:
    """The other subscribers come when each group has its core: the first subscriber's broker, as in the papers."""
    others = range(_cores(profile), profile.brokers)
    for k in range(profile.groups):
        for broker in sorted(federation.random.sample(others, min(profile.subscribers - 1, len(others)))):
            federation.subscribe(Client(f"group-{k}-{broker}", broker), _topic(k))


def _topic(k: int) -> str:
    return f"group/{k}"


def _converge(federation: Federation) -> tuple[str, int]:
    """Let rounds pass until the federation has converged; what is missing if it does not, and the rounds."""
    trouble: str | None = "not started"
    rounds = 0
    while trouble is not None and rounds < ROUNDS_MAX:
        federation.run(federation.interval_s)
        rounds += 1
        trouble = why_not_converged(federation)
    return trouble or "", rounds


def _count_quiet_rounds(federation: Federation) -> tuple[float, float, float]:
    """Frames, announcements and bytes of a quiet round; what was published passes at the same time."""
    federation.is_weighing = True
    before = federation.control_frames, federation.announcements, federation.control_bytes
    federation.control_bytes_largest = 0
    federation.run(COUNTED_ROUNDS * federation.interval_s)
    after = federation.control_frames, federation.announcements, federation.control_bytes
    federation.is_weighing = federation.is_wire
    frames, announcements, size = ((b - a) / COUNTED_ROUNDS for a, b in zip(before, after, strict=True))
    return frames, announcements, size


def _publish_to_all(federation: Federation, checkers: Checkers, profile: RunProfile) -> None:
    """Publish to the groups from anywhere; everyone entitled gets it, once. Only now does watching pay."""
    federation.monitor = checkers
    for number in range(min(profile.groups, PUBLICATIONS_MAX)):
        broker = federation.random.randrange(profile.brokers)
        federation.publish(broker, [(number, _topic(number), 1)])
