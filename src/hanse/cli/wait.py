"""`hanse wait`: waits until a federation is ready, and says what is missing if it does not become ready in time."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from hanse.errors import LocalError, RemoteError, Unavailable
from hanse.federator.manager_client import ManagerClient
from hanse.local import state
from hanse.local.http import get_json
from hanse.local.readiness import missing_at_federators, missing_at_manager, shown
from hanse.settings import parse_duration_s

_POLL_S = 0.2
_ASK_S = 5.0


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(wait)


def wait(
    *,
    metrics: Annotated[list[str], typer.Option(help="Metrics URL of a federator, http://HOST:PORT; repeatable.")] = [],  # noqa: B006 - typer copies it
    manager: Annotated[list[str], typer.Option(help="URL of the topology manager; repeatable.")] = [],  # noqa: B006
    manager_ca_file: Annotated[Path | None, typer.Option(help="Authorities to trust as the manager.")] = None,
    token: Annotated[
        str | None, typer.Option(envvar="HANSE_TOKEN", help="Token for the manager, if it asks readers for one.")
    ] = None,
    state_path: Annotated[
        Path, typer.Option("--state", help="State file of `hanse up`, if no URL is given.")
    ] = state.DEFAULT_PATH,
    count: Annotated[int | None, typer.Option(min=1, help="Number of federators that must take part.")] = None,
    timeout: Annotated[str, typer.Option(help="Longest time to wait.")] = "60s",
) -> None:
    """Wait until the federation is ready; exit code 1 if it is not in time."""
    try:
        timeout_s = parse_duration_s(timeout)
    except ValueError as error:
        raise LocalError(f"--timeout: {timeout!r} is not allowed; expected {error}.") from error
    client = ManagerClient(manager, manager_ca_file) if manager else None
    asyncio.run(_wait(metrics, client, token, None if metrics or manager else state_path, count, timeout_s))
    typer.echo("ready")


async def _wait(
    metrics: list[str],
    client: ManagerClient | None,
    token: str | None,
    state_path: Path | None,
    count: int | None,
    timeout_s: float,
) -> None:
    """Return when everything is ready.

    Raises:
        Unavailable: it was not in time; the message names what is missing.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    while True:
        missing = await _missing(metrics, client, token, state_path, count)
        if not missing:
            return
        if loop.time() > until_s:
            raise Unavailable(f"The federation is not ready after {timeout_s:g} s: {shown(missing)}.")
        await asyncio.sleep(_POLL_S)


async def _missing(
    metrics: list[str], client: ManagerClient | None, token: str | None, state_path: Path | None, count: int | None
) -> list[str]:
    missing: list[str] = []
    if state_path is not None:
        try:
            found = state.read(state_path)
        except LocalError as error:  # `hanse up` writes it when it has converged
            return [str(error).rstrip(".")]
        metrics = [one.metrics for one in found.federators if one.metrics is not None]
    if client is not None:
        try:
            missing += missing_at_manager(
                await client.ask("GET", "/api/v1/topology", shown=token, timeout_s=_ASK_S), count
            )
        except (Unavailable, RemoteError) as error:
            missing.append(str(error).rstrip("."))
    if metrics:
        pages = await asyncio.gather(*(_page(url) for url in metrics))
        missing += missing_at_federators(dict(zip(metrics, pages, strict=True)), count)
    return missing


async def _page(url: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return await get_json(f"{url.rstrip('/')}/healthz")
    except Unavailable:
        return None
