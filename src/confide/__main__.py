"""`python -m confide`: the command line, for launchers that start modules, as torchrun does."""

from confide.cli import main

main()
