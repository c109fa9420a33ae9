"""What federators say to each other, as plain data. `codec` gives each its bytes; docs/protocol.md the meaning.

A control frame is everything that one federator has to tell one neighbour at one moment. Its parts are named
tuples because a simulated round of ten thousand brokers makes half a million of them.
"""

from dataclasses import dataclass
from typing import NamedTuple

# The distance that says "I have no way to this core".
UNREACHABLE = 0xFFFF

# A run's hops are one byte.
HOPS_MAX = 255
# The least limit on hops: a core knows no distance but its own, and must not refuse what comes from afar.
HOPS_LIMIT_MIN = 64

# (core, group): what a membership is about.
Key = tuple[int, str]

# Ways that are no neighbour: the host broker, and none at all for now.
HOST = -1
BLOCKED = -2


class Announcement(NamedTuple):
    """The way to one core, as the sender has it: one hop further away for whoever hears it."""

    core: int
    epoch: int
    sequence: int
    distance: int
    claims_version: int
    # Only in the papers' `per_group` form: the group that this announcement is for.
    group: str = ""


class ClaimChange(NamedTuple):
    """One step of a core's claim set: `rank` is None where the claim was withdrawn."""

    group: str
    rank: int | None
    # The grouping policy, advertised with the management group's claim; empty elsewhere.
    grouping: str = ""


class ClaimDelta(NamedTuple):
    """The steps from version `start` to version `start + len(changes)` of a core's claim set."""

    core: int
    epoch: int
    start: int
    changes: tuple[ClaimChange, ...]


class ClaimRequest(NamedTuple):
    """Asks for what the sender lacks: it holds `version` of `epoch`, and `offset` items of a snapshot."""

    core: int
    epoch: int
    version: int
    snapshot_version: int
    offset: int


class ClaimPart(NamedTuple):
    """Items `offset` and on of the whole claim set at `version`, of `total` items."""

    core: int
    epoch: int
    version: int
    offset: int
    total: int
    claims: tuple[ClaimChange, ...]


class Solicit(NamedTuple):
    """Asks for a way to `core` that is at least as new as `sequence`."""

    core: int
    epoch: int
    sequence: int


class HandOver(NamedTuple):
    """A core without local interest asks a member to claim the group in its place."""

    core: int
    group: str


class SetStep(NamedTuple):
    """One step of a set that a link carries: a key added or removed."""

    is_added: bool
    core: int
    group: str


class SetDelta(NamedTuple):
    """Steps `start` and on of generation `generation`; whole when `complete_at` steps have been applied."""

    generation: int
    start: int
    complete_at: int
    steps: tuple[SetStep, ...]


class SetAck(NamedTuple):
    """How far the receiver has applied the other side's set."""

    generation: int
    position: int


NOTHING_ACKED = SetAck(0, 0)


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """All that one federator tells one neighbour at one moment."""

    sender: int
    epoch: int
    # Rises with every control frame that the sender sends to anyone in this epoch.
    number: int
    # What the sender last heard from the receiver: shows a one-way link, and a receiver that lost its epoch.
    echo_epoch: int
    echo_number: int
    # True when `announcements` lists every core that the sender knows a way to.
    is_full: bool = False
    is_leaving: bool = False
    announcements: tuple[Announcement, ...] = ()
    claim_deltas: tuple[ClaimDelta, ...] = ()
    claim_requests: tuple[ClaimRequest, ...] = ()
    claim_parts: tuple[ClaimPart, ...] = ()
    solicits: tuple[Solicit, ...] = ()
    hand_overs: tuple[HandOver, ...] = ()
    # Memberships flow from child to parent, connections from parent to child.
    memberships: SetDelta | None = None
    connections: SetDelta | None = None
    memberships_ack: SetAck = NOTHING_ACKED
    connections_ack: SetAck = NOTHING_ACKED

    @property
    def is_refresh(self) -> bool:
        """Nothing but announcements and acknowledgements: what a quiet round consists of."""
        return not (
            self.claim_deltas
            or self.claim_requests
            or self.claim_parts
            or self.solicits
            or self.hand_overs
            or self.memberships
            or self.connections
            or self.is_leaving
        )


class PathHop(NamedTuple):
    """A federator that a probe passed: when it came, and when it was sent on, by the federator's own clock."""

    federator: int
    arrived_us: int
    left_us: int


class Probe(NamedTuple):
    """A publication of which nothing is delivered: it tells which way the topic goes, and where it ends.

    `groups` are those that this link serves, as with a run; `path` begins with the origin, so its length is the hops.
    """

    origin: int
    epoch: int
    number: int
    topic: str
    groups: tuple[str, ...]
    path: tuple[PathHop, ...]


class Summary(NamedTuple):
    """What the sender has of one group, for whoever may have more of it.

    `age_ms` says for how long the sender has wanted the group, or somebody behind it: what is older is not for it.
    `have` is origin, epoch and ranges `(first, count)` of ids.
    """

    group: str
    age_ms: int
    have: tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...] = ()


class Publication(NamedTuple):
    """What a client published at the host broker.

    `packet` is a whole MQTT 5 PUBLISH packet with DUP 0, packet identifier 0 where QoS is above 0, and neither
    subscription identifiers nor a topic alias: the form in which it travels, untouched, to the last hop.
    """

    topic: str
    qos: int
    packet: bytes


class Run(NamedTuple):
    """Publications of one origin with consecutive ids, one QoS, and the same groups on this link.

    The id of publication `k` is `(origin, epoch, first + k)`. `body` is their packets one after the other.
    """

    origin: int
    epoch: int
    first: int
    length: int
    qos: int
    hops: int
    groups: tuple[str, ...]
    body: bytes
    # The receiver sent it here, and from here there is no way but back (R66).
    is_returned: bool = False
