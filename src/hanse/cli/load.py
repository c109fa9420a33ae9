"""`hanse load`: publishes, subscribes, counts every message, and reports the result."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from hanse.errors import LocalError
from hanse.load import Load, Result, run
from hanse.local import state

_BROKER = "URL of a broker, or its number in the state file of `hanse up`; repeatable"


def register(app: typer.Typer) -> None:
    """Add `hanse load` to the application."""

    @app.command()
    def load(
        *,
        publish_at: Annotated[list[str], typer.Option("--publish-at", help=f"Broker to publish at: {_BROKER}.")],
        subscribe_at: Annotated[list[str], typer.Option("--subscribe-at", help=f"Broker to subscribe at: {_BROKER}.")],
        publishers: int = typer.Option(1, help="Number of publishing connections."),
        subscribers: int = typer.Option(1, help="Number of subscribing connections."),
        count: int = typer.Option(100_000, help="Messages per publisher."),
        size: int = typer.Option(64, help="Size of a payload in bytes."),
        qos: int = typer.Option(0, help="QoS of the publications."),
        subscribe_qos: int | None = typer.Option(
            None, help="QoS of the subscriptions; by default that of the publications."
        ),
        rate: float | None = typer.Option(
            None, help="Messages per second of all publishers together; default: no limit."
        ),
        interval_ms: float | None = typer.Option(
            None, help="Milliseconds between two messages of a publisher, instead of --rate."
        ),
        window: int | None = typer.Option(None, help="QoS 1 and 2: maximum of unacknowledged messages per publisher."),
        topic: str = typer.Option(
            "load/{publisher}", help="Topic, with {publisher}, and {topic} if there are several."
        ),
        topics: int = typer.Option(1, help="Distinct topics per publisher."),
        warm_up: int = typer.Option(
            0, help="First messages of each publisher, which are excluded from rate and latency."
        ),
        settle_s: float = typer.Option(0.5, help="Seconds between subscribing and the first message."),
        idle_s: float = typer.Option(5.0, help="Seconds without arrivals after which the rest counts as lost."),
        processes: int = typer.Option(1, help="Processes for the publishers, and the same number for the subscribers."),
        verify: bool = typer.Option(False, help="Compare every byte of every payload."),
        as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
        state_path: Annotated[Path, typer.Option("--state", help="State file.")] = state.DEFAULT_PATH,
    ) -> None:
        """Load brokers, and measure the arriving messages: rates, latency, loss, duplicates, order."""
        if rate is not None and interval_ms is not None:
            raise LocalError("Both --rate and --interval-ms were given; give one of them.")
        if interval_ms is not None:
            if interval_ms <= 0:
                raise LocalError(f"--interval-ms is {interval_ms}; expected more than 0.")
            rate = 1000 / interval_ms * publishers
        plan = Load(
            publish_urls=tuple(_url(text, state_path) for text in publish_at),
            subscribe_urls=tuple(_url(text, state_path) for text in subscribe_at),
            publishers=publishers,
            subscribers=subscribers,
            count=count,
            size_bytes=size,
            qos=qos,
            subscribe_qos=subscribe_qos,
            rate_per_s=rate,
            window=window,
            topic=topic,
            topics=topics,
            warm_up=warm_up,
            settle_s=settle_s,
            idle_s=idle_s,
            processes=processes,
            verify=verify,
        )
        result = _watch(plan) if not as_json else asyncio.run(run(plan))
        typer.echo(json.dumps(result.to_json())) if as_json else Console().print(_table(result))


def _url(text: str, state_path: Path) -> str:
    return state.read(state_path).broker_at(int(text)) if text.isdecimal() else text


def _watch(plan: Load) -> Result:
    """Run with a progress line on the error output, because the result may be piped."""
    sent_max, expected_max = plan.count * plan.publishers, plan.count * plan.publishers * plan.subscribers
    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:

        def tell(sent: int, received: int) -> None:
            live.update(f"{sent:,} of {sent_max:,} sent, {received:,} of {expected_max:,} received")

        return asyncio.run(run(plan, tell))


def _table(result: Result) -> Table:
    table = Table("", "", show_header=False)
    shown = result.latency
    for name, value in (
        ("published", f"{result.published:,} at {result.publish_rate_per_s:,.0f}/s"),
        ("acknowledged", f"{result.acknowledged:,} ({result.refused:,} refused)"),
        (
            "received",
            f"{result.received:,} of {result.expected:,} at {result.receive_rate_per_s:,.0f}/s per subscriber",
        ),
        ("lost", f"{result.lost:,}"),
        ("duplicates", f"{result.duplicates:,}"),
        ("out of order", f"{result.reordered:,}"),
        ("corrupted, foreign", f"{result.corrupted:,}, {result.foreign:,}"),
        (
            "latency",
            f"p50 {shown.p50_ms:.3f}, p95 {shown.p95_ms:.3f}, p99 {shown.p99_ms:.3f}, max {shown.max_ms:.3f} ms",
        ),
        ("sending late by", f"p99 {result.send_lag_ms_p99:.3f} ms"),
    ):
        table.add_row(name, value)
    return table
