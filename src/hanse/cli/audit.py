"""`hanse audit`: shows who changed what in a federation, from the manager's store."""

import json
from dataclasses import asdict
from typing import Any

import typer

from hanse.cli.flags import with_settings
from hanse.cli.store import format_moment, with_store
from hanse.topology.settings import ManagerSettings, StoreSettings
from hanse.topology.store import AUDIT_ENTRIES_MAX, AuditEntry


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @app.command()
    @with_settings(StoreSettings, "manager", others=ManagerSettings)
    def audit(
        settings: StoreSettings,
        *,
        limit: int = typer.Option(50, help="Number of entries, the newest ones.", min=1, max=AUDIT_ENTRIES_MAX),
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object per line."),
    ) -> None:
        """Show who changed what in the federation, and when; the newest entry comes last."""
        _, entries = with_store(settings, lambda store: store.list_audit(offset=0, limit=limit))
        for one in reversed(entries):
            typer.echo(json.dumps(_object(one), separators=(",", ":")) if as_json else _line(one))


def _object(one: AuditEntry) -> dict[str, Any]:
    return {"time": format_moment(one.at_s), **asdict(one), "detail": dict(one.detail)}


def _line(one: AuditEntry) -> str:
    source = f" ({one.source})" if one.source else ""
    detail = " ".join(f"{name}={value}" for name, value in one.detail.items())
    text = f"{format_moment(one.at_s)}  {one.actor}{source}  {one.action}  {one.subject}  {detail}".rstrip()
    # Addresses come from federators: no control character of theirs reaches the terminal.
    return text if text.isprintable() else text.encode("unicode_escape").decode()
