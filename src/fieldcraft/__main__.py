"""`python -m fieldcraft`."""

from fieldcraft.cli.start import main

main()
