"""Plans: where the publications of a topic, or of the groups that a link names, go from here.

The rules (docs/protocol.md R42 to R49, R54):

- A plan is made from what the control side tells (`Table`), and holds until `invalidate` says that this has changed.
- A publication never goes back to its sender. Within a mesh it goes to all edges. An outsider sends it towards the
  core, or, if its only route leads back to the sender, to the neighbours that led to the core before.
- What a plan does with a publication is remembered with its id as marks, so that duplicates are handled correctly.
"""

from dataclasses import dataclass
from typing import Protocol

from hanse.protocol.accounts import Accounts, Stream, Use, Way
from hanse.protocol.messages import HOST
from hanse.protocol.seen import Done
from hanse.protocol.topics import may_cross

PLANS_MAX = 65_536

# Before a group: the publication passed here on its way to the mesh, not along the mesh.
OUTSIDER = "\0"
# Before a group: the publication came back and was sent through the mesh once more.
TURNED = "\1"
# Before a neighbour: a duplicate of what passed here on its way to a mesh came from it.
CAME = "\2"
# Before a neighbour and a group: the publication was sent there on its way to the group's mesh.
SENT = "\3"

_NO_USE: Use = [0, 0]


class Table(Protocol):
    """The view of the control side that the data path needs."""

    def match(self, topic: str) -> tuple[str, ...]:
        """Return the groups that a topic belongs to, of all claimed groups."""

    def is_known(self, group: str) -> bool:
        """Return whether this federator has heard of the group at all."""

    def is_hearsay(self, group: str) -> bool:
        """Return whether this federator knows the group only because neighbours send publications of it."""

    def is_contested(self, group: str) -> bool:
        """Return whether the group has several cores, or none, as far as this federator knows."""

    def is_local(self, group: str) -> bool:
        """Return whether the host broker's clients are interested in the group."""

    def is_member(self, group: str) -> bool:
        """Return whether this federator is in the group's mesh."""

    def hops(self, group: str) -> tuple[tuple[int, ...], bool]:
        """Return the neighbours that a publication of the group goes to, and whether it must wait for a route."""

    def former_hops(self, group: str) -> tuple[int, ...]:
        """Return the neighbours that led to a core which has just given the group up."""

    def hop_limit(self) -> int:
        """Return the number of hops beyond which a publication is dropped (R50)."""

    @property
    def is_synchronised(self) -> bool:
        """True once a neighbour has told all the claims that it knows of."""

    def is_kept_for(self, neighbour: int, group: str) -> bool:
        """Return whether a neighbour that is away belonged to the group's mesh over its link to us (R75)."""

    def is_claimed_by(self, neighbour: int, group: str) -> bool:
        """Return whether a neighbour is a core of the group, as far as is known."""


@dataclass(slots=True)
class Plan:
    """Next destinations of the publications of some groups. Not a tuple: a slot is read in half the time."""

    groups: tuple[str, ...]
    hops: tuple[tuple[int, tuple[str, ...]], ...]
    is_local: bool
    blocked: tuple[str, ...]
    done: Done
    has_unknown: bool
    # The accounts: the outcomes that the plan stands for, its uses by stream, and the use by our own publications.
    way: Way
    uses: dict[Stream, Use]
    own: Use
    # Claims are not known yet, so there may be more groups: QoS 1 and 2 wait (R63).
    is_unsure: bool = False


class Planner:
    """The plans of one federator.

    Attributes:
        epoch: The epoch in which our own publications are numbered.
        by_topic: Plans for what the host broker hands in. The data path looks here before it calls `of_topic`.
        by_link: Plans for what a neighbour hands in, by neighbour and groups.
    """

    def __init__(self, identity: int, epoch: int, table: Table, accounts: Accounts) -> None:
        self._identity = identity
        self.epoch = epoch
        self._table = table
        self._accounts = accounts
        self.by_topic: dict[str, Plan] = {}
        self.by_link: dict[tuple[int, tuple[str, ...]], Plan] = {}

    def invalidate(self) -> None:
        """Drop all plans, because the control side has changed."""
        self.by_topic.clear()
        self.by_link.clear()

    def of_topic(self, topic: str) -> Plan:
        """Return the plan for what the host broker's clients publish to a topic."""
        # A wide filter such as # brings in topics that never cross (R54).
        crosses = may_cross(topic)
        plan = self.make(self._table.match(topic) if crosses else (), HOST)
        if crosses and not self._table.is_synchronised:
            plan.is_unsure = True
        if len(self.by_topic) >= PLANS_MAX:
            self.by_topic.clear()
        self.by_topic[topic] = plan
        return plan

    def of_link(self, neighbour: int, groups: tuple[str, ...]) -> Plan:
        """Return the plan for what a neighbour sends for these groups."""
        key = (neighbour, groups)
        plan = self.by_link.get(key)
        if plan is None:
            if len(self.by_link) >= PLANS_MAX:
                self.by_link.clear()
            plan = self.by_link[key] = self.make(groups, neighbour)
        return plan

    def make(self, groups: tuple[str, ...], source: int) -> Plan:
        """Make the plan for publications of these groups that come from a source."""
        table = self._table
        by_neighbour: dict[int, list[str]] = {}
        blocked = []
        for group in groups:
            neighbours, is_blocked = table.hops(group)
            for neighbour in neighbours:
                if neighbour != source:
                    by_neighbour.setdefault(neighbour, []).append(group)
            if neighbours == (source,) and not table.is_member(group) and not table.is_claimed_by(source, group):
                # An outsider whose only route leads back to the sender. The sender has not heard yet of the new core,
                # and the former core's mesh is still linked to the new one's. If there is no former route, the
                # publication waits, because the routes are changing. If the sender is a core itself, nothing is left to
                # do: we have just left its mesh, and it has served the publication (R46).
                former = [hop for hop in table.former_hops(group) if hop != source]
                for neighbour in former:
                    by_neighbour.setdefault(neighbour, []).append(group)
                is_blocked = not former
            if is_blocked:
                blocked.append(group)
        hops = []
        for neighbour in sorted(by_neighbour):
            served = tuple(by_neighbour[neighbour])
            hops.append((neighbour, groups if served == groups else served))
        is_local = any(map(table.is_local, groups))
        has_unknown = not all(map(table.is_known, groups)) or any(map(table.is_hearsay, groups))
        way = Way(source, groups, tuple(hops), is_local, tuple(blocked))
        uses = self._accounts.uses(way)
        own = _NO_USE
        if source == HOST and (hops or blocked):
            stream = self._identity, self.epoch
            own = uses.get(stream) or self._accounts.begin(uses, way, stream)
        outside = {group for group in groups if not table.is_member(group)}
        marks = [OUTSIDER + group if group in outside else group for group in groups]
        marks += [sent_mark(neighbour, group) for neighbour, served in hops for group in served if group in outside]
        done = frozenset(marks), is_local
        return Plan(groups, way.hops, is_local, way.blocked, done, has_unknown, way, uses, own)


def sent_mark(neighbour: int, group: str) -> str:
    """Return the mark of a publication that was sent to a neighbour on its way to a group's mesh."""
    return f"{SENT}{neighbour} {group}"
