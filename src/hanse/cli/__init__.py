"""The `hanse` command: one module per command group, imported only when it is called.

A group's module provides `register(app)`, which adds its commands to the application. `hanse federator` on an edge box
must not pay for the imports of `hanse pipeline`, nor require them. `main` therefore imports only the module that the
first argument names. For `--help` it imports all modules whose packages are installed, and for `--version` none.
"""

import importlib
import sys
from collections.abc import Sequence

import typer

from hanse import __version__
from hanse.errors import HanseError, LocalError

# Command to the module that registers it.
COMMANDS: dict[str, str] = {
    "account": "hanse.cli.account",
    "audit": "hanse.cli.audit",
    "bench": "hanse.cli.bench",
    "chaos": "hanse.cli.chaos",
    "collect": "hanse.cli.collect",
    "discover": "hanse.cli.discover",
    "down": "hanse.cli.pub_sub",
    "federator": "hanse.cli.federator",
    "gateway": "hanse.cli.gateway",
    "interest": "hanse.cli.interest",
    "link-emulator": "hanse.cli.link_emulator",
    "load": "hanse.cli.load",
    "manager": "hanse.cli.manager",
    "pipeline": "hanse.cli.pipeline",
    "pub": "hanse.cli.pub_sub",
    "sim": "hanse.cli.sim",
    "sub": "hanse.cli.pub_sub",
    "token": "hanse.cli.token",
    "trace": "hanse.cli.trace",
    "up": "hanse.cli.up",
    "wait": "hanse.cli.wait",
}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hanse {__version__}")
        raise typer.Exit


def build(words: Sequence[str]) -> typer.Typer:
    """Build the application with the commands that `words`, the command line, can reach."""
    app = typer.Typer(
        name="hanse",
        help="A self-managed federation of MQTT brokers.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def root(
        *,
        version: bool = typer.Option(
            False, "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ) -> None:
        """Federate MQTT brokers, without changes to brokers or clients."""

    word = next((word for word in words if not word.startswith("-")), "")
    wanted = COMMANDS.get(word)
    for module in [wanted] if wanted else [] if "--version" in words else sorted(set(COMMANDS.values())):
        try:
            importlib.import_module(module).register(app)
        except ModuleNotFoundError as error:
            if wanted and not (error.name or "").startswith("hanse"):
                extra = f"`hanse {word}` needs the package {error.name}, which is not installed here"
                raise LocalError(f"{extra}; install the extra that brings it, see docs/operating.md.") from error
            if wanted:
                raise
    return app


def main() -> None:
    """Run the console script; a LocalError is printed as one sentence and gives exit code 2."""
    try:
        build(sys.argv[1:])()
    except LocalError as error:
        typer.echo(f"hanse: {error}", err=True)
        sys.exit(2)
    except HanseError as error:
        typer.echo(f"hanse: {error}", err=True)
        sys.exit(1)
