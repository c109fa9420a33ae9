"""`hanse interest`: how a broker is made to tell of its subscriptions."""

import typer

from hanse.interest import vendor as vendors


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
    ) -> None:
        """Print the lines that the broker's configuration needs."""
        typer.echo(vendors.lines(vendor, log_file=log_file), nl=False)

    app.add_typer(group, name="interest")
