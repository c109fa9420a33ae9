"""Requests and responses of the HTTP interface, as pydantic models. Names are those of the papers, if they have one.

An unknown field is refused: a typing error must not pass for an omitted field.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from hanse.topology.addresses import ADDRESS_LENGTH_MAX, ADDRESS_PATTERN
from hanse.topology.groups import GROUPS_A_REPORT_MAX
from hanse.topology.model import ID_MAX, LinkKind, Probe, State

NEIGHBORS_MAX = 256
EPOCH_MAX = 2**53 - 1  # largest integer that JSON parsers keep exactly


def _whole(value: object) -> object:
    """Return a whole number for 7.0, which is one to JSON Schema but not to a strict parser."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Id = Annotated[int, Field(ge=0, le=ID_MAX), BeforeValidator(_whole)]
Epoch = Annotated[int, Field(ge=0, le=EPOCH_MAX), BeforeValidator(_whole)]
# The pattern is for readers of the document. `parse_address` checks, and its errors explain the expected form.
Address = Annotated[
    str,
    Field(
        max_length=ADDRESS_LENGTH_MAX,
        examples=["tcp://127.0.0.1:1883"],
        json_schema_extra={"pattern": ADDRESS_PATTERN},
    ),
]
Ids = Annotated[list[Id], Field(max_length=NEIGHBORS_MAX)]


class Given(BaseModel):
    """Body of a request: strict, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class JoinRequest(Given):
    """Listing 1: `{"ip": "tcp://127.0.0.1:1883"}`; the rest is optional."""

    ip: Address
    link: Address | None = None
    id: Id | None = None
    probe: Annotated[Probe, Field(strict=False)] = Probe.BROKER
    token: Annotated[str, Field(max_length=200)] | None = None


class LeaveRequest(Given):
    """Federator that leaves."""

    id: Id


class RevokeRequest(Given):
    """Expulsion; `keepToken` leaves the token that admitted the federator open for others."""

    keepToken: bool = False  # noqa: N815 - spelled like the other fields


class Revoked(BaseModel):
    """Result of an expulsion; `closedToken` is the id of the token that now admits nobody any more."""

    id: Id
    ip: str
    state: State
    closedToken: str | None  # noqa: N815


class Neighbor(Given):
    """Neighbour, as in Listing 2, and the address of its link."""

    id: Id
    ip: Address
    link: Address | None = None


class BrokerHealth(Given):
    """Measurement of a federator at its own broker."""

    ok: bool
    latency: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None


class Group(Given):
    """Group as the reporting federator sees it."""

    group: Annotated[str, Field(min_length=1, max_length=65_535)]
    core: Id | None = None
    parents: Ids = []
    mesh: Ids = []
    interest: bool = False


class ReportRequest(Given):
    """Report of a federator. `epoch` is the largest that it has been told; `lost` are neighbours it cannot reach."""

    ip: Address
    epoch: Epoch
    link: Address | None = None
    probe: Annotated[Probe, Field(strict=False)] = Probe.BROKER
    neighbors: Annotated[list[Neighbor], Field(max_length=NEIGHBORS_MAX)] = []
    lost: Ids = []
    broker: BrokerHealth | None = None
    groups: Annotated[list[Group], Field(max_length=GROUPS_A_REPORT_MAX)] | None = None
    gateway: Annotated[str, Field(max_length=300, pattern=r"^(tcp|tls)://[!-~]+$")] | None = None


class Word(BaseModel):
    """Reply to a federator."""

    id: Id
    epoch: Epoch
    changedEpoch: Epoch  # noqa: N815 - the wire's spelling, as in the papers
    state: State
    neighbors: list[Neighbor]
    neighborsAmount: int  # noqa: N815
    settings: dict[str, str | int | float | bool]
    manager: str


class Joined(Word):
    """Reply to a join; the federator shows `credential` from then on."""

    credential: str


class NamedNeighbor(BaseModel):
    """Neighbour in Listing 2."""

    id: Id
    ip: str


class FederatorDocument(BaseModel):
    """Listing 2, field for field."""

    id: Id
    ip: str
    neighbors: list[NamedNeighbor]
    neighborsAmount: int  # noqa: N815
    latency: float | None
    latestHealthCheck: str | None  # noqa: N815


class FederatorEntry(BaseModel):
    """Federator in the topology."""

    id: Id
    ip: str
    link: str | None
    state: State
    probe: Probe
    latency: float | None
    latestHealthCheck: str | None  # noqa: N815
    since: str | None


class LinkEntry(BaseModel):
    """Link in the topology."""

    a: Id
    b: Id
    kind: LinkKind


class TopologyDocument(BaseModel):
    """The whole topology."""

    epoch: Epoch
    manager: str
    isLeading: bool  # noqa: N815
    leader: str | None
    isConnected: bool  # noqa: N815
    isTwoConnected: bool  # noqa: N815
    federators: list[FederatorEntry]
    links: list[LinkEntry]
    settings: dict[str, str | int | float | bool]


class Member(BaseModel):
    """Part of a federator in a group."""

    id: Id
    core: Id | None
    parents: list[Id]
    mesh: list[Id]
    interest: bool


class GroupEntry(BaseModel):
    """Group, with the view of every member."""

    group: str
    cores: list[Id]
    members: list[Member]


class GroupsDocument(BaseModel):
    """Groups by name."""

    epoch: Epoch
    total: int
    groups: list[GroupEntry]


class AuditEntryDocument(BaseModel):
    """One change: its time (in UTC), author, source, action and subject."""

    time: str
    actor: str
    source: str
    action: str
    subject: str
    detail: dict[str, str | int | float | bool]


class AuditDocument(BaseModel):
    """The audit log, the newest entry first; `total` is the number of entries that the store has."""

    total: int
    entries: list[AuditEntryDocument]


class HealthDocument(BaseModel):
    """Health of the manager itself."""

    status: str
    manager: str
    isLeading: bool  # noqa: N815
    epoch: Epoch
    federators: int
    doubt: str | None


class Problem(BaseModel):
    """Problem document of RFC 9457."""

    type: str
    title: str
    status: int
    detail: str


BrokerId = Annotated[str, Field(min_length=1, max_length=200)]
BROKERS_MAX = 10_000


class DrainWord(Given):
    """An operator's word on the drain of a broker; `at` is when it was said, in seconds since 1970."""

    drained: bool
    rate: Annotated[float, Field(ge=0.1, le=1e6, allow_inf_nan=False)] | None = None
    at: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class GatewayReportRequest(Given):
    """Report of a gateway: the version that it knows, its verdicts, and the drains that its operators asked for."""

    known: Epoch
    down: Annotated[list[BrokerId], Field(max_length=BROKERS_MAX)] = []
    held: Annotated[list[BrokerId], Field(max_length=BROKERS_MAX)] = []
    drains: Annotated[dict[BrokerId, DrainWord], Field(max_length=BROKERS_MAX)] = {}


class GatewayBroker(BaseModel):
    """One broker as every gateway must see it; `state` is `up`, `down` or `returning`."""

    id: BrokerId
    url: str
    state: str
    drain: DrainWord | None
    # Where the broker's federator listens for gateways, if it does.
    federator: str | None = None


class GatewayPlan(BaseModel):
    """Facts that all gateways must share, under a version."""

    version: Epoch
    brokers: list[GatewayBroker]


class GatewayEntry(BaseModel):
    """A gateway that reports, and the version that it knows."""

    id: str
    known: Epoch


class GatewaysDocument(GatewayPlan):
    """The same, and who reports."""

    gateways: list[GatewayEntry]
