"""`hanse bench`: compares Hanse with today's systems on this machine."""

import asyncio
import json
from typing import Annotated, Any

import typer

from hanse.errors import LocalError
from hanse.lab import bridge_bench


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(help="Compare Hanse with today's systems.", no_args_is_help=True)
    group.command("bridge")(bridge)
    app.add_typer(group, name="bench")


def bridge(
    *,
    scenario: Annotated[list[str] | None, typer.Option(help="Scenario to run; repeatable. Default: all.")] = None,
    rounds: Annotated[int, typer.Option(min=1, max=99, help="Pairs of runs per scenario.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON at the end.")] = False,
) -> None:
    """Compare with chains of Mosquitto bridges: ratios of messages per second and of latency."""
    known = {one.name: one for one in bridge_bench.SCENARIOS}
    wanted = scenario or list(known)
    for name in wanted:
        if name not in known:
            raise LocalError(f"--scenario {name!r} is unknown; known are {', '.join(known)}.")
    results: dict[str, Any] = {}
    for name in wanted:
        results[name] = asyncio.run(bridge_bench.compare(known[name], rounds, lambda line: typer.echo(line, err=True)))
    if as_json:
        typer.echo(json.dumps(results, indent=2))
        return
    for name, result in results.items():
        typer.echo(
            f"{name}: ratio {result['ratio_median']:.2f} ({result['ratio_min']:.2f} to {result['ratio_max']:.2f}), "
            f"Hanse {result['hanse_median']:,.2f}, bridges {result['bridges_median']:,.2f} {result['unit']}"
        )
