"""Where publications go from here: one plan for a topic, or for the groups that a link names, kept until it changes.

The rules (docs/protocol.md R42 to R49, R54):

- A plan is made from what the control side tells (`Table`), and holds until `invalidate` says that this has changed.
- Never back to who sent it. Within a mesh to all its edges; an outsider sends towards the core, and where its only way
  leads back to the sender, to those who led to the core before.
- What a plan does with a publication is remembered with its id as marks, so that a copy is known for what it is.
"""

from dataclasses import dataclass
from typing import Protocol

from hanse.protocol.accounts import Accounts, Stream, Use, Way
from hanse.protocol.messages import HOST
from hanse.protocol.seen import Done
from hanse.protocol.topics import may_cross

PLANS_MAX = 65_536

# Before a group in what was done with a publication: it passed here on its way to the mesh, not along the mesh.
OUTSIDER = "\0"
# Before a group: it came back, and was sent through the mesh once more.
TURNED = "\1"
# Before a neighbour: a copy came from it of what passed here on its way to a mesh.
CAME = "\2"
# Before a neighbour and a group: it was sent there on its way to the group's mesh.
SENT = "\3"

_NO_USE: Use = [0, 0]


class Table(Protocol):
    """What the control side tells the data path."""

    def match(self, topic: str) -> tuple[str, ...]:
        """The groups that a topic belongs to, of all that anybody claims."""

    def is_known(self, group: str) -> bool:
        """Whether this federator has heard of the group at all."""

    def is_hearsay(self, group: str) -> bool:
        """Whether this federator knows the group only because neighbours send publications of it."""

    def is_contested(self, group: str) -> bool:
        """Whether the group has several cores, or none, as far as this federator knows."""

    def is_local(self, group: str) -> bool:
        """Whether the host broker's clients are interested in the group."""

    def is_member(self, group: str) -> bool:
        """Whether this federator is in the group's mesh."""

    def hops(self, group: str) -> tuple[tuple[int, ...], bool]:
        """The neighbours that a publication of the group goes to, and whether it must wait for a way."""

    def former_hops(self, group: str) -> tuple[int, ...]:
        """The neighbours that led to a core which has just given the group up."""

    def hop_limit(self) -> int:
        """The number of hops beyond which a publication is dropped (R50)."""

    @property
    def is_synchronised(self) -> bool:
        """Whether a neighbour has told all the claims that it knows of."""

    def is_kept_for(self, neighbour: int, group: str) -> bool:
        """Whether a neighbour that is away belonged to the group's mesh over its link to us (R75)."""

    def is_claimed_by(self, neighbour: int, group: str) -> bool:
        """Whether a neighbour is, as far as is known, a core of the group."""


@dataclass(slots=True)
class Plan:
    """Where the publications of some groups go from here. Not a tuple: a field of a slot is read in half the time."""

    groups: tuple[str, ...]
    hops: tuple[tuple[int, tuple[str, ...]], ...]
    is_local: bool
    blocked: tuple[str, ...]
    done: Done
    has_unknown: bool
    # The accounts: what all this means, its uses by stream, and the use by our own publications.
    way: Way
    uses: dict[Stream, Use]
    own: Use
    # Claims are not known yet, so there may be more groups: QoS 1 and 2 wait (R63).
    is_unsure: bool = False


class Planner:
    """The plans of one federator.

    Attributes:
        epoch: The one that our own publications are numbered in.
        by_topic: Plans for what the host broker hands in. The data path looks here before it asks `of_topic`.
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
        """The control side changed: no plan holds any longer."""
        self.by_topic.clear()
        self.by_link.clear()

    def of_topic(self, topic: str) -> Plan:
        """Where what the host broker's clients publish to a topic goes."""
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
        """Where what a neighbour sends for these groups goes."""
        key = (neighbour, groups)
        plan = self.by_link.get(key)
        if plan is None:
            if len(self.by_link) >= PLANS_MAX:
                self.by_link.clear()
            plan = self.by_link[key] = self.make(groups, neighbour)
        return plan

    def make(self, groups: tuple[str, ...], source: int) -> Plan:
        """Where publications of these groups go from here, coming from a source."""
        table = self._table
        by_neighbour: dict[int, list[str]] = {}
        blocked = []
        for group in groups:
            neighbours, is_blocked = table.hops(group)
            for neighbour in neighbours:
                if neighbour != source:
                    by_neighbour.setdefault(neighbour, []).append(group)
            if neighbours == (source,) and not table.is_member(group) and not table.is_claimed_by(source, group):
                # An outsider whose only way leads back to the sender: that one has not heard yet of the new core, whose
                # mesh the former one's still belongs to. Where that is not so it waits too: the ways are changing.
                # From a core itself it is no such thing: we have just left its mesh, which it has served (R46).
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
    """The mark of what was sent to a neighbour on its way to a group's mesh."""
    return f"{SENT}{neighbour} {group}"
