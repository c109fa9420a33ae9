"""`hanse chaos`: injects faults into real processes, and accounts for their cost."""

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
    """Add `hanse chaos` to the application."""
    app.command()(chaos)


def chaos(
    *,
    fault: Annotated[
        list[str] | None, typer.Option(help="Fault to inject; repeatable. Default: all that are possible.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print the faults, and stop.")] = False,
    state: Annotated[
        Path | None,
        typer.Option(help="State file of your own federation, whose processes are broken; by default one is started."),
    ] = None,
    messages: Annotated[int, typer.Option(min=1, max=10_000_000, help="Messages published in each round.")] = 20_000,
    qos: Annotated[str, typer.Option(help="QoS: 1, 2, or mix for both, depending on the topic.")] = "1",
    size: Annotated[int, typer.Option(min=14, max=1_000_000, help="Size of a payload in bytes.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed for the times, and for targets if there is a choice.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="Number of seeds, from --seed on.")] = 1,
    brokers: Annotated[int, typer.Option(min=2, max=100, help="Brokers of the federation that is started.")] = 5,
    overlay: Annotated[str, typer.Option(help="Shape of its overlay: ring, line, full, star or grid:RxC.")] = "ring",
    link: Annotated[
        str, typer.Option(help="Kind of its links: direct, or broker; broker links cannot be cut.")
    ] = "direct",
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Directory for its files, which are kept. By default they are kept only after a failure."
        ),
    ] = None,
    announcement_interval: Annotated[
        str,
        typer.Option(
            help="Announcement interval of its federators, for example 1s; faults that last 2KA scale with it."
        ),
    ] = "1s",
    federator_flag: Annotated[
        list[str] | None, typer.Option(help="Further flag for each federator, for example --redundancy=1; repeatable.")
    ] = None,
    counters: Annotated[
        bool, typer.Option("--counters", help="Print the federators' counters for every round.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON at the end.")] = False,
) -> None:
    """Inject faults during a numbered stream of messages, and account for every one of them."""
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
