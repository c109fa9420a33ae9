"""`hanse manager`: runs the topology manager."""

import typer
import uvloop

from hanse import logs
from hanse.cli.flags import with_settings
from hanse.topology.serve import serve
from hanse.topology.settings import ManagerSettings


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @app.command()
    @with_settings(ManagerSettings, "manager")
    def manager(settings: ManagerSettings) -> None:
        """Run the topology manager: it places federators, watches their brokers, and repairs the overlay."""
        logs.configure(settings.log_format, settings.log_level)
        uvloop.run(serve(settings))
