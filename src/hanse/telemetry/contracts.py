"""Contracts of all measured data: one frozen dataclass per kind, the only place where a measured field is named.

Rules of this module:

- A field is an `int`, `float`, `bool` or `str`, or one of these or `None`. No integer is negative. Lists and nested
  values are rows of their own. The encoding, the Spark schemas and the tables' docs are derived from the fields.
- `…_at_us` is a point in time: microseconds since 1970 UTC by the reporter's own clock, unless the field says
  otherwise.
- The *reporter* (the federator or manager that measured) is not a field. The topic names it once, so a row cannot
  contradict its topic.
- Counts are cumulative since `started_at_us`, the last time at which the count is known to have been zero. A count that
  begins long after its process has its own start. A restarted process begins again at zero, with a later
  `started_at_us`. Otherwise a count never falls. Counts measure volume. Samples (`HopTrace`, `Delivery`) measure speed
  and route, never volume.
- If groups overlap, a publication belongs to several. Counts include it in each: published in every group that it
  matches, delivered in every one of these groups of which the destination is a member, so that the two are comparable.
  Samples name it once, with the first of its groups by name.
- A message is named by `(origin, epoch, seq)`, brokers and federators by the federator's id.
- Any change of a field is a new version of the topic and of the payload (`topic.VERSION`): nothing is guessed.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HopTrace:
    """Sampled publication as it passed the reporter: one row per arrival, duplicates included.

    The id of a publication alone decides whether it is sampled (`sampling.is_sampled`). Every federator on the route
    thus samples the same ones, and the path is assembled from the rows without a field in the frame.
    """

    origin: str
    epoch: int
    seq: int
    topic: str
    group: str
    hop: int  # 0 at the origin
    previous: str | None  # neighbour that sent it; None at the origin, where the host broker published it
    received_at_us: int
    sent_at_us: int | None  # time of sending to the next hops; None at the end of the route
    next_hops: int
    is_duplicate: bool  # a duplicate, which was dropped


@dataclass(frozen=True, slots=True)
class Delivery:
    """Sampled publication that the reporter's host broker has acknowledged."""

    origin: str
    epoch: int
    seq: int
    topic: str
    group: str
    qos: int
    hops: int  # links crossed; never 0, because local traffic stays with the broker
    published_at_us: int | None  # by the origin's clock, if the frame tells; otherwise see the origin's HopTrace
    delivered_at_us: int


@dataclass(frozen=True, slots=True)
class FlowCount:
    """Cumulative count of publications by origin, destination and group.

    `measure` is one of `FLOW_MEASURES`. The origin counts published. The destination counts delivered (acknowledged by
    the host broker). Each hop counts forwarded once per next hop. A federator that drops a duplicate counts
    duplicate. A federator that gives a publication up counts dropped, with a reason.
    """

    at_us: int
    started_at_us: int
    origin: str
    destination: str | None  # None for published and forwarded
    group: str
    measure: str
    reason: str | None  # only for dropped
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
    """Two-way check: question and answer with the four times that give round trip and clock offset.

    `sent` and `returned` are by the reporter's clock, `received` and `answered` by the target's. A failed check has
    only `sent`.
    """

    target: str
    host: str  # machine of the reporter, which determines its clock
    target_host: str
    sent_at_us: int
    received_at_us: int | None
    answered_at_us: int | None
    returned_at_us: int | None
    is_ok: bool
    reason: str | None  # reason of the failure


@dataclass(frozen=True, slots=True)
class TopologyEvent:
    """Change of the overlay. `event` is one of `TOPOLOGY_EVENTS`; `neighbour` is set for links."""

    at_us: int
    event: str
    federator: str
    neighbour: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class MeshEvent:
    """Change of one group's mesh. `event` is one of `MESH_EVENTS`; a member has local interest."""

    at_us: int
    event: str
    group: str
    federator: str  # the federator concerned: core, child or member
    epoch: int
    core: str | None
    parent: str | None
    distance: int | None


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """Resources that a process has used: CPU time since its start (cumulative) and resident memory (a level)."""

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
