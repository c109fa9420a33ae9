"""`hanse discover`: finds the brokers of a network, and the topics of each broker."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hanse.errors import LocalError
from hanse.gateway.addresses import parse_brokers
from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.discovery import brokers as finding
from hanse.gateway.discovery import listening
from hanse.gateway.discovery.listening import RUN_BYTES_MAX, Credentials, Run
from hanse.gateway.discovery.ranges import TARGETS_MAX, parse_ports, parse_targets
from hanse.gateway.discovery.topics import TOPICS_MAX, Topics
from hanse.gateway.placement import Broker
from hanse.mqtt.tls import TlsSettings
from hanse.protocol.topics import check_filter
from hanse.settings import parse_duration_s

_ASK_S = 10.0
_DURATION = "a number and a unit: 500ms, 2s, 1m"

_Manager = Annotated[
    list[str], typer.Option("--manager", help="A topology manager's URL; repeat it for further managers.")
]
_ManagerToken = Annotated[
    str | None,
    typer.Option("--manager-token", envvar="HANSE_MANAGER_TOKEN", help="A token that may read.", show_default=False),
]
_ManagerCa = Annotated[Path | None, typer.Option("--manager-ca-file", help="CA of an https:// manager.")]
_Listed = Annotated[list[str], typer.Option("--broker", help="A broker, as ID=URL or URL; repeat it for others.")]
_Scan = Annotated[
    list[str], typer.Option("--scan", help="Addresses to try: 10.0.0.0/24, FIRST-LAST or one; repeat it for others.")
]
_Ports = Annotated[str, typer.Option("--port", help="Ports of --scan; `8883/tls` for TLS.")]
_TargetsMax = Annotated[int, typer.Option("--targets-max", min=1, max=1 << 20, help="Addresses times ports of --scan.")]
_Concurrency = Annotated[int, typer.Option("--concurrency", min=1, max=4096, help="Connections of --scan at once.")]
_Timeout = Annotated[str, typer.Option("--timeout", help="For one address of --scan.")]
_Filters = Annotated[list[str], typer.Option("--filter", help="Filter to subscribe to; repeat it for others.")]
_For = Annotated[str, typer.Option("--for", help="Time to listen.")]
_TopicsMax = Annotated[int, typer.Option("--topics-max", min=1, max=10_000_000, help="Topics that are kept.")]
_BytesMax = Annotated[int, typer.Option("--bytes-max", min=1_000, help="Bytes received from one broker.")]
_Username = Annotated[str | None, typer.Option("--username", help="User name at the brokers.")]
_Password = Annotated[
    str | None,
    typer.Option("--password", envvar="HANSE_DISCOVER_PASSWORD", help="Its password; better in the variable."),
]
_CaFile = Annotated[Path | None, typer.Option("--ca-file", help="CA of mqtts:// brokers.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add `hanse discover` to the application."""
    group = typer.Typer(name="discover", help="Find the brokers of a network, and their topics.", no_args_is_help=True)
    app.add_typer(group)

    @group.callback()
    def root() -> None:
        """Find the brokers of a network, and their topics."""

    group.command()(brokers)
    group.command()(topics)


def brokers(
    *,
    manager: _Manager = [],  # noqa: B006 - typer reads the default once
    manager_token: _ManagerToken = None,
    manager_ca_file: _ManagerCa = None,
    listed: _Listed = [],  # noqa: B006
    scan: _Scan = [],  # noqa: B006
    port: _Ports = "1883",
    targets_max: _TargetsMax = TARGETS_MAX,
    concurrency: _Concurrency = finding.CONCURRENCY,
    timeout: _Timeout = "1s",
    is_json: _Json = False,
) -> None:
    """Print the brokers that a manager knows, that a list names, or that answer MQTT in a range of addresses.

    Exit code 0 if there is one, 1 if there is none.
    """
    if not (manager or listed or scan):
        raise LocalError("Nothing says where to look; give --manager URL, --broker URL or --scan 10.0.0.0/24.")
    targets = parse_targets(scan, parse_ports(port), targets_max)
    timeout_s = _duration("--timeout", timeout)
    rows = [_row(one, "list") for one in parse_brokers(tuple(listed))]
    problems: list[str] = []
    if manager:
        found, problems = _of_manager(manager, manager_token, manager_ca_file)
        rows += [_row(one, "manager") for one in found]
    findings = asyncio.run(finding.scan(targets, concurrency=concurrency, timeout_s=timeout_s))
    scanned = [one for one in findings if one.what == finding.BROKER]
    rows += [
        {**_row(broker, "scan"), **one.as_json()}
        for broker, one in zip(finding.brokers_found(scanned), scanned, strict=True)
    ]
    if is_json:
        counts = {what: sum(one.what == what for one in findings) for what in sorted({one.what for one in findings})}
        typer.echo(
            json.dumps({"brokers": rows, "tried": len(findings), "outcomes": counts, "problems": problems}, indent=2)
        )
    else:
        for row in rows:
            _show(row)
        for problem in problems:
            typer.echo(f"left out: {problem}", err=True)
        if findings:
            typer.echo(f"{len(findings)} addresses and ports tried, {len(scanned)} brokers found", err=True)
    raise typer.Exit(0 if rows else 1)


def topics(
    *,
    listed: _Listed = [],  # noqa: B006
    filters: _Filters = ["#"],  # noqa: B006
    listen: _For = "5s",
    topics_max: _TopicsMax = TOPICS_MAX,
    bytes_max: _BytesMax = RUN_BYTES_MAX,
    username: _Username = None,
    password: _Password = None,
    ca_file: _CaFile = None,
    is_json: _Json = False,
) -> None:
    """Listen at each broker for a time, and print the topics of what is published or retained there.

    Do not use it at a broker with a federator: a subscription to # draws the whole federation's traffic to that broker.
    Exit code 0 if every broker was listened to, 1 if not.
    """
    known = parse_brokers(tuple(listed))
    if not known:
        raise LocalError("No broker is given; write --broker URL for each.")
    for one in filters:
        check_filter(one)
    table = Topics(topics_max)
    for_s = _duration("--for", listen)
    dialler_tls = TlsSettings(ca_file)

    async def run() -> list[Run]:
        dialler = Dialler(dialler_tls, timeout_s=for_s)

        async def one(broker: Broker) -> Run:
            def on_topic(topic: str, is_retained: bool) -> None:
                table.saw(broker.id, topic, 0.0, is_retained=is_retained)

            return await listening.listen(
                dialler,
                broker,
                on_topic,
                filters=filters,
                for_s=for_s,
                bytes_max=bytes_max,
                credentials=Credentials(username, password),
            )

        return await asyncio.gather(*(one(broker) for broker in known))

    runs = asyncio.run(run())
    if is_json:
        found = {
            broker.id: {"url": broker.url, "run": done.as_json(), "topics": table.topics_of(broker.id)}
            for broker, done in zip(known, runs, strict=True)
        }
        typer.echo(json.dumps({"brokers": found, "dropped": table.dropped}, indent=2))
    else:
        for broker, done in zip(known, runs, strict=True):
            for topic in table.topics_of(broker.id):
                typer.echo(f"{broker.id}\t{topic}")
            detail = f" ({done.detail})" if done.detail else ""
            typer.echo(f"{broker.id}: {done.ended}{detail}, {done.publications} publications", err=True)
        if table.dropped:
            typer.echo(f"{table.dropped} publications of further topics were left out; raise --topics-max", err=True)
    raise typer.Exit(0 if all(done.is_good for done in runs) else 1)


def _row(broker: Broker, source: str) -> dict[str, Any]:
    return {"id": broker.id, "url": broker.url, "source": source}


def _show(row: dict[str, Any]) -> None:
    shown = f"--broker {row['id']}={row['url']}"
    if row["source"] == "scan":
        code = row["code"]
        admits = "accepts clients without a login" if code == 0 else f"refuses clients without a login ({code:#04x})"
        shown += f"    MQTT {row['version']}, {admits}, {row['ms']:.1f} ms"
    typer.echo(shown)


def _of_manager(urls: list[str], token: str | None, ca_file: Path | None) -> tuple[list[Broker], list[str]]:
    from hanse.federator.manager_client import ManagerClient  # noqa: PLC0415 - `--help` must not wait for it

    client = ManagerClient(urls, ca_file)

    async def ask(path: str) -> dict[str, Any]:
        return await client.ask("GET", path, shown=token, timeout_s=_ASK_S)

    _, found, problems = asyncio.run(finding.brokers_of_manager(ask))
    return found, problems


def _duration(flag: str, text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError:
        raise LocalError(f"{flag}: {text!r} is not allowed; expected {_DURATION}.") from None
