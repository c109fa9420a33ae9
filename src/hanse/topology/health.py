"""Health of federators, judged from probes. Pure: observations in, verdict out; no clock, no sockets.

Rules:

1. Two failures in a row mean gone. After the first, a federator is a suspect and is probed again within the same
   interval, so a loss is known within two intervals. One success makes it healthy again.
2. Latency is smoothed: a share of the new value, the rest of the old, as TCP does with its round trip (RFC 6298).
3. The manager doubts itself first. In a round in which its own loop was late, a probe that only took too long does not
   count; a refused one counts. A round in which more than half of all healthy federators fail at once does not count,
   for at most three rounds in a row: after that it is not chance. If all fail, the manager itself is cut off, and it
   doubts for as long as that lasts.
4. Federators that are gone are probed less and less often, down to every fourth round. A federator that comes back also
   reports by itself.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """Result of a probe. `SILENT`: the broker returned the publication, but its federator did not answer it."""

    WELL = "well"
    SILENT = "silent"
    FAILED = "failed"


CAUSES = {Outcome.SILENT: "federator", Outcome.FAILED: "broker"}


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a federator to a probe: the times of receipt and answer, by the clock of its host."""

    host: str
    received_us: int
    answered_us: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """Times of a probe and its answer by the manager's clock, and the content of the answer, if any."""

    sent_us: int
    returned_us: int | None = None
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """One probe of one federator. Whether a silent one is healthy depends on its `model.Probe`; the prober decides."""

    id: int
    outcome: Outcome
    latency_ms: float | None = None
    is_definite: bool = False  # a failure that a late loop does not explain: the connection was refused or broken
    exchange: Exchange | None = None  # for telemetry; no verdict depends on it


@dataclass(frozen=True, slots=True)
class Policy:
    """Numbers of the rules above."""

    failures_max: int = 2  # as in the seeds; 1 mistakes a hiccup for a death, 3 takes half as long again to detect one
    smoothing: float = 0.25  # RFC 6298 uses 1/8 for many samples per second; here, one per 5 s
    doubt_share: float = 0.5  # of the healthy ones
    doubt_failures_min: int = 3  # two may die together by chance; three at once are suspicious
    doubt_rounds_max: int = 3
    gone_rounds_max: int = 4  # 20 s at the default interval; dialling 500 dead ones each round would delay the others


@dataclass(frozen=True, slots=True)
class Verdict:
    """Conclusions of a round."""

    gone: tuple[int, ...] = ()
    causes: Mapping[int, str] = field(default_factory=dict)
    back: tuple[int, ...] = ()
    suspects: tuple[int, ...] = ()
    latency_ms: Mapping[int, float] = field(default_factory=dict)
    doubt: str | None = None


@dataclass(slots=True)
class _Patient:
    failures: int = 0
    is_gone: bool = False
    latency_ms: float | None = None
    gone_rounds: int = 0
    wait_rounds: int = 0


class Health:
    """Health of each federator, round after round."""

    __slots__ = ("_doubts", "_patients", "_policy")

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._patients: dict[int, _Patient] = {}
        self._doubts = 0

    def take_up(self, up: Mapping[int, float | None], gone: Collection[int]) -> None:
        """Align the list with the topology: federators that are up, with their latency, and those that are gone."""
        for node in self._patients.keys() - up.keys() - set(gone):
            del self._patients[node]
        for node, latency_ms in up.items():
            patient = self._patients.setdefault(node, _Patient(latency_ms=latency_ms))
            if patient.is_gone:
                self._patients[node] = _Patient(latency_ms=patient.latency_ms)
        for node in gone:
            patient = self._patients.setdefault(node, _Patient())
            patient.is_gone = True

    def due(self) -> list[int]:
        """Return the federators to probe in the next round."""
        due = []
        for node, patient in sorted(self._patients.items()):
            if patient.wait_rounds > 0:
                patient.wait_rounds -= 1
            else:
                due.append(node)
        return due

    def judge(self, observations: Iterable[Observation], *, is_late: bool = False) -> Verdict:
        """Return the verdict on a round, or on the second look at its suspects."""
        seen = [one for one in observations if one.id in self._patients]
        failed = [one for one in seen if one.outcome is not Outcome.WELL and not self._patients[one.id].is_gone]
        doubt = self._doubt(len(failed))
        if doubt is None and is_late and not all(one.is_definite for one in failed):
            doubt = "the manager's own loop was late"
            counted = [one for one in failed if one.is_definite]
        else:
            counted = failed if doubt is None else []
        latency_ms, back = self._note_wells(one for one in seen if one.outcome is Outcome.WELL)
        gone: list[int] = []
        suspects: list[int] = []
        for one in counted:
            patient = self._patients[one.id]
            patient.failures += 1
            if patient.failures >= self._policy.failures_max:
                patient.is_gone, patient.gone_rounds, patient.wait_rounds = True, 0, 0
                gone.append(one.id)
            else:
                suspects.append(one.id)
        for one in seen:
            if one.outcome is not Outcome.WELL and one.id not in gone:
                self._put_off(self._patients[one.id])
        causes = {one.id: CAUSES[one.outcome] for one in failed if one.id in gone}
        return Verdict(tuple(gone), causes, tuple(back), tuple(suspects), latency_ms, doubt)

    def _doubt(self, failed: int) -> str | None:
        """Apply rule 3: too many failures at once."""
        policy = self._policy
        well = sum(not patient.is_gone for patient in self._patients.values())
        if failed < policy.doubt_failures_min or failed <= well * policy.doubt_share:
            self._doubts = 0
            return None
        self._doubts += 1
        if failed == well:
            return f"all {well} failed at once"
        if self._doubts <= policy.doubt_rounds_max:
            return f"{failed} of {well} failed at once"
        return None

    def _note_wells(self, wells: Iterable[Observation]) -> tuple[dict[int, float], list[int]]:
        latency_ms: dict[int, float] = {}
        back: list[int] = []
        for one in wells:
            patient = self._patients[one.id]
            if patient.is_gone:
                back.append(one.id)
            patient.failures, patient.is_gone, patient.wait_rounds, patient.gone_rounds = 0, False, 0, 0
            if one.latency_ms is not None:
                share, old = self._policy.smoothing, patient.latency_ms
                patient.latency_ms = one.latency_ms if old is None else old + share * (one.latency_ms - old)
                latency_ms[one.id] = patient.latency_ms
        return latency_ms, back

    def _put_off(self, patient: _Patient) -> None:
        """Apply rule 4."""
        if patient.is_gone:
            patient.gone_rounds += 1
            patient.wait_rounds = min(2 ** min(patient.gone_rounds, 10), self._policy.gone_rounds_max) - 1
