"""`hanse chaos`: faults with real processes, and an account of what they cost."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status

from hanse.errors import LocalError
from hanse.lab.chaos import report
from hanse.lab.chaos.campaign import Campaign, Runner
from hanse.lab.chaos.rounds import Round, Workload
from hanse.settings import parse_duration_s

_QOS = {"1": 1, "2": 2, "mix": 0}


def register(app: typer.Typer) -> None:
    """Hang `hanse chaos` on the application."""
    app.command()(chaos)


def chaos(
    *,
    fault: Annotated[
        list[str] | None, typer.Option(help="Only these; repeatable. All that are possible if not given.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print the faults, and stop.")] = False,
    state: Annotated[
        Path | None,
        typer.Option(help="The state file of a federation of your own, whose processes will suffer; else one is made."),
    ] = None,
    messages: Annotated[int, typer.Option(min=1, max=10_000_000, help="Published in each round.")] = 20_000,
    qos: Annotated[str, typer.Option(help="1, 2, or mix: both, by topic.")] = "1",
    size: Annotated[int, typer.Option(min=14, max=1_000_000, help="Bytes of a payload.")] = 64,
    seed: Annotated[int, typer.Option(help="Draws the moments, and targets where there is a choice.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="How many seeds, from --seed on.")] = 1,
    brokers: Annotated[int, typer.Option(min=2, max=100, help="Of the federation that is made.")] = 5,
    overlay: Annotated[str, typer.Option(help="Its shape: ring, line, full, star or grid:RxC.")] = "ring",
    link: Annotated[str, typer.Option(help="Its links: direct, or broker, which nothing can cut.")] = "direct",
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where it keeps its files; kept. Else kept if a promise broke.")
    ] = None,
    announcement_interval: Annotated[
        str, typer.Option(help="A of its federators: faults that last 2KA follow it.")
    ] = "1s",
    federator_flag: Annotated[
        list[str] | None, typer.Option(help="A further word for each federator, as in --redundancy=1; repeatable.")
    ] = None,
    counters: Annotated[
        bool, typer.Option("--counters", help="Print the federators' counters of every round.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON at the end.")] = False,
) -> None:
    """Break things in the middle of a numbered stream of messages, and account for every one of them."""
    if listed:
        for line in report.catalogue():
            typer.echo(line)
        return
    if qos not in _QOS:
        raise LocalError(f"--qos is {qos!r}; expected {', '.join(_QOS)}.")
    try:
        interval_s = parse_duration_s(announcement_interval)
    except ValueError as error:
        raise LocalError(
            f"--announcement-interval: {announcement_interval!r} is not allowed; expected {error}."
        ) from error
    campaign = Campaign(
        faults=tuple(fault or ()),
        workload=Workload(messages=messages, qos=_QOS[qos], size_bytes=size),
        seeds=tuple(range(seed, seed + seeds)),
        state_path=state,
        directory=None if directory is None else directory.absolute(),
        brokers=brokers,
        overlay=overlay,
        link=link,
        interval_s=interval_s,
        flags=tuple(federator_flag or ()),
    )
    console = Console(stderr=True)
    with console.status("…") as status:
        runner = Runner(campaign, lambda words: _tell(status, console, words))
        held = asyncio.run(runner.run(lambda result: _show(result, as_json=as_json, counters=counters)))
    if as_json:
        typer.echo(json.dumps({"held": held, "rounds": [result.to_json() for result in runner.results]}, indent=2))
    else:
        broken = sum(not result.held for result in runner.results)
        typer.echo(f"{len(runner.results)} rounds, {broken} of them broke a promise.")
    if runner.kept is not None and not held:
        typer.echo(f"The files of the federation are kept below {runner.kept}.", err=True)
    if not held:
        raise typer.Exit(1)


def _tell(status: Status, console: Console, words: str) -> None:
    if console.is_terminal:
        status.update(words)


def _show(result: Round, *, as_json: bool, counters: bool) -> None:
    if as_json:
        typer.echo(report.lines(result)[0], err=True)
        return
    for line in report.lines(result, with_counters=counters):
        typer.echo(line)
