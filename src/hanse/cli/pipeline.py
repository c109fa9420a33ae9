"""`hanse pipeline`: fill the tables from the spool, once or continuously, and maintain them."""

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hanse import logs
from hanse.errors import LocalError
from hanse.pipeline import session
from hanse.pipeline.collector_settings import default_spool, parse_duration_s
from hanse.pipeline.jobs.alarms import Alarms
from hanse.pipeline.jobs.alarms import start as start_alarms
from hanse.pipeline.jobs.gold import GoldSettings
from hanse.pipeline.jobs.ingest import Ingest, Progress, explain, follow, start
from hanse.pipeline.spool import sweep
from hanse.pipeline.tables import StoredTable, bronze

# Jobs after bronze, in order: name to `module:function`. The function takes the session, the warehouse and, for gold,
# its settings; it reads and writes tables, and returns a sentence for the operator.
JOBS: dict[str, str] = {
    "silver": "hanse.pipeline.jobs.silver:refresh_silver",
    "gold": "hanse.pipeline.jobs.gold:refresh_gold",
}

# Tables that `compact` maintains: name to `module:function`. The function takes the warehouse and returns the tables.
TABLES: dict[str, str] = {"silver and gold": "hanse.pipeline.jobs.store:stored_tables"}

Master = Annotated[
    str | None,
    typer.Option(envvar="HANSE_MASTER", help="Spark master, such as spark://host:7077; by default this machine."),
]
Remote = Annotated[
    str | None, typer.Option(envvar="HANSE_REMOTE", help="Spark Connect server, such as sc://host:15002.")
]
Warehouse = Annotated[Path, typer.Option(envvar="HANSE_WAREHOUSE", help="Directory of the tables and checkpoints.")]
Spool = Annotated[Path | None, typer.Option(envvar="HANSE_SPOOL", help="Directory of the spool.")]
Conf = Annotated[list[str] | None, typer.Option("--conf", help="Spark setting, as name=value; may be repeated.")]
SourceOption = Annotated[
    list[str] | None, typer.Option("--option", help="Option of the source, as name=value; may be repeated.")
]


Window = Annotated[
    str, typer.Option("--window", envvar="HANSE_WINDOW", help="Length of the windows of the gold tables.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(help="Fill tables from the spool with Spark.", no_args_is_help=True)
    group.command("run")(run)
    group.command("once")(once)
    group.command("alarms")(alarms)
    group.command("compact")(compact)
    group.command("report")(report)
    app.add_typer(group, name="pipeline")


def run(
    *,
    warehouse: Warehouse = Path("warehouse"),
    spool: Spool = None,
    option: SourceOption = None,
    trigger: Annotated[str, typer.Option(help="Time between two batches.")] = "5s",
    refresh: Annotated[str, typer.Option(help="Time between two updates of the tables after bronze.")] = "1m",
    window: Window = "1m",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Ingest continuously, and update the tables after bronze regularly, until interrupted."""
    _prepare()
    ingest = Ingest(warehouse, _options(spool, option), parse_duration_s("--trigger", trigger))
    refresh_s = parse_duration_s("--refresh", refresh)
    settings = _gold_settings(window)
    spark = session.build(master=master, remote=remote, app_name="hanse pipeline", settings=_pairs(conf))
    typer.echo(f"ingesting into {bronze(warehouse).path}; end with Ctrl-C")
    due_at = time.monotonic() + refresh_s

    def tell(progress: Progress) -> None:
        nonlocal due_at
        _tell(progress)
        if JOBS and time.monotonic() >= due_at:
            _run_jobs(spark, warehouse, settings)
            due_at = time.monotonic() + refresh_s

    try:
        follow(lambda: start(spark, ingest), tell, typer.echo)
    except KeyboardInterrupt:
        typer.echo("stopping")
    finally:
        spark.stop()


def once(
    *,
    warehouse: Warehouse = Path("warehouse"),
    spool: Spool = None,
    option: SourceOption = None,
    window: Window = "1m",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Ingest the rows that the spool holds now, bring the tables after bronze up to date, and end."""
    _prepare()
    ingest = Ingest(warehouse, _options(spool, option))
    settings = _gold_settings(window)
    spark = session.build(master=master, remote=remote, app_name="hanse pipeline", settings=_pairs(conf))
    try:
        follow(lambda: start(spark, ingest, once=True), _tell, typer.echo)
        typer.echo(f"bronze_mqtt: {bronze(warehouse).rows()} rows")
        _run_jobs(spark, warehouse, settings)
    finally:
        spark.stop()


def alarms(
    *,
    warehouse: Warehouse = Path("warehouse"),
    spool: Spool = None,
    silent: Annotated[str, typer.Option(help="Time without a report before an alarm.")] = "10s",
    trigger: Annotated[str, typer.Option(help="Time between two checks.")] = "2s",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Report live when a source of telemetry falls silent or comes back, until interrupted."""
    _prepare()
    watched = Alarms(
        warehouse,
        spool or Path(default_spool()),
        silent_s=parse_duration_s("--silent", silent),
        trigger_s=parse_duration_s("--trigger", trigger),
    )
    spark = session.build(master=master, remote=remote, app_name="hanse pipeline alarms", settings=_pairs(conf))
    typer.echo(f"watching {watched.spool}; end with Ctrl-C")
    try:
        follow(lambda: start_alarms(spark, watched, typer.echo), _quiet, typer.echo)
    except KeyboardInterrupt:
        typer.echo("stopping")
    finally:
        spark.stop()


def _quiet(progress: Progress) -> None:
    """Print nothing: alarms are printed by their own callback."""


def compact(
    *,
    warehouse: Warehouse = Path("warehouse"),
    spool: Spool = None,
    keep: Annotated[str, typer.Option(help="Delete files that no version of this period needs.")] = "7d",
    retention: Annotated[str, typer.Option(help="Minimum time to keep rows in the spool, whether read or not.")] = "7d",
) -> None:
    """Join small files, delete files that no version needs any more, and sweep the spool."""
    _prepare()
    for table in _tables(warehouse):
        before = len(table.files())
        table.compact()
        deleted = table.vacuum(parse_duration_s("--keep", keep))
        typer.echo(f"{table.path.name}: {before} files became {len(table.files())}, {deleted} deleted")
    root = spool or Path(default_spool())
    report = sweep(root, now_us=time.time_ns() // 1000, age_s_min=parse_duration_s("--retention", retention))
    held = f"; {', '.join(report.held_back_by)} still need the rest" if report.held_back_by else ""
    typer.echo(f"spool: {report.segments_deleted} segments deleted, {report.bytes_deleted} bytes{held}")


def report(
    *,
    warehouse: Warehouse = Path("warehouse"),
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Federation report",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Write one self-contained page with plots of the gold tables."""
    _prepare()
    spark = session.build(master=master, remote=remote, app_name="hanse pipeline report", settings=_pairs(conf))
    try:
        _load("hanse.pipeline.report:write_report")(
            _load("hanse.pipeline.jobs.store:Warehouse")(spark, warehouse).read, out, title
        )
    except Exception as error:
        raise explain(error) from error
    finally:
        spark.stop()
    typer.echo(f"the report is in {out}")


def _prepare() -> None:
    logs.configure("plain", "warning")


def _options(spool: Path | None, more: list[str] | None) -> dict[str, str]:
    options = _pairs(more)
    if spool is not None:
        options["spool"] = str(spool.absolute())
    return options


def _pairs(texts: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or []:
        name, mark, value = text.partition("=")
        if not mark:
            raise typer.BadParameter(f"{text!r} has no value; write name=value.")
        found[name] = value
    return found


def _tell(progress: Progress) -> None:
    typer.echo(
        f"batch {progress.batch_id}: {progress.rows} rows, {progress.rows_per_s:.0f} rows/s, {progress.lag_rows} "
        "rows behind"
    )


def _gold_settings(window: str) -> GoldSettings:
    window_s = parse_duration_s("--window", window)
    if not window_s.is_integer():
        raise LocalError(f"--window is {window}; expected whole seconds, such as 10s, 1m or 1h.")
    return GoldSettings(window_s=int(window_s))


def _run_jobs(spark: Any, warehouse: Path, settings: GoldSettings) -> None:  # noqa: ANN401 - classic or Connect
    more = {"gold": (settings,)}
    for name, where in JOBS.items():
        began = time.monotonic()
        try:
            said = _load(where)(spark, warehouse, *more.get(name, ()))
        except Exception as error:
            raise explain(error) from error
        typer.echo(f"{name}: {said} ({time.monotonic() - began:.1f} s)")


def _tables(warehouse: Path) -> list[StoredTable]:
    return [bronze(warehouse), *(table for where in TABLES.values() for table in _load(where)(warehouse))]


def _load(where: str) -> Callable[..., Any]:
    module, _, name = where.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
