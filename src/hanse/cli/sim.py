"""`hanse sim`: the protocol in a simulated federation, with or without faults, from a seed."""

import dataclasses
import gc
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from hanse.errors import HanseError
from hanse.sim.conversation import play
from hanse.sim.run import RunProfile, RunResult, run
from hanse.sim.seeds import SeedProfile, SeedResult, run_seeds

_OVERLAY = "random, ring, line, grid, full, placement, scale-free, grid:RxC, or links such as 0-1,1-2"

app = typer.Typer(name="sim", help="Simulate a federation; the same seed gives the same run.", no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add the commands to the application."""
    root.add_typer(app)


@app.command("run")
def run_command(
    *,
    brokers: Annotated[int, typer.Option(help="Number of brokers.")] = 20,
    degree: Annotated[int, typer.Option(help="Neighbours per broker, if the overlay does not determine them.")] = 5,
    groups: Annotated[int, typer.Option(help="Number of groups besides the management group.")] = 1,
    cores: Annotated[int | None, typer.Option(help="Number of cores for the groups; by default one per group.")] = None,
    subscribers: Annotated[int, typer.Option(help="Brokers with interest in each group.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed that determines the run.")] = 1,
    overlay: Annotated[str, typer.Option(help=_OVERLAY)] = "random",
    latency_ms: Annotated[
        str, typer.Option(help="Latency of a link in milliseconds: one number, or a range such as 5..100.")
    ] = "10",
    start_a: Annotated[float, typer.Option(help="Announcement intervals within which all federators start.")] = 0.05,
    wire: Annotated[
        bool | None, typer.Option("--wire/--no-wire", help="Pass frames as bytes; default below 500 brokers.")
    ] = None,
    redundancy: Annotated[int, typer.Option(help="Parents that a member keeps.")] = 2,
    announcements: Annotated[str, typer.Option(help="per_core, or per_group as in the papers.")] = "per_core",
    outsider: Annotated[str, typer.Option(help="all_parents (2022) or one_parent (2020).")] = "all_parents",
    processes: Annotated[
        int | None,
        typer.Option(help="Number of processes, 1 or 2; default: 2 from 500 brokers on, if there are two CPUs."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Form one federation without faults, and measure the cost of a quiet round."""
    profile = RunProfile(
        brokers=brokers,
        degree=degree,
        groups=groups,
        cores=cores,
        subscribers=subscribers,
        seed=seed,
        overlay=overlay,
        latency_ms=_latency(latency_ms),
        start_a=start_a,
        is_wire=wire,
        redundancy=redundancy,
        announcements=announcements,
        outsider=outsider,
        processes=processes,
    )
    result = run(profile)
    # This process is about to end: a garbage collection over the millions of remaining objects would waste seconds.
    gc.freeze()
    typer.echo(json.dumps(dataclasses.asdict(result)) if as_json else _sentence(result))
    if not result.converged or result.delivered < result.eligible:
        raise typer.Exit(1)


@app.command("seeds")
def seeds_command(
    *,
    count: Annotated[int, typer.Option(help="Number of seeds.")] = 50,
    first: Annotated[int, typer.Option(help="First seed.")] = 1,
    brokers: Annotated[int, typer.Option(help="Number of brokers.")] = 20,
    degree: Annotated[int, typer.Option(help="Neighbours per broker, if the overlay does not determine them.")] = 3,
    overlay: Annotated[str | None, typer.Option(help=f"{_OVERLAY}; by default drawn from the seed.")] = None,
    faults: Annotated[bool, typer.Option("--faults/--no-faults", help="Inject faults.")] = True,
    wire: Annotated[
        bool | None, typer.Option("--wire/--no-wire", help="Pass frames as bytes; default: every fifth seed.")
    ] = None,
    redundancy: Annotated[
        int | None, typer.Option(help="Parents that a member keeps; default: 1 for even seeds, 2 for odd ones.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Number of processes; 0 means one per CPU.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Run complete simulated runs, with faults on and then off, and check every promise at every step."""
    profile = SeedProfile(
        brokers=brokers, degree=degree, overlay=overlay, has_faults=faults, is_wire=wire, redundancy=redundancy
    )
    results: list[SeedResult] = []
    for result in run_seeds(first, count, profile, processes=processes or os.cpu_count() or 1):
        results.append(result)
        if result.failure:
            typer.echo(f"seed {result.seed}: {result.failure}\n  reproduce: {result.reproduce}", err=True)
        elif not as_json:
            typer.echo(_seed_line(result))
    failed = [result.seed for result in results if result.failure]
    if as_json:
        body = {"failed": failed, **totals(results), "seeds": [dataclasses.asdict(result) for result in results]}
        typer.echo(json.dumps(body))
    else:
        typer.echo(f"{count - len(failed)} of {count} seeds kept every promise: {totals(results)}")
    if failed:
        raise typer.Exit(1)


@app.command("play")
def play_command(
    files: Annotated[list[Path], typer.Argument(help="Conversations as text files; see docs/developing.md.")],
) -> None:
    """Play golden conversations and check their expectations."""
    for file in files:
        play(file.read_text(), str(file))
        typer.echo(f"{file}: as expected")


def totals(results: list[SeedResult]) -> dict[str, Any]:
    """Sum the counts of all seeds."""
    lost: dict[str, int] = {}
    kinds: dict[str, int] = {}
    for result in results:
        for into, counts in ((lost, result.lost), (kinds, result.faults)):
            for name, value in counts.items():
                into[name] = into.get(name, 0) + value
    return {
        "rounds": round(sum(result.rounds for result in results)),
        "published": sum(result.published for result in results),
        "eligible": sum(result.eligible for result in results),
        "delivered": sum(result.delivered for result in results),
        "lost": dict(sorted(lost.items())),
        "duplicates": sum(result.duplicates for result in results),
        "repeats": sum(result.repeats for result in results),
        "records": sum(result.records for result in results),
        "reordered": sum(result.reordered for result in results),
        "faults": dict(sorted(kinds.items())),
        "reconvergence_a_max": max((result.reconvergence_a_max for result in results), default=0.0),
    }


def _latency(text: str) -> tuple[float, float]:
    low, _, high = text.partition("..")
    try:
        return float(low), float(high or low)
    except ValueError as error:
        raise HanseError(f"The latency is {text!r}; expected milliseconds, such as 10 or 5..100.") from error


def _seed_line(result: SeedResult) -> str:
    return (
        f"seed {result.seed}: {result.overlay}, redundancy {result.redundancy}, {result.rounds:.0f} rounds, "
        f"{sum(result.faults.values())} faults, {result.published} published, "
        f"{result.delivered} of {result.eligible} pairs, {result.repeats} repeats, {result.records} records stored, "
        f"recovered within {result.reconvergence_a_max} A, {result.seconds:.1f} s"
    )


def _sentence(result: RunResult) -> str:
    state = f"converged after {result.rounds} rounds" if result.converged else f"did not converge: {result.trouble}"
    return (
        f"{result.brokers} brokers, {result.links} links, {result.groups} groups on {result.cores} cores {state}. "
        f"A quiet round costs {result.announcements_per_round:.0f} announcements "
        f"(at most {result.announcements_per_round_max}) in {result.frames_per_round:.0f} frames, "
        f"{result.control_bytes_per_round} bytes. {result.delivered} of {result.eligible} pairs delivered. "
        f"{result.seconds} s, {result.rss_bytes >> 20} MiB, {result.processes} of {os.cpu_count()} CPUs, "
        f"trace {result.trace_hash}."
    )
