"""`hanse interest`: how a broker is made to tell of its subscriptions."""

import typer

from hanse.errors import LocalError
from hanse.interest import vendor as vendors
from hanse.interest.acl import acl_lines


def register(app: typer.Typer) -> None:
    """Hang `hanse interest` on the application."""
    group = typer.Typer(help="How subscriptions at a broker become known.", no_args_is_help=True)

    @group.callback()
    def root() -> None:
        """How subscriptions at a broker become known."""

    @group.command()
    def config(
        vendor: str = typer.Option("mosquitto", help="The broker's vendor."),
        log_file: str | None = typer.Option(None, help="Use a log file instead of log topics."),
        acl: bool = typer.Option(False, "--acl", help="Print the access list instead; needs --id."),
        identity: int | None = typer.Option(None, "--id", min=0, help="The federator beside this broker."),
        neighbour: list[int] = typer.Option(  # noqa: B008 - typer's way to declare an option
            [], min=0, help="A federator that comes to this broker (link = broker); repeat for each."
        ),
    ) -> None:
        """Print the lines that the broker's configuration needs."""
        if not acl:
            typer.echo(vendors.lines(vendor, log_file=log_file), nl=False)
            return
        if identity is None:
            raise LocalError("--acl was given without --id; name the federator that is at home at this broker.")
        typer.echo(acl_lines(vendor, identity, neighbour), nl=False)

    app.add_typer(group, name="interest")
