"""The judge: a history and a fault's span in, an accounting and a verdict for each promise out. Pure.

Rules:

1. A pair is a publication that its broker acknowledged, and a subscriber that was there before it and came back.
   A publication without an acknowledgement is *unknown*: it may arrive or not.
2. A pair that did not arrive is *lost*, unless its publisher's or its subscriber's broker was killed within
   `DURABLE_S` after it took it: then only that broker had it, and it is *not durable* (and counted).
3. A second copy at QoS 1 is allowed for what was in flight when the fault struck: sent before, and not yet seen
   `SETTLE_S` earlier (its acknowledgement has a way to go, too). At QoS 2 none is. A killed broker finds an older
   state of its sessions on disk, and repeats what it had forgotten to be done: those copies are counted apart
   (*doubled by the broker*).
4. Order is promised without a fault, and judged then; otherwise counted.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from hanse.lab.chaos.history import History, Reader, Seen, Sent, Span

# How long an acknowledgement may take from the subscriber back to the first federator; it is in flight so long.
SETTLE_S = 1.0
# `autosave_interval 1` saves every two seconds (Mosquitto compares whole seconds); one more for the save itself.
DURABLE_S = 3.0


@dataclass(slots=True)
class Lost:
    """What one flow lost: how many, the first and the last number, and when those were sent."""

    count: int
    first: int
    last: int
    from_s: float
    to_s: float


@dataclass(slots=True)
class Accounting:
    """Every message and every pair, once.

    Attributes:
        retried: publications that were under way to their broker when the connection ended, and sent again.
        lost_publications: those that at least one subscriber lost.
        in_flight: pairs under way when the fault struck (rule 3).
        first_after_s: from the fault's end until each subscriber had something of each publisher that was sent
            after it: the slowest. None where nothing was sent, infinite where nothing came.
        first_missing: flows whose first acknowledged message after the fault's end did not arrive.
        gap_s: the longest time in which a subscriber saw nothing new of a publisher.
        lost_where: flow and QoS to the numbers lost, first and last, and when they were sent, from the fault's begin.
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
        """As it is, with the duplicates by QoS."""
        document = asdict(self)
        document["duplicates"] = {f"qos{qos}": self.duplicates[qos] for qos in (0, 1, 2)}
        if self.first_after_s is not None and not math.isfinite(self.first_after_s):
            document["first_after_s"] = "never"
        return document


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one promise held, and what was seen."""

    promise: str
    held: bool
    seen: str


def count(history: History, span: Span | None) -> Accounting:
    """The accounting; `span` is None where there was no fault."""
    found = Accounting()
    for sent in history.publishers:
        _count_sent(found, sent, span)
    # Of each publisher, which messages somebody missed: one drop on the way may cost several subscribers.
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
    """Count one flow's pairs; the numbers that are lost."""
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
    """Whether a message that was acknowledged was more than in the memory of a broker that was killed (rule 2)."""
    if span is None:
        return True
    # The publisher's broker took it, and died; one that it takes later is a new broker's to keep. At QoS 2 it has
    # taken what it answered by PUBREC: the publisher only releases that, and a broker that forgot it says "released".
    # Its last answers may be read after its death, where the machine has much to do.
    killed_s = span.brokers_killed.get(sent.site)
    taken_s = sent.received_s[number] or sent.acked_s[number]
    if killed_s is not None and killed_s - DURABLE_S <= taken_s <= sent.answered_until_s(killed_s):
        return False
    # The subscriber's broker took it from its federator, and died.
    killed_s = span.brokers_killed.get(reader.site)
    return killed_s is None or not killed_s - DURABLE_S <= sent.sent_s[number] <= killed_s


def _is_brokers_copy(span: Span | None, sent: Sent, number: int, reader: Reader, first_s: float) -> bool:
    """Whether a killed broker may have forgotten that it was done with a message (rule 3)."""
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
    """What the judge needs beside the history.

    Attributes:
        has_fault: whether there was one; order is judged where there was none.
        drops: what federators and brokers say they dropped meanwhile, by name.
        converged_s: from the fault's end until all agreed again; None when they did not.
        converged_bound_s: within which they should.
        unasked_ends: processes that ended although nobody ended them.
        under_way: what federators still hold for somebody long after the last message, by name.
        messages: how many were to be published; None where that was left open.
    """

    has_fault: bool
    drops: Mapping[str, int]
    converged_s: float | None
    converged_bound_s: float
    unasked_ends: int = 0
    under_way: Mapping[str, float] = field(default_factory=dict)
    messages: int | None = None


def judge(found: Accounting, evidence: Evidence) -> list[Verdict]:
    """A verdict for each promise."""
    dropped = sum(evidence.drops.values())
    converged_s = evidence.converged_s
    verdicts = [
        Verdict("the run says something: pairs to judge", found.pairs > 0, f"{found.pairs:,} pairs"),
        Verdict(
            "publishers are served: all is published, and acknowledged when the fault is over",
            found.unknown == 0 and evidence.messages in {None, found.published},
            f"{found.published:,} published, {found.unknown:,} of them without an answer",
        ),
        Verdict("nothing acknowledged is lost", not found.lost, f"{found.lost:,} lost"),
        Verdict(
            "every loss is explained by a counter",
            found.lost_publications <= dropped,
            f"{found.lost_publications:,} publications were missed by somebody, {dropped:,} are counted as dropped",
        ),
        Verdict("at QoS 2 nothing comes twice", not found.duplicates[2], f"{found.duplicates[2]:,} copies too many"),
        Verdict(
            "at QoS 1 no more come twice than were in flight",
            found.duplicates[1] <= found.in_flight,
            f"{found.duplicates[1]:,} copies too many, {found.in_flight:,} in flight",
        ),
        Verdict("nothing is altered", not found.corrupted, f"{found.corrupted:,} altered"),
        Verdict(
            "the federation converges again",
            converged_s is not None and converged_s <= evidence.converged_bound_s,
            f"never; {evidence.converged_bound_s:g} s allowed"
            if converged_s is None
            else f"after {converged_s:.1f} s of {evidence.converged_bound_s:g} s",
        ),
        Verdict(
            "nothing stays under way in a federator",
            not evidence.under_way,
            ", ".join(f"{name} {value:g}" for name, value in evidence.under_way.items()) or "nothing did",
        ),
        Verdict("nothing ends unasked", not evidence.unasked_ends, f"{evidence.unasked_ends} processes did"),
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
            "messages were under way while the fault was on",
            found.in_flight > 0 or found.acked_during_fault > 0,
            f"{found.acked_during_fault:,} acknowledged meanwhile",
        )
    )
    return verdicts
