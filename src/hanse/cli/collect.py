"""`hanse collect`: run a collector beside a broker, or as a leaf of a federation, until it is stopped."""

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from hanse import logs
from hanse.cli.log_options import LogFormat, LogLevel, check_log_options
from hanse.errors import LocalError
from hanse.federator.settings import FederatorSettings
from hanse.pipeline.collector import Collector
from hanse.pipeline.collector_settings import CollectorSettings, default_spool, parse_duration_s, split_filters
from hanse.pipeline.collector_status import CollectorStatus
from hanse.pipeline.leaf_collector import LeafCollector, LeafSettings

_log = logging.getLogger("hanse.collect")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("collect")(collect)


def collect(
    *,
    url: Annotated[
        str | None,
        typer.Option(envvar="HANSE_URL", help="Address of the broker: mqtt://host:port or mqtts://host:port."),
    ] = None,
    federation: Annotated[
        list[str] | None,
        typer.Option(
            envvar="HANSE_FEDERATION",
            help="Link address of a federator, instead of a broker; may be repeated. The collector joins as a leaf, "
            "and rows have message id, origin and hops.",
        ),
    ] = None,
    topics: Annotated[str, typer.Option(envvar="HANSE_TOPICS", help="Topic filters, separated by commas.")],
    spool: Annotated[Path | None, typer.Option(envvar="HANSE_SPOOL", help="Directory of the spool.")] = None,
    client_id: Annotated[
        str,
        typer.Option(envvar="HANSE_CLIENT_ID", help="Name of the session and of the producer; derived by default."),
    ] = "",
    qos: Annotated[
        int, typer.Option(envvar="HANSE_QOS", help="QoS of the subscription, with --url: 0 (best effort), 1 or 2.")
    ] = 1,
    username: Annotated[
        str | None, typer.Option(envvar="HANSE_USERNAME", help="Login at the broker, with --url.")
    ] = None,
    password: Annotated[
        str | None,
        typer.Option(envvar="HANSE_PASSWORD", help="Password; safer in the environment than on the command line."),
    ] = None,
    ca_file: Annotated[
        str | None, typer.Option(envvar="HANSE_CA_FILE", help="Certificate authority of the broker or of the links.")
    ] = None,
    cert_file: Annotated[
        str | None, typer.Option(envvar="HANSE_CERT_FILE", help="Certificate of the collector.")
    ] = None,
    key_file: Annotated[str | None, typer.Option(envvar="HANSE_KEY_FILE", help="Key of the certificate.")] = None,
    retention: Annotated[
        str, typer.Option(envvar="HANSE_RETENTION", help="Minimum time to keep rows, whether read or not.")
    ] = "7d",
    session_expiry: Annotated[
        str,
        typer.Option(
            envvar="HANSE_SESSION_EXPIRY",
            help="Time for which the broker queues messages for an absent collector, with --url.",
        ),
    ] = "7d",
    spool_bytes_max: Annotated[
        int | None, typer.Option(envvar="HANSE_SPOOL_BYTES_MAX", help="Quota for this producer's segments.")
    ] = None,
    report_interval: Annotated[str, typer.Option(help="Time between two lines of counters.")] = "10s",
    identity: Annotated[
        int | None,
        typer.Option(
            "--id", envvar="HANSE_ID", help="With --federation: an id that no federator has; it must stay the same."
        ),
    ] = None,
    announcement_interval: Annotated[
        str,
        typer.Option(
            envvar="HANSE_ANNOUNCEMENT_INTERVAL", help="With --federation: the federators' announcement interval."
        ),
    ] = "1s",
    grouping: Annotated[
        str, typer.Option(envvar="HANSE_GROUPING", help="With --federation: the federators' grouping.")
    ] = "filter",
    insecure: Annotated[
        bool,
        typer.Option(envvar="HANSE_INSECURE", help="With --federation: allow links beyond this machine without TLS."),
    ] = False,
    leave: Annotated[
        bool,
        typer.Option(help="With --federation: leave it at the end. Otherwise it keeps messages for an hour."),
    ] = False,
    log_format: LogFormat = "plain",
    log_level: LogLevel = "info",
) -> None:
    """Write the messages of a broker or a federation to a spool, and acknowledge each once it is on disk."""
    check_log_options(log_format, log_level)
    if (url is None) == (not federation):
        raise LocalError("Give either --url, a broker, or --federation, a federator's link address.")
    in_spool = str((spool or Path(default_spool())).absolute())
    collector: Callable[[], Collector | LeafCollector]
    settings: CollectorSettings | LeafSettings
    if url is not None:
        settings = CollectorSettings(
            url=url,
            topics=split_filters(topics),
            spool=in_spool,
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
        collector = partial(Collector, settings)
    else:
        if identity is None:
            raise LocalError("A collector in a federation needs an id; give --id N with an id that no federator has.")
        settings = LeafSettings(
            topics=split_filters(topics),
            spool=in_spool,
            client_id=client_id,
            retention_s=parse_duration_s("--retention", retention),
            spool_bytes_max=spool_bytes_max,
            is_leaving=leave,
            federator=FederatorSettings(
                id=identity,
                neighbour=tuple(federation or ()),
                link_ca_file=_path(ca_file),
                link_cert_file=_path(cert_file),
                link_key_file=_path(key_file),
                insecure=insecure,
                announcement_interval_s=parse_duration_s("--announcement-interval", announcement_interval),
                grouping=grouping,
            ),
        )
        collector = partial(LeafCollector, settings)
    logs.configure(log_format, log_level)
    source = {"url": url} if url is not None else {"federation": ",".join(federation or ())}
    spooled = f"{settings.spool}/{settings.client_id}"
    _log.info("the collector starts", extra={**source, "topics": ",".join(settings.topics), "spool": spooled})
    uvloop.run(_run(collector, parse_duration_s("--report-interval", report_interval)))


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


async def _run(make: Callable[[], Collector | LeafCollector], report_interval_s: float) -> None:
    collector = make()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, collector.stop)
    reporter = asyncio.create_task(_report(collector.status, report_interval_s))
    try:
        await collector.run()
    finally:
        reporter.cancel()
        await asyncio.gather(reporter, return_exceptions=True)
        _log.info("the collector ends", extra=asdict(collector.status))


async def _report(status: CollectorStatus, interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        _log.info("the collector's counters", extra=asdict(status))
