"""The manager's HTTP interface: thin routes that read the request, call `Manager`, and write the response.

`docs/topology.md` explains each route for federators and operators.
"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request
from fastapi.responses import PlainTextResponse, StreamingResponse

from hanse import __version__
from hanse.topology import metrics, problems
from hanse.topology.audit import Actor
from hanse.topology.gateways import Drain, GatewayReport
from hanse.topology.groups import GroupReport
from hanse.topology.limits import BODY_BYTES_MAX, BodyLimit
from hanse.topology.manager import POLL_WAIT_MAX_S, Manager, Report, peer_of
from hanse.topology.model import ID_MAX, format_time, listing_2
from hanse.topology.problems import NotFound
from hanse.topology.schemas import (
    EPOCH_MAX,
    AuditDocument,
    FederatorDocument,
    GatewayPlan,
    GatewayReportRequest,
    GatewaysDocument,
    GroupsDocument,
    HealthDocument,
    Joined,
    JoinRequest,
    LeaveRequest,
    Problem,
    ReportRequest,
    Revoked,
    RevokeRequest,
    TopologyDocument,
    Word,
)

Node = Annotated[int, Path(ge=0, le=ID_MAX, alias="id")]
Answers = dict[int | str, dict[str, Any]]
_SCHEMA = {"schema": {"$ref": "#/components/schemas/Problem"}}
PROBLEMS: Answers = {
    code: {"description": problems.TITLES[code], "content": {problems.MEDIA_TYPE: _SCHEMA}}
    for code in (400, 401, 403, 404, 409, 413, 422, 503)
}


def _manager(request: Request) -> Manager:
    manager = request.app.state.manager
    assert isinstance(manager, Manager)
    return manager


def _shown(authorization: Annotated[str | None, Header(max_length=300)] = None) -> str | None:
    """Return the token or credential of `Authorization: Bearer …`."""
    if authorization is None:
        return None
    scheme, _, text = authorization.partition(" ")
    # Another scheme is meant for somebody else, so the request has no token for the manager.
    return text.strip() if scheme.lower() == "bearer" and text.strip() else None


TheManager = Annotated[Manager, Depends(_manager)]
Shown = Annotated[str | None, Depends(_shown)]


async def _reader(manager: TheManager, shown: Shown) -> None:
    await manager.gate.reader(shown, manager.topology, metrics.now_s())


def _source(request: Request) -> str:
    """Return the address that the request came from, for the audit log."""
    return "" if request.client is None else request.client.host


Source = Annotated[str, Depends(_source)]


async def _operator(manager: TheManager, shown: Shown, source: Source) -> Actor:
    token = await manager.gate.operator(shown, metrics.now_s())
    return Actor(f"admin token {token.id}", source)


Operator = Annotated[Actor, Depends(_operator)]


async def _gateway(manager: TheManager, shown: Shown) -> None:
    await manager.gate.gateway(shown, metrics.now_s())


federators = APIRouter(prefix="/api/v1", responses=PROBLEMS)
gateways = APIRouter(prefix="/api/v1", dependencies=[Depends(_gateway)], responses=PROBLEMS)
readers = APIRouter(prefix="/api/v1", dependencies=[Depends(_reader)], responses=PROBLEMS)
operators = APIRouter(prefix="/api/v1", dependencies=[Depends(_operator)], responses=PROBLEMS)


@federators.post("/join")
async def join(body: JoinRequest, manager: TheManager, shown: Shown, source: Source) -> Joined:
    """Add a federator to the overlay (the papers' Listing 1)."""
    peer = peer_of(body.ip, node=None, link=body.link, probe=body.probe)
    node = await manager.join(peer, shown if shown is not None else body.token, body.id, source)
    one = manager.topology.federators[node]
    credential = manager.credentials.issue(node, one.key, one.token)
    return Joined.model_validate({**manager.word(node), "credential": credential})


@federators.post("/leave")
async def leave(body: LeaveRequest, manager: TheManager, shown: Shown, source: Source) -> Word:
    """Leave the overlay in order: the manager tells the neighbours, and remembers the id."""
    await manager.leave(body.id, shown, source)
    return Word.model_validate(manager.word(body.id))


@federators.post("/federators/{id}/report")
async def report(node: Node, body: ReportRequest, manager: TheManager, shown: Shown, source: Source) -> Word:
    """Report the state of a federator, and get the neighbours that it should have."""
    neighbors = tuple(peer_of(one.ip, node=one.id, link=one.link) for one in body.neighbors if one.id != node)
    groups = None
    if body.groups is not None:
        groups = tuple(
            GroupReport(g.group, g.core, tuple(g.parents), tuple(g.mesh), has_interest=g.interest) for g in body.groups
        )
    told = Report(
        peer_of(body.ip, node=node, link=body.link, probe=body.probe),
        body.epoch,
        neighbors,
        tuple(body.lost),
        groups,
        body.broker.ok if body.broker else None,
        body.broker.latency if body.broker else None,
        body.gateway,
    )
    await manager.report(told, shown, source)
    return Word.model_validate(manager.word(node))


@federators.get("/federators/{id}/neighbors")
async def neighbors(
    node: Node,
    manager: TheManager,
    shown: Shown,
    after: Annotated[int, Query(ge=0, le=EPOCH_MAX)] = 0,
    wait: Annotated[float, Query(ge=0, le=POLL_WAIT_MAX_S, allow_inf_nan=False)] = 0.0,
) -> Word:
    """Get the neighbours; with `wait`, as soon as they change after the epoch `after` (a long poll)."""
    await manager.poll(node, shown, after, wait)
    return Word.model_validate(manager.word(node))


@operators.post("/federators/{id}/revoke")
async def revoke(node: Node, body: RevokeRequest, manager: TheManager, actor: Operator) -> Revoked:
    """Expel one federator: the manager refuses its credential, and tells its neighbours to close their links."""
    closed = await manager.revoke(node, actor, keep_token=body.keepToken)
    one = manager.topology.federators[node]
    return Revoked(id=node, ip=one.ip, state=one.state, closedToken=closed)


@operators.get("/audit")
async def audit(
    manager: TheManager,
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditDocument:
    """List the changes with their authors and times, the newest first."""
    total, found = await manager.list_audit(offset=offset, limit=limit)
    entries = [{**asdict(one), "time": format_time(datetime.fromtimestamp(one.at_s, UTC))} for one in found]
    return AuditDocument.model_validate({"total": total, "entries": entries})


GatewayName = Annotated[str, Path(min_length=1, max_length=64, pattern="^[A-Za-z0-9._-]+$", alias="id")]


@gateways.post("/gateways/{id}/report")
async def gateway_report(name: GatewayName, body: GatewayReportRequest, manager: TheManager) -> GatewayPlan:
    """Report a gateway's verdicts on brokers, and get what all gateways must know alike."""
    drains = {broker: Drain(one.drained, one.rate, one.at) for broker, one in body.drains.items()}
    told = GatewayReport(body.known, frozenset(body.down), frozenset(body.held), drains)
    return GatewayPlan.model_validate(manager.report_gateway(name, told))


@readers.get("/gateways")
async def list_gateways(manager: TheManager) -> GatewaysDocument:
    """List the gateways that report, and their instructions."""
    known = [{"id": name, "known": version} for name, version in manager.gateways.gateways]
    return GatewaysDocument.model_validate({**manager.gateway_plan(), "gateways": known})


@readers.get("/federators")
async def list_federators(manager: TheManager) -> list[FederatorDocument]:
    """List every federator that is up, as Listing 2."""
    around = manager.topology.neighbor_map()
    known = manager.topology.federators
    return [
        FederatorDocument.model_validate(listing_2(known[node], [known[other] for other in around[node]]))
        for node in manager.topology.living()
    ]


@readers.get("/federators/{id}")
async def federator(node: Node, manager: TheManager) -> FederatorDocument:
    """Get one federator, as Listing 2, field for field."""
    known = manager.topology.federators
    if node not in known:
        raise NotFound(f"There is no federator {node}.")
    document = listing_2(known[node], [known[other] for other in manager.topology.neighbors(node)])
    return FederatorDocument.model_validate(document)


@readers.get("/topology")
async def topology(manager: TheManager) -> TopologyDocument:
    """Get the overlay: federators in every state, links, and whether it is connected."""
    connected, two_connected = await manager.shape()
    now = manager.topology
    entries = [
        {
            "id": one.id,
            "ip": one.ip,
            "link": one.link,
            "state": one.state,
            "probe": one.probe,
            "latency": one.latency_ms,
            "latestHealthCheck": format_time(one.latest_health_check),
            "since": format_time(one.since),
        }
        for one in now.federators.values()
    ]
    return TopologyDocument.model_validate(
        {
            "epoch": now.epoch,
            "manager": manager.id,
            "isLeading": manager.is_leading,
            "leader": manager.leadership.leader_url or None,
            "isConnected": connected,
            "isTwoConnected": two_connected,
            "federators": sorted(entries, key=lambda entry: int(str(entry["id"]))),
            "links": [{"a": a, "b": b, "kind": kind} for (a, b), kind in sorted(now.links.items())],
            "settings": manager.settings.handed_out(),
        }
    )


@readers.get("/groups")
async def groups(
    manager: TheManager,
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> GroupsDocument:
    """List groups with their cores and meshes, as federators report them."""
    total, found = manager.groups.groups(offset=offset, limit=limit)
    return GroupsDocument.model_validate({"epoch": manager.topology.epoch, "total": total, "groups": found})


@readers.get("/events", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}})
async def events(
    manager: TheManager, last_event_id: Annotated[str | None, Header(max_length=20)] = None
) -> StreamingResponse:
    """Stream events as server-sent events; `Last-Event-ID` resumes a broken stream."""
    manager.events.check_room()
    after = (
        int(last_event_id)
        if last_event_id is not None and last_event_id.isascii() and last_event_id.isdigit()
        else None
    )
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(manager.events.watch(after), media_type="text/event-stream", headers=headers)


async def healthz(manager: TheManager) -> HealthDocument:
    """Tell whether this manager is up, leads, and trusts its own probes."""
    return HealthDocument(
        status="leading" if manager.is_leading else "standby",
        manager=manager.id,
        isLeading=manager.is_leading,
        epoch=manager.topology.epoch,
        federators=len(manager.topology.living()),
        doubt=manager.rounds.doubt,
    )


async def prometheus(manager: TheManager) -> PlainTextResponse:
    """Get counters and gauges for Prometheus."""
    return PlainTextResponse(metrics.render(metrics.families(manager)), media_type=metrics.MEDIA_TYPE)


def create_app(manager: Manager) -> FastAPI:
    """Return the application around a manager. The caller starts and stops the manager."""
    app = FastAPI(
        title="Hanse topology manager",
        version=__version__,
        description="Places federators in an overlay, watches their brokers, and repairs the overlay.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.manager = manager
    problems.install(app)
    app.include_router(federators)
    app.include_router(gateways)
    app.include_router(operators)
    app.include_router(readers)
    app.get("/healthz")(healthz)
    app.get("/metrics", dependencies=[Depends(_reader)], responses=PROBLEMS, response_class=PlainTextResponse)(
        prometheus
    )
    app.add_middleware(BodyLimit, bytes_max=BODY_BYTES_MAX)
    _document_problems(app)
    return app


def _document_problems(app: FastAPI) -> None:
    """Put the schema of problem documents into the OpenAPI document, in place of the framework's own error models."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = Problem.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for path in document["paths"].values():
            for operation in path.values():
                for code, answer in operation["responses"].items():
                    if code.startswith(("4", "5")):
                        answer["content"] = {problems.MEDIA_TYPE: _SCHEMA}
        return document

    app.openapi = openapi  # type: ignore[method-assign]
