"""`hanse collect`: a collector beside a broker, until it is told to stop."""

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from hanse.pipeline.collector import Collector
from hanse.pipeline.collector_settings import CollectorSettings, default_spool, parse_duration_s, split_filters
from hanse.pipeline.collector_status import CollectorStatus


def register(app: typer.Typer) -> None:
    """Hang the command on the application."""
    app.command("collect")(collect)


def collect(
    *,
    url: Annotated[str, typer.Option(envvar="HANSE_URL", help="The broker: mqtt://host:port, mqtts://host:port.")],
    topics: Annotated[str, typer.Option(envvar="HANSE_TOPICS", help="Topic filters, separated by commas.")],
    spool: Annotated[Path | None, typer.Option(envvar="HANSE_SPOOL", help="Directory of the spool.")] = None,
    client_id: Annotated[
        str,
        typer.Option(envvar="HANSE_CLIENT_ID", help="Name of the session and of the producer; derived if left out."),
    ] = "",
    qos: Annotated[int, typer.Option(envvar="HANSE_QOS", help="0 (best effort), 1 or 2.")] = 1,
    username: Annotated[str | None, typer.Option(envvar="HANSE_USERNAME")] = None,
    password: Annotated[
        str | None, typer.Option(envvar="HANSE_PASSWORD", help="Better given by the environment than here.")
    ] = None,
    ca_file: Annotated[str | None, typer.Option(envvar="HANSE_CA_FILE")] = None,
    cert_file: Annotated[str | None, typer.Option(envvar="HANSE_CERT_FILE")] = None,
    key_file: Annotated[str | None, typer.Option(envvar="HANSE_KEY_FILE")] = None,
    retention: Annotated[
        str, typer.Option(envvar="HANSE_RETENTION", help="Keep rows this long at least, read or not.")
    ] = "7d",
    session_expiry: Annotated[
        str, typer.Option(envvar="HANSE_SESSION_EXPIRY", help="How long the broker keeps for us while we are away.")
    ] = "7d",
    spool_bytes_max: Annotated[
        int | None, typer.Option(envvar="HANSE_SPOOL_BYTES_MAX", help="A quota for this producer's segments.")
    ] = None,
    report_interval: Annotated[str, typer.Option(help="A line of counters this often.")] = "10s",
) -> None:
    """Collect what a broker publishes into a spool, acknowledged when it is on disk."""
    settings = CollectorSettings(
        url=url,
        topics=split_filters(topics),
        spool=str((spool or Path(default_spool())).absolute()),
        client_id=client_id,
        qos=qos,
        username=username,
        password=password,
        ca_file=ca_file,
        cert_file=cert_file,
        key_file=key_file,
        session_expiry_s=int(parse_duration_s("--session-expiry", session_expiry)),
        retention_s=parse_duration_s("--retention", retention),
        spool_bytes_max=spool_bytes_max,
    )
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    typer.echo(f"collecting {', '.join(settings.topics)} of {url} into {settings.spool}/{settings.client_id}")
    uvloop.run(_run(settings, parse_duration_s("--report-interval", report_interval)))


async def _run(settings: CollectorSettings, report_interval_s: float) -> None:
    collector = Collector(settings)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, collector.stop)
    reporter = asyncio.create_task(_report(collector.status, report_interval_s))
    try:
        await collector.run()
    finally:
        reporter.cancel()
        await asyncio.gather(reporter, return_exceptions=True)
        typer.echo(describe(collector.status))


async def _report(status: CollectorStatus, interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        typer.echo(describe(status))


def describe(status: CollectorStatus) -> str:
    """One line for the operator."""
    return (
        f"{status.state}: {status.spooled} rows spooled of {status.received} received, {status.acknowledged} "
        f"acknowledged, {status.copies} copies, {status.commits} commits, {status.bytes_spooled} bytes, "
        f"{status.connects} connects" + (f" ({status.reason})" if status.reason else "")
    )
