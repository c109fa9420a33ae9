"""`hanse interest`: configuration by which a broker reports its subscriptions."""

from pathlib import Path

import typer

from hanse.errors import LocalError
from hanse.interest import vendor as vendors
from hanse.interest.acl import acl_lines
from hanse.interest.acl_imports import import_settings


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
        acl_file: Path | None = typer.Option(  # noqa: B008 - the same
            None, help="Print the import_allow that follows from the broker's acl_file, for the federator."
        ),
    ) -> None:
        """Print the lines that the broker's configuration needs, or the federator's with --acl-file."""
        if acl_file is not None:
            if vendor != "mosquitto" or acl or log_file is not None:
                raise LocalError(
                    "--acl-file reads a Mosquitto's access list; give it without --vendor, --acl and --log-file."
                )
            typer.echo(import_settings(acl_file), nl=False)
            return
        if not acl:
            typer.echo(vendors.lines(vendor, log_file=log_file), nl=False)
            return
        if identity is None:
            raise LocalError("--acl needs --id; give the id of the federator beside this broker.")
        typer.echo(acl_lines(vendor, identity, neighbour), nl=False)

    app.add_typer(group, name="interest")
