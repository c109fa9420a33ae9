"""`hanse federator`: runs the agent beside a broker."""

from collections.abc import Callable, Mapping

import typer

from hanse.cli.flags import with_settings
from hanse.federator.settings import FederatorSettings


def register(app: typer.Typer) -> None:
    """Add `hanse federator` to the application."""

    @app.command()
    @with_settings(FederatorSettings, "federator", takes_handed_out=True)
    def federator(settings: FederatorSettings, read_again: Callable[[Mapping[str, object]], FederatorSettings]) -> None:
        """Run a federator beside a broker until SIGTERM, which makes it leave the meshes first."""
        # Imported only here: `--help` and a wrong setting must not wait for the event loop and the codec.
        import uvloop  # noqa: PLC0415

        from hanse.federator import running  # noqa: PLC0415

        raise typer.Exit(uvloop.run(running.run(settings, read_again)))
