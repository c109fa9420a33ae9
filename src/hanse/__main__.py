"""`python -m hanse` is the `hanse` command."""

from hanse.cli import main

main()
