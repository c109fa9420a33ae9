"""`hanse manager`: the topology manager as a process."""

import logging

import typer
import uvloop

from hanse.cli.flags import with_settings
from hanse.topology.serve import serve
from hanse.topology.settings import ManagerSettings


def register(app: typer.Typer) -> None:
    """Hangs the command on the application."""

    @app.command()
    @with_settings(ManagerSettings, "manager")
    def manager(settings: ManagerSettings) -> None:
        """Run the topology manager: it places federators, watches their brokers, and repairs the overlay."""
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        uvloop.run(serve(settings))
