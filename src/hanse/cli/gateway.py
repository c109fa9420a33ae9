"""`hanse gateway`: runs the clients' front door; `explain`, `drain` and `undrain` ask the one that runs here."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hanse.cli.flags import with_settings
from hanse.errors import LocalError, RemoteError
from hanse.gateway.settings import GatewaySettings
from hanse.local.http import post_json
from hanse.system_errors import reason

_ASK_S = 10.0
_StateDir = Annotated[Path, typer.Option("--state-dir", help="State directory of the running gateway.")]
_Url = Annotated[
    str | None, typer.Option("--url", help="URL of the gateway's pages, instead of looking into --state-dir.")
]
_STATE_DIR = Path(".hanse-gateway")


def register(app: typer.Typer) -> None:
    """Add `hanse gateway` to the application."""
    group = typer.Typer(name="gateway")
    app.add_typer(group)

    @group.callback(invoke_without_command=True)
    @with_settings(GatewaySettings, "gateway", is_group=True)
    def gateway(settings: GatewaySettings) -> None:
        """Run a gateway: one address for all clients, each of which is proxied to a broker.

        `explain`, `drain` and `undrain` ask the gateway that runs on this machine.
        """
        import uvloop  # noqa: PLC0415 - `--help` must not wait for the event loop

        from hanse.gateway import running  # noqa: PLC0415 - as above

        raise typer.Exit(uvloop.run(running.run(settings)))

    group.command()(explain)
    group.command()(drain)
    group.command()(undrain)


def explain(
    *,
    client: Annotated[str, typer.Option(help="Client id, or user name with placement_key = username.")] = "",
    topic: Annotated[str | None, typer.Option(help="Filter or topic of a client that would be redirected.")] = None,
    clean: Annotated[bool, typer.Option("--clean", help="The client keeps no session.")] = False,
    state_dir: _StateDir = _STATE_DIR,
    url: _Url = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the broker for a client or a topic: all brokers in the order in which they are tried, with the reasons."""
    if not client and topic is None:
        raise LocalError("No client and no topic is given; give --client ID, --topic FILTER, or both.")
    found = _ask(url, state_dir, "/explain", {"client": client, "topic": topic, "clean": clean})
    if is_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _show(found)
    raise typer.Exit(0 if found["broker"] is not None else 1)


def drain(
    broker: Annotated[str, typer.Argument(help="Id of the broker, as `explain` and /healthz show it.")],
    *,
    rate: Annotated[float | None, typer.Option(help="Clients per second; the setting drain_rate by default.")] = None,
    state_dir: _StateDir = _STATE_DIR,
    url: _Url = None,
) -> None:
    """Move the clients away from a broker, and keep it out until `undrain`, also over a restart of the gateway."""
    found = _ask(url, state_dir, "/drain", {"broker": broker, "rate": rate, "drained": True})
    typer.echo(f"{broker} is drained; it has {found['clients']} clients, which are moved")


def undrain(
    broker: Annotated[str, typer.Argument(help="Id of the broker.")],
    *,
    state_dir: _StateDir = _STATE_DIR,
    url: _Url = None,
) -> None:
    """End a drain: the broker takes clients again."""
    _ask(url, state_dir, "/drain", {"broker": broker, "rate": None, "drained": False})
    typer.echo(f"{broker} takes clients again")


def _ask(url: str | None, state_dir: Path, path: str, question: dict[str, object]) -> dict[str, Any]:
    base = url or _running(state_dir)
    found: dict[str, Any] = asyncio.run(post_json(f"{base.rstrip('/')}{path}", question, _ASK_S))
    if "error" in found:
        raise RemoteError(f"The gateway at {base} refused: {found['error']}")
    return found


def _running(state_dir: Path) -> str:
    path = state_dir / "gateway.json"
    try:
        found: str = json.loads(path.read_text(encoding="utf-8"))["metrics"]
    except OSError as error:
        raise LocalError(
            f"{path} cannot be read ({reason(error)}): no gateway runs with this state directory; give --state-dir or "
            "--url."
        ) from error
    except (ValueError, KeyError) as error:
        raise LocalError(f"{path} is not the file of a running gateway; give --state-dir or --url.") from error
    return found


def _show(found: dict[str, Any]) -> None:
    console = Console(width=160, highlight=False)
    chosen = found["broker"] if found["broker"] is not None else "no broker"
    if found["topic"] is not None:
        console.print(f"topic: {found['topic']}", markup=False)
    if found["client"]:
        console.print(
            f"{found['client']!r} goes to {chosen}; policy {found['policy']}: {found['policy_reason']}", markup=False
        )
        table = Table("broker", "address", "takes clients", "score", "reason", box=None)
        for row in found["ranking"]:
            takes = "yes" if row["takes_clients"] else "no"
            table.add_row(row["broker"], row["url"], takes, row["score"], row["reason"])
        console.print(table)
    for one in found.get("by_topic", []):
        chosen = one["broker"] if one["broker"] is not None else "no broker"
        console.print(
            f"\nredirected at {one['listener']} ({one['mode']}) as a {one['as']}: {chosen}, {one['why']}", markup=False
        )
        table = Table("broker", "reference", "takes clients", "reason", box=None)
        for row in one["ranking"]:
            table.add_row(row["broker"], row["reference"], "yes" if row["takes_clients"] else "no", row["reason"])
        console.print(table)
