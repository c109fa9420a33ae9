"""Probes: what the data path would do with a topic here, where it ends, and why.

A *probe* is a publication that is never delivered. It goes link by link as a frame of its own (docs/protocol.md) and
carries its path with times. `Tracer` tells its outcome at one federator. It uses the same plans as publications, and
suppresses duplicates in the same manner.

The rules:

- A decision here is the decision of `forwarding`. `test_tracing` compares paths in random federations.
- The last `PROBES_MAX` probes are remembered. A probe that was forgotten may go round, until the limit of hops ends it.
- What the federator itself adds (what may leave or enter its broker, whether its broker and its links are up) is known
  to the shell only: `hanse.federator.tracing`.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from hanse.protocol.messages import HOST, Probe
from hanse.protocol.plans import Plan
from hanse.protocol.topics import may_cross

# Half a kilobyte each. Enough for ten people who trace one topic per second, for as long as a probe can live.
PROBES_MAX = 1_024


class Reason(StrEnum):
    """Reason why a probe went no further."""

    NEVER_CROSSES = "never_crosses"
    EXPORT = "export"
    IMPORT = "import"
    HOST_DOWN = "host_down"
    LINK_DOWN = "link_down"
    NO_ANSWER = "no_answer"
    HOPS = "hops"
    NO_WAY = "no_way"
    UNKNOWN_GROUP = "unknown_group"
    NO_INTEREST = "no_interest"
    DUPLICATE = "duplicate"


# Of several reasons, the first in this order says most: settings of an operator, then what is down, then what is
# missing.
WORDS: dict[Reason, str] = {
    Reason.NEVER_CROSSES: "this topic never leaves its broker",
    Reason.EXPORT: "export_allow or export_deny keeps it at its broker",
    Reason.IMPORT: "import_allow or import_deny keeps it out",
    Reason.HOST_DOWN: "the host broker is down",
    Reason.LINK_DOWN: "the link is down",
    Reason.NO_ANSWER: "sent, but no report came back: it was lost on the link, or the federator is stuck",
    Reason.HOPS: "it has made more hops than the largest distance allows",
    Reason.NO_WAY: "it waits, because there is no route to the core yet",
    Reason.UNKNOWN_GROUP: "nobody claims the group that it was sent for",
    Reason.NO_INTEREST: "nobody elsewhere is interested",
    Reason.DUPLICATE: "it arrived by another route before",
}


class End(NamedTuple):
    """End of a probe for some of its groups. `neighbour` is -1 if the reason concerns no link."""

    reason: Reason
    groups: tuple[str, ...] = ()
    neighbour: int = -1
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a probe at one federator.

    Attributes:
        delivered: The groups of local interest for which the host broker would get it. Empty if it would not.
        forwarded: The neighbours that it goes to, with their groups.
        ends: The groups that went no further, and why.
    """

    delivered: tuple[str, ...] = ()
    forwarded: tuple[tuple[int, tuple[str, ...]], ...] = ()
    ends: tuple[End, ...] = ()


class TracedTable(Protocol):
    """The view of the machine that the tracer needs."""

    identity: int

    def match(self, topic: str) -> tuple[str, ...]:
        """Return the groups that a topic belongs to."""

    def is_known(self, group: str) -> bool:
        """Return whether this federator has heard of the group at all."""

    def is_local(self, group: str) -> bool:
        """Return whether the host broker's clients are interested in the group."""

    def hop_limit(self) -> int:
        """Return the number of hops beyond which a publication is dropped."""

    def plan(self, groups: tuple[str, ...], source: int) -> Plan:
        """Return where publications of these groups go from this source."""

    def neighbours(self) -> tuple[int, ...]:
        """Return the neighbours whose link is up."""

    def lost_neighbours(self) -> tuple[int, ...]:
        """Return the neighbours whose link is down or that are no longer heard."""


class Tracer:
    """The probes at one federator."""

    def __init__(self, table: TracedTable) -> None:
        self._table = table
        # Probe to the groups it was sent on for, and whether it was delivered.
        self._seen: OrderedDict[tuple[int, int, int], tuple[frozenset[str], bool]] = OrderedDict()

    def look(self, topic: str) -> Verdict:
        """Return the outcome that a publication at this federator's own broker would have."""
        if not may_cross(topic):
            return Verdict(ends=(End(Reason.NEVER_CROSSES),))
        groups = self._table.match(topic)
        plan = self._table.plan(groups, HOST)
        hops, ends = self._follow(plan)
        if not hops and not ends:
            ends = (self._nobody(groups),)
        return Verdict((), hops, ends)

    def take(self, neighbour: int, probe: Probe) -> Verdict:
        """Handle a probe that a neighbour sent, and return its outcome here."""
        table = self._table
        if probe.origin == table.identity:
            return Verdict(ends=(End(Reason.DUPLICATE, probe.groups, detail="it is back at its origin"),))
        if len(probe.path) > table.hop_limit():
            return Verdict(ends=(End(Reason.HOPS, probe.groups),))
        known = tuple([group for group in probe.groups if table.is_known(group)])
        if len(known) == len(probe.groups):
            return self._pass(neighbour, known, probe)
        # A group of the probe is unknown here, so the topic is matched again (R49).
        found = table.match(probe.topic) if may_cross(probe.topic) else ()
        matched = tuple([group for group in found if group not in known])
        if not known and not matched:
            return Verdict(ends=(End(Reason.UNKNOWN_GROUP, probe.groups),))
        verdicts = [self._pass(neighbour, known, probe)] if known else []
        if matched:
            verdicts.append(self._pass(HOST, matched, probe))
        return Verdict(
            tuple(group for verdict in verdicts for group in verdict.delivered),
            _joined(verdicts),
            tuple(end for verdict in verdicts for end in verdict.ends),
        )

    def _pass(self, source: int, groups: tuple[str, ...], probe: Probe) -> Verdict:
        """Suppress duplicates, deliver, and pass on (R43, R47)."""
        name = (probe.origin, probe.epoch, probe.number)
        served, was_delivered = self._seen.get(name, (frozenset(), False))
        fresh = tuple([group for group in groups if group not in served])
        if not fresh:
            return Verdict(ends=(End(Reason.DUPLICATE, groups),))
        plan = self._table.plan(fresh, source)
        self._remember(name, (served | frozenset(fresh), was_delivered or plan.is_local))
        delivered = tuple(filter(self._table.is_local, fresh)) if not was_delivered else ()
        hops, ends = self._follow(plan)
        if plan.is_local and was_delivered:
            ends = (*ends, End(Reason.DUPLICATE, fresh, detail="it was delivered here for another group"))
        if not (hops or plan.is_local or ends):
            ends = (End(Reason.NO_INTEREST, fresh, detail="any more, neither here nor beyond"),)
        return Verdict(delivered, hops, ends)

    def _follow(self, plan: Plan) -> tuple[tuple[tuple[int, tuple[str, ...]], ...], tuple[End, ...]]:
        """Return the hops of a plan over links that are up, and the reasons why other groups end here."""
        up = self._table.neighbours()
        hops = tuple([hop for hop in plan.hops if hop[0] in up])
        ends = [End(Reason.LINK_DOWN, groups, neighbour) for neighbour, groups in plan.hops if neighbour not in up]
        if plan.blocked:
            lost = self._table.lost_neighbours()
            if lost:
                detail = "the route to the core was lost with it; publications wait for a time"
                ends += [End(Reason.LINK_DOWN, plan.blocked, neighbour, detail) for neighbour in lost]
            else:
                ends.append(End(Reason.NO_WAY, plan.blocked))
        return hops, tuple(ends)

    def _nobody(self, groups: tuple[str, ...]) -> End:
        lost = self._table.lost_neighbours()
        if groups:
            return End(Reason.NO_INTEREST, groups, detail="only clients of this broker are interested")
        if lost and not self._table.neighbours():
            return End(Reason.LINK_DOWN, (), lost[0], "no link of this federator is up")
        detail = f"nothing is known beyond the links to {', '.join(map(str, lost))}, which are down" if lost else ""
        return End(Reason.NO_INTEREST, (), detail=detail)

    def _remember(self, name: tuple[int, int, int], done: tuple[frozenset[str], bool]) -> None:
        self._seen[name] = done
        self._seen.move_to_end(name)
        if len(self._seen) > PROBES_MAX:
            self._seen.popitem(last=False)


def foremost(reasons: "set[Reason]") -> Reason | None:
    """Return the reason that says most."""
    return next((reason for reason in WORDS if reason in reasons), None)


def _joined(verdicts: list[Verdict]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Join the hops of verdicts. A neighbour in two verdicts gets two probes, as it would get a publication twice."""
    return tuple(hop for verdict in verdicts for hop in verdict.forwarded)
