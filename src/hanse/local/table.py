"""Live table of the running processes for the terminal, with one row per site."""

import asyncio

from rich.console import Console
from rich.live import Live
from rich.table import Table

from hanse.local.processes import SupervisedProcess
from hanse.local.supervise import Federation

_REFRESH_S = 0.5


def render(federation: Federation) -> Table:
    """Render the current state of the federation."""
    table = Table("site", "broker", "link", "metrics", "broker process", "federator process")
    for site, agent in zip(federation.sites, federation.agents, strict=True):
        broker = _process(federation.brokers[site.k]) if site.k < len(federation.brokers) else "not ours"
        table.add_row(str(site.k), site.broker_shown, site.link_url, site.metrics_url, broker, _process(agent))
    return table


async def show(federation: Federation, console: Console | None = None) -> None:
    """Keep the table on the screen until cancelled; for `Federation.run`."""
    with Live(render(federation), console=console or Console(), auto_refresh=False) as live:
        while True:
            await asyncio.sleep(_REFRESH_S)
            live.update(render(federation), refresh=True)


def _process(process: SupervisedProcess) -> str:
    state = f"{process.pid}" if process.pid is not None else f"[red]ended with {process.returncode}[/red]"
    return f"{state} (restarted {process.restarts} times)" if process.restarts else state
