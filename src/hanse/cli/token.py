"""`hanse token`: manages the tokens that admit federators. It opens the manager's store, so only its operator can."""

import time
from collections.abc import Mapping

import typer
from rich.console import Console
from rich.table import Table

from hanse.cli.flags import with_settings
from hanse.cli.store import LIST_WIDTH, format_moment, with_store
from hanse.errors import LocalError
from hanse.settings import parse_duration_s
from hanse.topology.audit import operator
from hanse.topology.settings import ManagerSettings, StoreSettings
from hanse.topology.store import AuditEntry, Store
from hanse.topology.tokens import ROLES, make_token

LABEL_MAX = 100


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    tokens = typer.Typer(
        name="token", help="Create, list and revoke the tokens that admit federators.", no_args_is_help=True
    )
    app.add_typer(tokens)

    @tokens.command()
    @with_settings(StoreSettings, "manager", others=ManagerSettings)
    def create(
        settings: StoreSettings,
        *,
        uses: str = typer.Option("1", help="Number of uses, or `many`."),
        ttl: str = typer.Option("24h", help="Validity: 500ms, 2s, 1m, 1h, or `forever`."),
        role: str = typer.Option(
            "join", help="Permission: join, read, gateway, or admin (revoke federators over HTTP)."
        ),
        label: str = typer.Option("", help="Name to recognise the token in the list."),
    ) -> None:
        """Create a token and print it. It is shown only this once; the store keeps only its hash."""
        token, text = make_token(
            _read_role(role),
            label=label[:LABEL_MAX],
            now_s=time.time(),
            ttl_s=_read_ttl(ttl),
            uses=_read_uses(uses),
        )
        is_new = settings.mongo_url is None and not settings.store.exists()

        async def add(store: Store) -> None:
            await store.add_token(token)
            detail = {"role": token.role, "uses": uses, "ttl": ttl, "label": token.label}
            await _note(store, "token-created", token.id, detail)

        with_store(settings, add, may_create=True)
        if is_new:
            typer.echo(f"hanse: created the store {settings.store}; start the manager with the same one.", err=True)
        typer.echo(text)

    @tokens.command("list")
    @with_settings(StoreSettings, "manager", others=ManagerSettings)
    def list_tokens(settings: StoreSettings) -> None:
        """List the tokens: their ids, never their secrets."""
        table = Table("id", "role", "label", "made", "expires", "uses left", "state", box=None)
        now_s = time.time()
        for one in with_store(settings, lambda store: store.list_tokens()):
            is_over = one.expires_s is not None and one.expires_s <= now_s
            state = "revoked" if one.is_revoked else "expired" if is_over else "used" if one.uses_left == 0 else "valid"
            uses = "many" if one.uses_left is None else str(one.uses_left)
            expires = "never" if one.expires_s is None else format_moment(one.expires_s)
            table.add_row(one.id, one.role, one.label, format_moment(one.created_s), expires, uses, state)
        Console(width=LIST_WIDTH).print(table)

    @tokens.command()
    @with_settings(StoreSettings, "manager", others=ManagerSettings)
    def revoke(
        settings: StoreSettings,
        *,
        token: str = typer.Argument(help="The token's id, as `hanse token list` shows it."),
    ) -> None:
        """Revoke a token. Within a health interval its federators are excluded and their links closed."""
        # A user may paste the whole token: take its id, and ignore the secret part.
        identity = token.split("-")[1] if token.startswith("hanse-") and token.count("-") >= 2 else token

        async def act(store: Store) -> bool:
            was_there = await store.revoke_token(identity)
            if was_there:
                await _note(store, "token-revoked", identity, {})
            return was_there

        if not with_store(settings, act):
            raise LocalError(f"There is no token {identity[:20]!r}; `hanse token list` shows the existing ones.")
        typer.echo(f"revoked {identity}")


async def _note(store: Store, action: str, identity: str, detail: Mapping[str, object]) -> None:
    """Write the change into the audit log of the store. The command prints what it did, so nothing is logged."""
    actor = operator()
    await store.add_audit([AuditEntry(time.time(), actor.name, actor.source, action, f"token {identity}", detail)])


def _read_role(text: str) -> str:
    if text not in ROLES:
        raise LocalError(f"--role: {text!r} is not allowed; expected one of {', '.join(ROLES)}.")
    return text


def _read_ttl(text: str) -> float | None:
    if text == "forever":
        return None
    try:
        ttl_s = parse_duration_s(text)
    except ValueError as error:
        raise LocalError(f"--ttl: {text!r} is not allowed; expected {error}, or forever.") from error
    if ttl_s <= 0:
        raise LocalError("--ttl: a token must be valid for more than 0 s.")
    return ttl_s


def _read_uses(text: str) -> int | None:
    if text == "many":
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 1_000_000:
        raise LocalError(f"--uses: {text!r} is not allowed; expected 1 to 1000000, or many.")
    return int(text)
