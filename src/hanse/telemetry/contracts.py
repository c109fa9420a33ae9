"""What is measured: one frozen dataclass a kind, the only place where a measured field is named.

Rules of this module:

- A field is an `int`, `float`, `bool` or `str`, or one of these or `None`. No integer is negative. Lists and nested
  values are rows of their own. The encoding, the Spark schemas and the tables' docs are derived from the fields.
- `…_at_us` is a moment: microseconds since 1970 UTC by the reporter's own clock, unless the field says otherwise.
- The *reporter* (the federator or manager that measured) is not a field: it stands in the topic, once, so that a
  row cannot contradict its topic.
- Counts are cumulative since `started_at_us`, the last moment at which the count is known to have been zero: a
  count that begins long after its process names its own beginning. Whoever restarts begins anew, with a later
  `started_at_us`; a count never falls otherwise. Counts say how much; samples (`HopTrace`, `Delivery`) say how fast
  and which way, never how much.
- Where groups overlap, a publication belongs to several. Counts name it in each: published in every group that it
  matches, delivered in every group of these that the destination is a member of, so that the two can be compared.
  Samples name it once, with the first of its groups by name.
- A message is named by `(origin, epoch, seq)`; brokers and federators by the federator's id.
- Any change of a field is a new version of the topic and of the payload (`topic.VERSION`): nothing is guessed.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HopTrace:
    """A sampled publication as it passed the reporter: one row for each copy that came in.

    Which publications are sampled follows from their id alone (`sampling.is_sampled`), so every federator on the
    way samples the same ones, and the path is put together from the rows without a field in the frame.
    """

    origin: str
    epoch: int
    seq: int
    topic: str
    group: str
    hop: int  # 0 at the origin
    previous: str | None  # the neighbour it came from; None at the origin, where the host broker published it
    received_at_us: int
    sent_at_us: int | None  # when it was handed to the next hops; None where the way ends
    next_hops: int
    is_duplicate: bool  # a copy that came after the first, and was dropped


@dataclass(frozen=True, slots=True)
class Delivery:
    """A sampled publication that the reporter's host broker has acknowledged."""

    origin: str
    epoch: int
    seq: int
    topic: str
    group: str
    qos: int
    hops: int  # links crossed; 0 never happens, for local traffic stays with the broker
    published_at_us: int | None  # by the origin's clock, where the frame tells; else the origin's HopTrace does
    delivered_at_us: int


@dataclass(frozen=True, slots=True)
class FlowCount:
    """A cumulative count of publications by origin, destination and group.

    `measure` is one of `FLOW_MEASURES`. Published is counted by the origin, delivered (acknowledged by the host
    broker) by the destination, forwarded by each hop for each copy, duplicate by who dropped a second copy, dropped
    by who gave a publication up, with a reason.
    """

    at_us: int
    started_at_us: int
    origin: str
    destination: str | None  # None where none is meant: published, forwarded
    group: str
    measure: str
    reason: str | None  # for dropped only
    publications: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class LinkCount:
    """Cumulative counts of one overlay link, as the reporter saw it."""

    at_us: int
    started_at_us: int
    neighbour: str
    data_frames_sent: int
    data_frames_received: int
    data_bytes_sent: int
    data_bytes_received: int
    control_frames_sent: int
    control_frames_received: int
    control_bytes_sent: int
    control_bytes_received: int
    retransmitted_frames: int
    dropped_frames: int
    queue_bytes: int  # a level, not a count


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A two-way check: question and answer with the four moments that give round trip and clock offset.

    `sent` and `returned` are by the reporter's clock, `received` and `answered` by the target's. A check that
    failed has only `sent`.
    """

    target: str
    host: str  # the machine, and so the clock, of the reporter
    target_host: str
    sent_at_us: int
    received_at_us: int | None
    answered_at_us: int | None
    returned_at_us: int | None
    is_ok: bool
    reason: str | None  # why it failed


@dataclass(frozen=True, slots=True)
class TopologyEvent:
    """A change of the overlay. `event` is one of `TOPOLOGY_EVENTS`; `neighbour` is set for links."""

    at_us: int
    event: str
    federator: str
    neighbour: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class MeshEvent:
    """A change of one group's mesh. `event` is one of `MESH_EVENTS`; a member has local interest."""

    at_us: int
    event: str
    group: str
    federator: str  # whom it is about: the core, the child, the member
    epoch: int
    core: str | None
    parent: str | None
    distance: int | None


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """What a process has used: CPU time since its start (cumulative) and resident memory (a level)."""

    at_us: int
    started_at_us: int
    host: str
    role: str  # one of ROLES
    cpu_us: int
    rss_bytes: int


Contract = HopTrace | Delivery | FlowCount | LinkCount | HealthCheck | TopologyEvent | MeshEvent | ResourceSample

FLOW_MEASURES = ("published", "forwarded", "delivered", "duplicate", "dropped")
TOPOLOGY_EVENTS = ("join", "leave", "federator_up", "federator_down", "link_up", "link_down")
MESH_EVENTS = ("core_elected", "core_withdrawn", "parent_changed", "member_joined", "member_left")
ROLES = ("federator", "broker", "manager", "gateway", "collector", "load")
