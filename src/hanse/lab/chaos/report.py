"""A round as text: the accounting in four lines, then every promise with its observation."""

import math

from hanse.lab.chaos.faults import FAULTS, NONE
from hanse.lab.chaos.rounds import Round

_COUNTERS_MAX = 12


def lines(result: Round, *, with_counters: bool = False) -> list[str]:
    """Return the lines of one round for the terminal."""
    found = result.accounting
    qos = "mixed QoS" if not result.workload.qos else f"QoS {result.workload.qos}"
    head = f"{result.fault}: {'kept every promise' if result.held else 'BROKE A PROMISE'}"
    published = (
        f"acknowledged {found.acked:,}, refused {found.refused:,}, unknown {found.unknown:,}; "
        f"tried again {found.retried:,}"
    )
    pairs = f"delivered {found.delivered:,}, lost {found.lost:,}, not durable at a killed broker {found.not_durable:,}"
    copies = (
        f"{found.duplicates[1]:,} at QoS 1 ({found.in_flight:,} pairs were in flight), {found.duplicates[2]:,} at "
        f"QoS 2, {found.doubled_by_broker:,} by a killed broker"
    )
    text = [
        f"{head} ({result.target}, seed {result.seed}, {result.took_s:.0f} s)",
        f"  published {found.published:,} at {qos}: {published}",
        f"  pairs {found.pairs:,}: {pairs}",
        f"  duplicates: {copies}; altered {found.corrupted:,}, out of order {found.reordered:,}",
        f"  first message after the fault: {_after(found.first_after_s)}; longest silence {found.gap_s:.2f} s",
    ]
    text += [f"  dropped by {name}: {value:,}" for name, value in result.drops.items()]
    for verdict in result.verdicts:
        text.append(f"  [{'ok' if verdict.held else 'NO'}] {verdict.promise}: {verdict.seen}")
    for where, lost in found.lost_where.items():
        when = f"sent {lost.from_s:+.3f} to {lost.to_s:+.3f} s from the fault's begin"
        text.append(f"       {where}: {lost.count:,} lost, numbers {lost.first:,} to {lost.last:,}, {when}")
    if with_counters or not result.held:
        text += _counters(result)
    return text


def _after(first_s: float | None) -> str:
    if first_s is None:
        return "none was sent"
    return "never" if math.isinf(first_s) else f"{first_s:.2f} s"


def _counters(result: Round) -> list[str]:
    """Return the counters of each federator during the round, the largest first."""
    text: list[str] = []
    for site, counters in result.counters.items():
        shown = sorted(counters.items(), key=lambda pair: -abs(pair[1]))[:_COUNTERS_MAX]
        words = ", ".join(f"{name.removeprefix('hanse_federator_')} {value:+,.0f}" for name, value in shown)
        text.append(f"  federator {site}: {words or 'does not answer'}")
    return text


def catalogue() -> list[str]:
    """Return all faults, one per line."""
    rows = [(NONE, "no fault: all promises must hold there before any fault is tried", "")]
    rows += [(name, fault.words, ", ".join(sorted(fault.needs))) for name, fault in FAULTS.items()]
    width = max(len(name) for name, _, _ in rows)
    return [f"{name:{width}}  {words}{f' [{needs}]' if needs else ''}" for name, words, needs in rows]
