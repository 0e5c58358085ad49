"""The command `fieldcraft bench`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from fieldcraft.cli.app import app
from fieldcraft.terminal.console import print_line
from fieldcraft.types import UserError


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],  # `bench NAME --help` is for the script
    }
)
def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of a script in bench/, for example engine.")],
) -> None:
    """Run a script of bench/, with its options after its name; only from a checkout."""
    if name == "--help":
        print_line(context.get_help())
        return
    folder = Path(__file__).parents[3] / "bench"
    scripts = {script.stem: script for script in sorted(folder.glob("[!_]*.py"))}
    if not scripts:
        raise UserError("bench/ is not part of the installed package: run it from a checkout.")
    if name not in scripts:
        raise UserError(f"bench/ has no script '{name}': use one of {', '.join(scripts)}.")
    print_line(f"Running bench/{name}.py ...", file=sys.stderr)
    sys.argv = [str(scripts[name]), *context.args]
    sys.path.insert(0, str(folder))  # scripts share modules, as when Python runs them
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except ModuleNotFoundError as error:
        raise UserError(
            f"bench/{name}.py needs the package '{error.name}': install the requirements"
            " in the first lines of the script."
        ) from error
