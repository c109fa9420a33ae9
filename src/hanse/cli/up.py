"""`hanse up`: a federation on one machine."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from hanse.errors import LocalError, Unavailable
from hanse.local import state as state_file
from hanse.local.agents import LINKS, agent_command, is_converged
from hanse.local.http import get_json
from hanse.local.supervise import Federation, FederationSettings

_REFRESH_S = 1.0


def register(app: typer.Typer) -> None:
    """Hang the commands on the application."""
    app.command()(up)


def up(
    *,
    brokers: Annotated[int, typer.Option(min=1, max=100, help="How many brokers.")] = 5,
    base_port: Annotated[int, typer.Option(min=1, max=65_000, help="Broker k listens on this port + k.")] = 18_830,
    directory: Annotated[Path, typer.Option("--dir", help="Where brokers and agents keep their files.")] = Path(
        ".hanse"
    ),
    state: Annotated[Path, typer.Option(help="The file that says what runs where.")] = state_file.DEFAULT_PATH,
    overlay: Annotated[str, typer.Option(help="ring, line, full, star or grid:RxC.")] = "ring",
    link: Annotated[str, typer.Option(help="direct, or broker: the papers' way.")] = "direct",
    restart: Annotated[bool, typer.Option(help="Start again what dies.")] = True,
) -> None:
    """Run brokers and federators on this machine until Ctrl-C."""
    if link not in LINKS:
        raise LocalError(f"--link is {link!r}; expected {' or '.join(LINKS)}.")
    settings = FederationSettings(
        brokers=brokers,
        directory=directory.absolute(),
        base_port=base_port,
        overlay=overlay,
        state_path=state,
        restarts=restart,
    )
    federation = Federation(settings, lambda site: agent_command(site, link), is_converged)
    console = Console()
    console.print(f"starting {brokers} brokers and federators below {directory} …")

    async def show(running: Federation) -> None:
        first = running.sites[0].broker_port
        last = running.sites[-1].broker_port
        console.print(f"converged; the state is in {state}. Try, in two other terminals:")
        console.print(f"  mosquitto_sub -p {last} -t 'hello/#'")
        console.print(f"  mosquitto_pub -p {first} -t hello/world -m hi")
        if not console.is_terminal:
            return
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(await _table(running), refresh=True)
                await asyncio.sleep(_REFRESH_S)

    asyncio.run(federation.run(show))


async def _table(federation: Federation) -> Table:
    table = Table("id", "broker", "neighbours", "groups", "core of", "published", "forwarded", "delivered")
    for site in federation.sites:
        try:
            health = await get_json(f"{site.metrics_url}/healthz")
            groups = (await get_json(f"{site.metrics_url}/groups"))["groups"]
        except Unavailable:
            table.add_row(str(site.k), f":{site.broker_port}", "away", "", "", "", "", "")
            continue
        counters = health["counters"]
        table.add_row(
            str(site.k),
            f":{site.broker_port}",
            ",".join(map(str, health["neighbours"])),
            str(len(groups)),
            str(sum(1 for row in groups if row["core"] == site.k)),
            *(str(counters.get(name, 0)) for name in ("host_publications", "forwarded", "delivered")),
        )
    return table
