"""Counters and gauges of the manager, in Prometheus' text form (version 0.0.4)."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hanse.topology.model import State

if TYPE_CHECKING:
    from hanse.topology.manager import Manager

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

REFUSALS = ("token-needed", "token-not-valid", "conflict")
Sample = tuple[Mapping[str, str], float]


@dataclass(slots=True)
class Counters:
    """Counts since the start."""

    joins: int = 0
    rejoins: int = 0
    leaves: int = 0
    # Every reason is present from the start, with 0: an alert on a rate needs a value before the first refusal.
    refusals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSALS, 0))
    revoked: int = 0
    lost: int = 0
    returned: int = 0
    health_rounds: int = 0
    doubts: int = 0
    probe_failures: int = 0
    checks_told: int = 0
    checks_not_told: int = 0
    announcements: int = 0
    announcements_failed: int = 0
    reports: int = 0
    takeovers: int = 0
    store_errors: int = 0
    round_errors: int = 0
    round_s: float = 0.0
    repair_s: float = 0.0
    loop_lag_s: float = 0.0

    def refuse(self, reason: str) -> None:
        """Count a refused request."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1


def render(families: Iterable[tuple[str, str, str, Iterable[Sample]]]) -> str:
    """Return families of (name, type, help, samples) as text."""
    lines: list[str] = []
    for name, kind, words, samples in families:
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        for labels, value in samples:
            shown = ",".join(f'{key}="{_escape(text)}"' for key, text in sorted(labels.items()))
            lines.append(f"{name}{{{shown}}} {value:.10g}" if shown else f"{name} {value:.10g}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def now_s() -> float:
    """Return the clock's seconds, in which the expiry of tokens is given."""
    return time.time()


def families(manager: "Manager") -> list[tuple[str, str, str, list[Sample]]]:
    """Return all families of the manager, by name."""
    count = manager.counters
    states: dict[str, int] = {state.value: 0 for state in State}
    for one in manager.topology.federators.values():
        states[one.state.value] += 1
    one_value: list[tuple[str, str, str, float]] = [
        ("links", "gauge", "Links of the overlay.", len(manager.topology.links)),
        ("epoch", "gauge", "The topology's epoch.", manager.topology.epoch),
        ("leading", "gauge", "1 if this manager leads.", manager.is_leading),
        (
            "doubting",
            "gauge",
            "1 if this manager doubts itself and declares no federator gone.",
            manager.rounds.doubt is not None,
        ),
        ("event_watchers", "gauge", "Open streams of /api/v1/events.", manager.events.watchers),
        ("events_dropped_total", "counter", "Events that slow watchers missed.", manager.events.dropped),
        ("group_entries", "gauge", "Group entries from reports.", len(manager.groups)),
        (
            "group_entries_dropped_total",
            "counter",
            "Group entries dropped for lack of capacity.",
            manager.groups.dropped,
        ),
        ("health_round_seconds", "gauge", "Duration of the last health round.", count.round_s),
        (
            "change_seconds",
            "gauge",
            "Computing time of the last change of the overlay, other than a join.",
            count.repair_s,
        ),
        ("audit_errors_total", "counter", "Audit entries that the store did not accept.", manager.audit.errors),
        ("lease_errors_total", "counter", "Failures to read or renew the lease.", manager.leadership.errors),
        ("loop_lag_seconds", "gauge", "Largest delay of the event loop since the round began.", count.loop_lag_s),
    ]
    totals: list[tuple[str, str]] = [
        ("joins", "Federators that joined."),
        ("rejoins", "Federators that joined again."),
        ("leaves", "Federators that left in order."),
        ("revoked", "Federators that were revoked, alone or with their token."),
        ("lost", "Federators declared gone."),
        ("returned", "Federators that came back."),
        ("health_rounds", "Health rounds."),
        ("doubts", "Rounds whose failures were not counted."),
        ("probe_failures", "Probes that failed."),
        ("checks_told", "Batches of health checks that a host broker accepted as telemetry."),
        ("checks_not_told", "Batches of health checks that no host broker accepted."),
        ("announcements", "Announcements that a host broker accepted."),
        (
            "announcements_failed",
            "Announcements that a host broker did not accept; the federator learns of them by its poll.",
        ),
        ("reports", "Reports of federators."),
        ("takeovers", "Times that this manager began to lead."),
        ("store_errors", "Changes that the store did not accept."),
        ("round_errors", "Health rounds that ended in an error of the manager itself."),
    ]
    found: list[tuple[str, str, str, list[Sample]]] = [
        (
            "hanse_manager_federators",
            "gauge",
            "Known federators, by state.",
            [({"state": state}, float(number)) for state, number in sorted(states.items())],
        ),
        (
            "hanse_manager_refusals_total",
            "counter",
            "Refused requests, by the name of the problem.",
            [({"reason": reason}, float(number)) for reason, number in sorted(count.refusals.items())],
        ),
    ]
    found += [(f"hanse_manager_{name}", kind, words, [({}, float(v))]) for name, kind, words, v in one_value]
    found += [
        (f"hanse_manager_{name}_total", "counter", words, [({}, float(getattr(count, name)))]) for name, words in totals
    ]
    return sorted(found)
