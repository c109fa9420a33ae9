"""The `hanse` command, also as `python -m hanse`.

`hanse federator` runs for months on edge boxes and is started directly, because the command line's library alone would
take a third of its memory. `hanse.cli` handles help and all other commands.
"""

import sys

_HELP = {"--help", "--install-completion", "--show-completion"}


def main() -> None:
    """Run the console script."""
    if sys.argv[1:2] == ["federator"] and _HELP.isdisjoint(sys.argv):
        from hanse.federator.__main__ import main as run  # noqa: PLC0415 - imports only what the agent needs

        del sys.argv[1]
        run()
    else:
        from hanse.cli import main as run_command  # noqa: PLC0415

        run_command()


if __name__ == "__main__":
    main()
