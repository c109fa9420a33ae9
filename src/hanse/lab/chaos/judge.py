"""The judge: a history and a fault's span in, an accounting and a verdict per promise out. Pure.

Rules:

1. A pair is a publication that its broker acknowledged, and a subscriber that existed before it and came back. A
   publication without an acknowledgement is *unknown*: it may arrive or not.
2. A pair that did not arrive is *lost*, unless its publisher's or its subscriber's broker was killed within `DURABLE_S`
   after it accepted the message. Then only that broker had the message, and it is *not durable* (and counted).
3. A duplicate at QoS 1 is allowed for messages in flight when the fault struck: sent before, and not yet seen
   `SETTLE_S` earlier (the acknowledgement needs time as well). At QoS 2, none is allowed. A killed broker finds older
   state of its sessions on disk, and repeats messages whose completion it has forgotten. Those duplicates are counted
   separately (*doubled by the broker*).
4. Order is promised, and judged, only without a fault. Otherwise reordering is counted.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from hanse.lab.chaos.history import History, Reader, Seen, Sent, Span

# Longest time that an acknowledgement takes from the subscriber back to the first federator. So long, the pair is in
# flight.
SETTLE_S = 1.0
# `autosave_interval 1` saves every two seconds (Mosquitto compares whole seconds); one more for the save itself.
DURABLE_S = 3.0


@dataclass(slots=True)
class Lost:
    """Losses of one flow: their number, the first and the last message, and the times at which those were sent."""

    count: int
    first: int
    last: int
    from_s: float
    to_s: float


@dataclass(slots=True)
class Accounting:
    """Account in which every message and every pair counts once.

    Attributes:
        retried: publications that were under way to their broker when the connection ended, and were sent again.
        lost_publications: publications that at least one subscriber lost.
        in_flight: pairs under way when the fault struck (rule 3).
        first_after_s: time from the fault's end until each subscriber had a later message of each publisher, of the
            slowest pair. None if none was sent, infinite if none arrived.
        first_missing: flows whose first acknowledged message after the fault's end did not arrive.
        gap_s: longest time in which a subscriber saw nothing new of a publisher.
        lost_where: flow and QoS to the lost numbers, first and last, and their sending times from the fault's begin.
    """

    published: int = 0
    acked: int = 0
    unknown: int = 0
    refused: int = 0
    retried: int = 0
    pairs: int = 0
    delivered: int = 0
    lost: int = 0
    lost_publications: int = 0
    not_durable: int = 0
    duplicates: Counter[int] = field(default_factory=Counter)
    doubled_by_broker: int = 0
    in_flight: int = 0
    corrupted: int = 0
    foreign: int = 0
    reordered: int = 0
    acked_during_fault: int = 0
    first_after_s: float | None = None
    first_missing: int = 0
    gap_s: float = 0.0
    lost_where: dict[str, Lost] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a document of all fields, with the duplicates by QoS."""
        document = asdict(self)
        document["duplicates"] = {f"qos{qos}": self.duplicates[qos] for qos in (0, 1, 2)}
        if self.first_after_s is not None and not math.isfinite(self.first_after_s):
            document["first_after_s"] = "never"
        return document


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result for one promise, and the observation behind it."""

    promise: str
    held: bool
    seen: str


def count(history: History, span: Span | None) -> Accounting:
    """Return the accounting; `span` is None without a fault."""
    found = Accounting()
    for sent in history.publishers:
        _count_sent(found, sent, span)
    # For each publisher, the messages that somebody missed: one drop in the middle may cost several subscribers.
    missed: list[set[int]] = [set() for _ in history.publishers]
    for reader in history.readers:
        found.corrupted += reader.corrupted
        found.foreign += reader.foreign
        for sent, seen, numbers in zip(history.publishers, reader.seen, missed, strict=True):
            found.reordered += seen.reordered
            found.corrupted += seen.out_of_range
            numbers.update(_count_pairs(found, sent, reader, seen, span))
            _measure(found, sent, seen, span)
    found.lost_publications = sum(map(len, missed))
    return found


def _count_sent(found: Accounting, sent: Sent, span: Span | None) -> None:
    found.published += sent.count
    found.retried += sent.retried.count(1)
    for number in range(sent.count):
        acked_s = sent.acked_s[number]
        if acked_s:
            found.acked += 1
            if span is not None and span.begin_s <= sent.sent_s[number] <= span.end_s:
                found.acked_during_fault += 1
        elif sent.refused[number]:
            found.refused += 1
        else:
            found.unknown += 1


def _count_pairs(found: Accounting, sent: Sent, reader: Reader, seen: Seen, span: Span | None) -> list[int]:
    """Count one flow's pairs, and return the lost numbers."""
    missed: list[int] = []
    for number in range(sent.count):
        copies = seen.copies[number]
        sent_s = sent.sent_s[number]
        if copies > 1:
            if _is_brokers_copy(span, sent, number, reader, seen.first_s[number]):
                found.doubled_by_broker += copies - 1
            else:
                found.duplicates[sent.qos_of(number)] += copies - 1
        if (
            span is not None
            and sent_s <= span.began_s
            and not (copies and seen.first_s[number] < span.begin_s - SETTLE_S)
        ):
            found.in_flight += 1
        if not sent.acked_s[number]:
            continue
        found.pairs += 1
        if copies:
            found.delivered += 1
        elif not _was_durable(span, sent, number, reader):
            found.not_durable += 1
        else:
            found.lost += 1
            since_s = sent_s - (span.begin_s if span is not None else sent.sent_s[0])
            where = f"{sent.site} > {reader.site} at QoS {sent.qos_of(number)}"
            lost = found.lost_where.setdefault(where, Lost(0, number, number, since_s, since_s))
            lost.count, lost.last, lost.to_s = lost.count + 1, number, since_s
            missed.append(number)
    return missed


def _was_durable(span: Span | None, sent: Sent, number: int, reader: Reader) -> bool:
    """Return whether an acknowledged message was more than in the memory of a killed broker (rule 2)."""
    if span is None:
        return True
    # The publisher's broker accepted the message, and died. If it accepted it after its restart, the new process has to
    # keep it. At QoS 2, the PUBREC counts as acceptance: the publisher then only releases the message, and a broker
    # that forgot it still completes the release. On a busy machine, the broker's last acknowledgements may be read
    # after its death.
    killed_s = span.brokers_killed.get(sent.site)
    taken_s = sent.received_s[number] or sent.acked_s[number]
    if killed_s is not None and killed_s - DURABLE_S <= taken_s <= sent.answered_until_s(killed_s):
        return False
    # The subscriber's broker accepted the message from its federator, and died.
    killed_s = span.brokers_killed.get(reader.site)
    return killed_s is None or not killed_s - DURABLE_S <= sent.sent_s[number] <= killed_s


def _is_brokers_copy(span: Span | None, sent: Sent, number: int, reader: Reader, first_s: float) -> bool:
    """Return whether a killed broker may have forgotten that a message was completed (rule 3)."""
    if span is None:
        return False
    known_s = max(sent.sent_s[number], sent.acked_s[number], first_s)
    return any(
        sent.sent_s[number] <= killed_s and known_s >= killed_s - DURABLE_S
        for site in (sent.site, reader.site)
        if (killed_s := span.brokers_killed.get(site)) is not None
    )


def _measure(found: Accounting, sent: Sent, seen: Seen, span: Span | None) -> None:
    arrivals = sorted(at_s for at_s in seen.first_s if at_s)
    found.gap_s = max([found.gap_s, *(b - a for a, b in pairwise(arrivals))])
    if span is None:
        return
    after = [n for n in range(sent.count) if sent.acked_s[n] and sent.sent_s[n] >= span.end_s]
    if not after:
        return
    if not seen.copies[after[0]]:
        found.first_missing += 1
    first_s = min((seen.first_s[n] for n in after if seen.copies[n]), default=math.inf)
    found.first_after_s = max(found.first_after_s or 0.0, first_s - span.end_s)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Input of the judge beside the history.

    Attributes:
        has_fault: whether there was a fault. Without one, order is judged.
        drops: drops that federators and brokers report for the run, by name.
        converged_s: time from the fault's end until all agreed again; None if they did not.
        converged_bound_s: bound of that time.
        unasked_ends: processes that ended although no fault ended them.
        under_way: messages that federators still hold long after the last message, by name.
        messages: number of messages to publish; None if it was left open.
    """

    has_fault: bool
    drops: Mapping[str, int]
    converged_s: float | None
    converged_bound_s: float
    unasked_ends: int = 0
    under_way: Mapping[str, float] = field(default_factory=dict)
    messages: int | None = None


def judge(found: Accounting, evidence: Evidence) -> list[Verdict]:
    """Return a verdict for each promise."""
    dropped = sum(evidence.drops.values())
    converged_s = evidence.converged_s
    verdicts = [
        Verdict("the run has pairs to judge", found.pairs > 0, f"{found.pairs:,} pairs"),
        Verdict(
            "all messages are published, and acknowledged after the fault",
            found.unknown == 0 and evidence.messages in {None, found.published},
            f"{found.published:,} published, {found.unknown:,} of them unacknowledged",
        ),
        Verdict("nothing acknowledged is lost", not found.lost, f"{found.lost:,} lost"),
        Verdict(
            "every loss is explained by a counter",
            found.lost_publications <= dropped,
            f"{found.lost_publications:,} publications were missed by a subscriber, {dropped:,} counted as dropped",
        ),
        Verdict("at QoS 2 there are no duplicates", not found.duplicates[2], f"{found.duplicates[2]:,} duplicates"),
        Verdict(
            "at QoS 1 there are no more duplicates than messages in flight",
            found.duplicates[1] <= found.in_flight,
            f"{found.duplicates[1]:,} duplicates, {found.in_flight:,} in flight",
        ),
        Verdict("no message is altered", not found.corrupted, f"{found.corrupted:,} altered"),
        Verdict(
            "the federation converges again",
            converged_s is not None and converged_s <= evidence.converged_bound_s,
            f"never; {evidence.converged_bound_s:g} s allowed"
            if converged_s is None
            else f"after {converged_s:.1f} s of {evidence.converged_bound_s:g} s",
        ),
        Verdict(
            "no message stays in a federator",
            not evidence.under_way,
            ", ".join(f"{name} {value:g}" for name, value in evidence.under_way.items()) or "nothing did",
        ),
        Verdict("no process ends by itself", not evidence.unasked_ends, f"{evidence.unasked_ends} processes did"),
    ]
    if not evidence.has_fault:
        verdicts.append(Verdict("order holds", not found.reordered, f"{found.reordered:,} out of order"))
        return verdicts
    if found.first_after_s is not None:
        late = "never" if math.isinf(found.first_after_s) else f"after {found.first_after_s:.2f} s"
        verdicts.append(
            Verdict("the first message after the fault arrives", not found.first_missing, f"the first came {late}")
        )
    verdicts.append(
        Verdict(
            "messages were under way during the fault",
            found.in_flight > 0 or found.acked_during_fault > 0,
            f"{found.acked_during_fault:,} acknowledged meanwhile",
        )
    )
    return verdicts
