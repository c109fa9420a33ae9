"""`hanse interest`: configuration by which a broker reports its subscriptions."""

import typer

from hanse.errors import LocalError
from hanse.interest import vendor as vendors
from hanse.interest.acl import acl_lines


def register(app: typer.Typer) -> None:
    """Add `hanse interest` to the application."""
    group = typer.Typer(help="Configure a broker to report its subscriptions.", no_args_is_help=True)

    @group.callback()
    def root() -> None:
        """Configure a broker to report its subscriptions."""

    @group.command()
    def config(
        vendor: str = typer.Option("mosquitto", help="Vendor of the broker."),
        log_file: str | None = typer.Option(None, help="Use a log file instead of log topics."),
        acl: bool = typer.Option(False, "--acl", help="Print the access control list instead; needs --id."),
        identity: int | None = typer.Option(None, "--id", min=0, help="Id of the federator beside this broker."),
        neighbour: list[int] = typer.Option(  # noqa: B008 - typer's way to declare an option
            [], min=0, help="Id of a federator that connects to this broker (link = broker); repeatable."
        ),
    ) -> None:
        """Print the lines that the broker's configuration needs."""
        if not acl:
            typer.echo(vendors.lines(vendor, log_file=log_file), nl=False)
            return
        if identity is None:
            raise LocalError("--acl needs --id; give the id of the federator beside this broker.")
        typer.echo(acl_lines(vendor, identity, neighbour), nl=False)

    app.add_typer(group, name="interest")
