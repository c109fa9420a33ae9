"""Counters and gauges of the manager, in Prometheus' text form (version 0.0.4)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[Mapping[str, str], float]


@dataclass(slots=True)
class Counters:
    """What happened since the start."""

    joins: int = 0
    rejoins: int = 0
    leaves: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    returned: int = 0
    health_rounds: int = 0
    doubts: int = 0
    probe_failures: int = 0
    announcements: int = 0
    announcements_failed: int = 0
    reports: int = 0
    takeovers: int = 0
    store_errors: int = 0
    round_s: float = 0.0
    repair_s: float = 0.0
    loop_lag_s: float = 0.0

    def refuse(self, reason: str) -> None:
        """Counts a request that was refused."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1


def render(families: Iterable[tuple[str, str, str, Iterable[Sample]]]) -> str:
    """Families of (name, type, help, samples) as text."""
    lines: list[str] = []
    for name, kind, words, samples in families:
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        for labels, value in samples:
            shown = ",".join(f'{key}="{_escape(text)}"' for key, text in sorted(labels.items()))
            lines.append(f"{name}{{{shown}}} {value:.10g}" if shown else f"{name} {value:.10g}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
