"""`python -m fieldcraft`."""

from fieldcraft.cli.main import main

main()
