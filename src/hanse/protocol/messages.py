"""The messages between federators, as plain data. `codec` defines the bytes of each, docs/protocol.md the meaning.

A control frame is everything that one federator has to tell one neighbour at one moment. Its parts are named tuples
because a simulated round of ten thousand brokers makes half a million of them.
"""

from dataclasses import dataclass
from typing import NamedTuple

# The distance that says "I have no route to this core".
UNREACHABLE = 0xFFFF

# A run's hops are one byte.
HOPS_MAX = 255
# The least limit on hops. A core knows no distance but its own, and must not refuse what comes from afar.
HOPS_LIMIT_MIN = 64

# (core, group): the subject of a membership.
Key = tuple[int, str]

# Destinations that are no neighbour: the host broker, and none at all for now.
HOST = -1
BLOCKED = -2


class Announcement(NamedTuple):
    """The sender's route to one core. The receiver is one hop further away."""

    core: int
    epoch: int
    sequence: int
    distance: int
    claims_version: int
    # Only in the papers' `per_group` form: the group that this announcement is for.
    group: str = ""


class ClaimChange(NamedTuple):
    """One step of a core's claim set. `rank` is None if the claim was withdrawn."""

    group: str
    rank: int | None
    # The grouping policy in a claim of the management group, `left` in a withdrawal of a group that others want, else
    # empty.
    grouping: str = ""


class ClaimDelta(NamedTuple):
    """The steps from version `start` to version `start + len(changes)` of a core's claim set."""

    core: int
    epoch: int
    start: int
    changes: tuple[ClaimChange, ...]


class ClaimRequest(NamedTuple):
    """Request for claims that the sender lacks. It has `version` of `epoch`, and `offset` items of a snapshot."""

    core: int
    epoch: int
    version: int
    snapshot_version: int
    offset: int


class ClaimPart(NamedTuple):
    """Items from `offset` on of the whole claim set at `version`, which has `total` items."""

    core: int
    epoch: int
    version: int
    offset: int
    total: int
    claims: tuple[ClaimChange, ...]


class Solicit(NamedTuple):
    """Request for a route to `core` that is at least as new as `sequence`."""

    core: int
    epoch: int
    sequence: int


class HandOver(NamedTuple):
    """Request of a core without local interest that a member claim the group in its place."""

    core: int
    group: str


class SetStep(NamedTuple):
    """One step of a set that a link carries: a key added or removed."""

    is_added: bool
    core: int
    group: str


class SetDelta(NamedTuple):
    """Steps from `start` on of one generation. The set is whole when `complete_at` steps have been applied."""

    generation: int
    start: int
    complete_at: int
    steps: tuple[SetStep, ...]


class SetAck(NamedTuple):
    """Position up to which the receiver has applied the other side's set."""

    generation: int
    position: int


NOTHING_ACKED = SetAck(0, 0)


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """Everything that one federator tells one neighbour at one moment."""

    sender: int
    epoch: int
    # Rises with every control frame that the sender sends to anyone in this epoch.
    number: int
    # The last frame that the sender heard from the receiver. It reveals a one-way link, and a receiver that lost its
    # epoch.
    echo_epoch: int
    echo_number: int
    # True if `announcements` lists every core that the sender has a route to.
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
        """True if there is nothing but announcements and acknowledgements, as in a quiet round."""
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
    """A federator that a probe passed: when the probe arrived and when it was sent on, by the federator's own clock."""

    federator: int
    arrived_us: int
    left_us: int


class Probe(NamedTuple):
    """A publication that is never delivered. It tells which route the topic takes, and where it ends.

    `groups` are those that this link serves, as with a run. `path` begins with the origin, so its length is the number
    of hops.
    """

    origin: int
    epoch: int
    number: int
    topic: str
    groups: tuple[str, ...]
    path: tuple[PathHop, ...]


class Summary(NamedTuple):
    """The publications of one group that the sender has, for a neighbour that may have more of them.

    `age_ms` tells for how long the sender, or a federator behind it, has wanted the group. Older publications are not
    for it. `have` is origin, epoch and ranges `(first, count)` of ids.
    """

    group: str
    age_ms: int
    have: tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...] = ()


class Publication(NamedTuple):
    """A publication of a client at the host broker.

    `packet` is a whole MQTT 5 PUBLISH packet with DUP 0, packet identifier 0 if QoS is above 0, and neither
    subscription identifiers nor a topic alias. It travels in this form, unchanged, to the last hop.
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
    # The receiver sent it here, and from here the only route leads back (R66).
    is_returned: bool = False
    # Publication `n` was heard at stamp `stamp_base + n` (R79): the same for every piece. 0: there are no stamps.
    stamp_base: int = 0
