"""`hanse up`: runs a federation on one machine."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from hanse import logs
from hanse.cli.log_options import LogFormat, LogLevel, check_log_options
from hanse.errors import LocalError, RemoteError, Unavailable
from hanse.local import overlay as shapes
from hanse.local import state as state_file
from hanse.local.agents import LINKS, agent_command, is_converged
from hanse.local.gateway import LocalGateway
from hanse.local.http import get_json
from hanse.local.managed import LocalManager
from hanse.local.ports import LOOPBACK
from hanse.local.supervise import Converged, Federation, FederationSettings, Prepare, Service, Site
from hanse.settings import parse_duration_s

_REFRESH_S = 1.0
_BROKERS = 5
_BrokerUrls = Annotated[
    list[str], typer.Option("--broker-url", help="URL of a broker that is already running; repeatable.")
]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(up)


def up(
    *,
    brokers: Annotated[
        int | None,
        typer.Option(min=0, max=100, help="Number of brokers to start; default 5, or none with --broker-url."),
    ] = None,
    broker_url: _BrokerUrls = [],  # noqa: B006 - typer copies it
    base_port: Annotated[int, typer.Option(min=1, max=65_000, help="Broker k listens on this port plus k.")] = 18_830,
    directory: Annotated[Path, typer.Option("--dir", help="Directory for the files of brokers and federators.")] = Path(
        ".hanse"
    ),
    state: Annotated[
        Path, typer.Option(help="State file, which names the running processes and their addresses.")
    ] = state_file.DEFAULT_PATH,
    overlay: Annotated[
        str, typer.Option(help="managed, or an initial shape: ring, line, full, star or grid:RxC.")
    ] = shapes.MANAGED,
    manager: Annotated[
        bool,
        typer.Option(help="Run a topology manager, which repairs the overlay; without it the overlay stays as given."),
    ] = True,
    health_interval: Annotated[
        str | None, typer.Option(help="Time between two health rounds of the manager; default 5s.")
    ] = None,
    link: Annotated[str, typer.Option(help="Kind of links: direct, or broker as in the papers.")] = "direct",
    collect: Annotated[
        bool, typer.Option("--collect", help="Collect the federation's telemetry in a spool, for `hanse pipeline`.")
    ] = False,
    gateway: Annotated[bool, typer.Option(help="Run a gateway: one address for clients of all brokers.")] = True,
    gateway_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port of the gateway; a free one by default.")
    ] = None,
    restart: Annotated[bool, typer.Option(help="Restart processes that end.")] = True,
    log_format: LogFormat = "plain",
    log_level: LogLevel = "info",
) -> None:
    """Run brokers, federators and their topology manager on this machine until Ctrl-C."""
    check_log_options(log_format, log_level)
    logs.configure(log_format, log_level)
    # The processes that it starts log in the same format, into the files below --dir.
    os.environ.update(HANSE_LOG_FORMAT=log_format, HANSE_LOG_LEVEL=log_level)
    if link not in LINKS:
        raise LocalError(f"--link is {link!r}; expected {' or '.join(LINKS)}.")
    settings = FederationSettings(
        brokers=brokers if brokers is not None else 0 if broker_url else _BROKERS,
        broker_urls=tuple(broker_url),
        directory=directory.absolute(),
        base_port=base_port,
        overlay=overlay if manager or overlay != shapes.MANAGED else "ring",
        state_path=state,
        restarts=restart,
    )
    managed = _manager(settings, health_interval) if manager else None
    services = [_collector(settings, base_port)] if collect else []
    front = LocalGateway(settings, gateway_port) if gateway else None
    federation = _federation(settings, managed, link, services, front)
    console = Console()
    console.print(f"starting {len(federation.sites)} federators and their brokers below {directory} …")

    async def show(running: Federation) -> None:
        first, last = running.sites[0], running.sites[-1]
        console.print(f"converged; the state is in {state}. Try, in two other terminals:")
        console.print(f"  mosquitto_sub -p {last.broker_port} -t 'hello/#'")
        console.print(f"  mosquitto_pub -p {first.broker_port} -t hello/world -m hi")
        if front is not None:
            console.print(f"the gateway, for clients of all brokers, is at {front.url}")
        if managed is not None:
            console.print(f"the manager is at {managed.url}/api/v1/topology")
        if collect:
            console.print(f"telemetry goes to {_spool(settings)}: hanse pipeline once --spool {_spool(settings)}")
        if not console.is_terminal:
            await _tell_unknown(console, running)
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(await _table(running, managed), refresh=True)
                await asyncio.sleep(_REFRESH_S)

    asyncio.run(federation.run(show))


def _manager(settings: FederationSettings, health_interval: str | None) -> LocalManager:
    if health_interval is not None:
        try:
            parse_duration_s(health_interval)
        except ValueError as error:
            raise LocalError(f"--health-interval: {health_interval!r} is not allowed; expected {error}.") from error
    return LocalManager(settings.directory, settings.overlay, health_interval)


def _spool(settings: FederationSettings) -> Path:
    return settings.directory / "spool"


def _collector(settings: FederationSettings, base_port: int) -> Service:
    """Define a collector at the first broker; the federation carries the telemetry of all federators to it."""
    url = f"mqtt://{LOOPBACK}:{base_port}" if settings.brokers else settings.broker_urls[0]
    words = [sys.executable, "-m", "hanse", "collect", "--url", url, "--topics", "$hanse/telemetry/#"]
    return Service("collector", None, [*words, "--spool", str(_spool(settings))])


def _federation(
    settings: FederationSettings,
    managed: LocalManager | None,
    link: str,
    services: list[Service],
    front: LocalGateway | None,
) -> Federation:
    if front is not None:
        services = [*services, front.service()]
    prepare: Prepare | None = None
    url = None
    converged: Converged = is_converged
    if managed is not None:
        services = [managed.service(), *services]
        prepare, url, converged = managed.prepare, managed.url, managed.is_converged

    async def is_ready(sites: Sequence[Site]) -> bool:
        return (front is None or front.is_ready()) and await converged(sites)

    def command(site: Site) -> list[str]:
        return agent_command(site, link, url, None if front is None else front.listeners[site.k])

    federation = Federation(settings, command, is_ready, services, prepare)
    if managed is not None:
        managed.clear(federation.sites)
    return federation


async def _tell_unknown(console: Console, federation: Federation) -> None:
    """Print the warnings about unknown subscriptions, whenever they change."""
    told: list[str] = []
    while True:
        pages = await asyncio.gather(*(_health(site) for site in federation.sites))
        found = [warning for page in pages if (warning := _unknown(page))]
        for warning in found:
            if warning not in told:
                console.print(warning, soft_wrap=True)
        told = found
        await asyncio.sleep(_REFRESH_S)


async def _health(site: Site) -> dict[str, Any]:
    """Return a federator's health page; an empty one if it does not answer."""
    try:
        page: dict[str, Any] = await get_json(f"{site.metrics_url}/healthz")
    except Unavailable:
        return {}
    return page


def _unknown(page: dict[str, Any]) -> str | None:
    """Return the warning if a federator's broker holds subscriptions that it does not know."""
    interest = page.get("interest") or {}
    if not interest.get("unknown"):
        return None
    return (
        f"federator {page['id']}: {interest['unknown']} subscriptions at its broker are unknown. {interest['remedy']}"
    )


async def _table(federation: Federation, managed: LocalManager | None) -> Table:
    view = await _view(managed)
    table = Table(
        "id",
        "broker",
        "state",
        "latency ms",
        "neighbours",
        "groups",
        "core of",
        "published",
        "forwarded",
        "delivered",
        title=_title(managed, view),
    )
    rows = {} if view is None else {one["id"]: one for one in view["federators"]}
    for site in federation.sites:
        row = rows.get(site.k, {})
        latency = row.get("latency")
        seen = [str(row.get("state", "?")), "" if latency is None else f"{latency:.1f}"]
        try:
            health = await get_json(f"{site.metrics_url}/healthz")
            groups = (await get_json(f"{site.metrics_url}/groups"))["groups"]
        except Unavailable:
            table.add_row(str(site.k), f":{site.broker_port}", *seen, "away", "", "", "", "", "")
            continue
        if warning := _unknown(health):
            table.caption = f"{table.caption}\n{warning}" if table.caption else warning
        counters = health["counters"]
        table.add_row(
            str(site.k),
            f":{site.broker_port}",
            *seen,
            _neighbours(site.k, health["neighbours"], view),
            str(len(groups)),
            str(sum(1 for row in groups if row["core"] == site.k)),
            *(str(counters.get(name, 0)) for name in ("host_publications", "forwarded", "delivered")),
        )
    return table


async def _view(managed: LocalManager | None) -> dict[str, Any] | None:
    """Return the manager's view; None if there is no manager or it does not answer."""
    if managed is None:
        return None
    try:
        return await managed.topology()
    except (Unavailable, RemoteError):
        return None


def _title(managed: LocalManager | None, view: dict[str, Any] | None) -> str:
    if managed is None:
        return "without a manager"
    if view is None:
        return "the manager does not answer; the federators continue without it"
    how = "two-connected" if view["isTwoConnected"] else "connected" if view["isConnected"] else "in pieces"
    return f"epoch {view['epoch']}, {len(view['links'])} links, {how}"


def _neighbours(mine: int, linked: list[int], view: dict[str, Any] | None) -> str:
    """List the linked neighbours, and with a question mark those that the manager assigned and that are not linked."""
    meant: set[int] = set()
    if view is not None:
        ends = [(one["a"], one["b"]) for one in view["links"]]
        meant = {b if a == mine else a for a, b in ends if mine in (a, b)}
    return ",".join([*map(str, sorted(linked)), *(f"{one}?" for one in sorted(meant - set(linked)))])
