"""`hanse trace`: shows the routes of a topic, the time of each hop, and where and why the message ends."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from hanse.errors import LocalError, RemoteError
from hanse.local import state
from hanse.local.http import post_json

# The reply comes when the trace is over; this is for the round trip.
_MORE_S = 5.0


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(trace)


def trace(
    topic: Annotated[str, typer.Argument(help="Topic, as a client of the broker would publish to it.")],
    *,
    at: Annotated[int | None, typer.Option(help="Number of the broker in the state file, from 0.")] = None,
    state_path: Annotated[Path, typer.Option("--state", help="State file of `hanse up`.")] = state.DEFAULT_PATH,
    metrics: Annotated[str | None, typer.Option(help="Metrics URL of the federator, instead of --at.")] = None,
    wait_s: Annotated[
        float, typer.Option("--wait", min=0.1, max=10, help="Time to wait for missing hops, in seconds.")
    ] = 2.0,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Send a probe and follow it; exit code 0 if any broker would deliver it, 1 if none would."""
    if metrics is not None and at is not None:
        raise LocalError("Both --at and --metrics were given; give one of them.")
    url = metrics if metrics is not None else state.read(state_path).metrics_at(at or 0)
    question = {"topic": topic, "wait_ms": wait_s * 1e3}
    found = asyncio.run(post_json(f"{url.rstrip('/')}/trace", question, wait_s + _MORE_S))
    if "error" in found:
        raise RemoteError(f"{url} refused the trace: {found['error']}")
    if is_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _show(found)
    raise typer.Exit(0 if found["delivered_at"] else 1)


def _show(found: dict[str, Any]) -> None:
    console = Console(highlight=False)
    origin, *others = sorted(found["hops"], key=lambda hop: (hop["previous"] is not None, hop["arrived_us"]))
    tree = Tree(f"{escape(found['topic'])} at {origin['federator']}")
    _branch(tree, found, origin, others, {origin["federator"]})
    console.print(tree)
    for remark in found["remarks"]:
        for end in remark["ends"]:
            console.print(f"{remark['federator']} reports: {_ended(end, remark['federator'])}")
    if found["delivered_at"]:
        console.print(f"delivered at {', '.join(map(str, found['delivered_at']))}")
    else:
        console.print(f"delivered nowhere: {found['words']}")


def _branch(
    branch: Tree, found: dict[str, Any], hop: dict[str, Any], others: list[dict[str, Any]], above: set[int]
) -> None:
    """Add the outcome of the probe at one hop, and its further hops below."""
    here = hop["federator"]
    if hop["delivered"]:
        branch.add(f"delivered here, for {_groups(hop['delivered'])}")
    for end in hop["ends"]:
        branch.add(f"[yellow]{_ended(end, here)}[/yellow]")
    for one in hop["forwarded"]:
        neighbour = one["neighbour"]
        copies = [other for other in others if other["previous"] == here and other["federator"] == neighbour]
        for copy in copies:
            others.remove(copy)
            came_ms = (copy["arrived_us"] - found["started_us"]) / 1e3
            hop_ms = (copy["arrived_us"] - (hop["left_us"] or hop["arrived_us"])) / 1e3
            words = f"{neighbour}  +{hop_ms:.1f} ms  ({came_ms:.1f} ms in all)  for {_groups(one['groups'])}"
            below = branch.add(words)
            if neighbour not in above:
                _branch(below, found, copy, others, above | {neighbour})
            else:
                for end in copy["ends"]:
                    below.add(f"[yellow]{_ended(end, neighbour)}[/yellow]")


def _ended(end: dict[str, Any], here: int) -> str:
    where = f" ({here} to {end['neighbour']})" if end["neighbour"] is not None else ""
    groups = f", for {_groups(end['groups'])}" if end["groups"] else ""
    detail = f": {escape(end['detail'])}" if end["detail"] else ""
    return f"{end['words']}{where}{groups}{detail}"


def _groups(groups: list[str]) -> str:
    return escape(", ".join(groups)) or "its groups"
