"""`hanse federator`: runs the agent beside a broker; `list` and `revoke` work on the manager's store."""

import time
from collections.abc import Callable, Mapping

import typer
from rich.console import Console
from rich.table import Table

from hanse.cli.flags import with_settings
from hanse.cli.store import LIST_WIDTH, format_moment, with_store
from hanse.errors import LocalError
from hanse.federator.settings import FederatorSettings
from hanse.topology.admission import expel
from hanse.topology.audit import expulsion, operator
from hanse.topology.model import Federator, Topology
from hanse.topology.settings import ManagerSettings, StoreSettings
from hanse.topology.store import Revocation, Store, Token


def register(app: typer.Typer) -> None:
    """Add `hanse federator` to the application."""
    group = typer.Typer(name="federator")
    app.add_typer(group)

    @group.callback(invoke_without_command=True)
    @with_settings(FederatorSettings, "federator", takes_handed_out=True, is_group=True)
    def federator(settings: FederatorSettings, read_again: Callable[[Mapping[str, object]], FederatorSettings]) -> None:
        """Run a federator beside a broker until SIGTERM, which makes it leave the meshes first.

        `list` and `revoke` show and expel the federators of a manager; run them where the manager's store is.
        """
        # Imported only here: `--help` and a wrong setting must not wait for the event loop and the codec.
        import uvloop  # noqa: PLC0415

        from hanse.federator import running  # noqa: PLC0415

        raise typer.Exit(uvloop.run(running.run(settings, read_again)))

    @group.command("list")
    @with_settings(StoreSettings, "manager", others=ManagerSettings)
    def list_federators(settings: StoreSettings) -> None:
        """List the federators that the manager knows, and those that were expelled."""
        table = Table("id", "broker", "link", "state", "since", "neighbours", "token", "label", box=None)
        for row in with_store(settings, _rows):
            table.add_row(*row)
        Console(width=LIST_WIDTH).print(table)

    @group.command()
    @with_settings(StoreSettings, "manager", others=ManagerSettings)
    def revoke(
        settings: StoreSettings,
        *,
        federator: int = typer.Argument(help="The federator's id, as `hanse federator list` shows it.", min=0),
        keep_token: bool = typer.Option(
            False, "--keep-token", help="Leave the token that admitted it open, for others to join with."
        ),
    ) -> None:
        """Expel one federator. Within a health interval its neighbours close their links.

        It is refused at its address until it shows a token that was made later. The token that admitted it is closed,
        because it could join with it at another address. Other federators that the same token admitted stay.
        """

        async def act(store: Store) -> tuple[Federator, str | None, Token | None]:
            one = (await store.load(None)).federators.get(federator)
            if one is None:
                raise LocalError(f"There is no federator {federator}; `hanse federator list` shows the existing ones.")
            closed = await expel(store, one, keep_token=keep_token)
            await store.add_audit(expulsion(one, closed, operator(), time.time()))
            return one, closed, None if one.token is None else await store.find_token(one.token)

        one, closed, token = with_store(settings, act)
        typer.echo(f"revoked federator {one.id} ({one.ip})")
        if closed is not None:
            typer.echo(f"closed token {closed}: it admits nobody any more, and those whom it admitted stay")
        elif keep_token and token is not None and not token.is_revoked and token.uses_left != 0:
            typer.echo(f"token {token.id} stays open: federator {one.id} can join with it at another address")


async def _rows(store: Store) -> list[tuple[str, ...]]:
    topology = await store.load(None)
    tokens = {one.id: one for one in await store.list_tokens()}
    rows = [_row(one, topology, tokens) for _, one in sorted(topology.federators.items())]
    forgotten = [one for one in await store.list_revocations() if topology.by_key(one.key) is None]
    return rows + [_row_of_forgotten(one) for one in forgotten]


def _row(one: Federator, topology: Topology, tokens: Mapping[str, Token]) -> tuple[str, ...]:
    token = tokens.get(one.token) if one.token is not None else None
    since = "" if one.since is None else format_moment(one.since.timestamp())
    neighbours = ", ".join(map(str, topology.neighbors(one.id)))
    label = "" if token is None else token.label
    return str(one.id), one.ip, one.link or "", one.state.value, since, neighbours, one.token or "", label


def _row_of_forgotten(one: Revocation) -> tuple[str, ...]:
    return str(one.id), one.key, "", "revoked", format_moment(one.revoked_s), "", "", ""
