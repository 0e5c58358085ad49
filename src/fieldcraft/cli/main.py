"""The command line: all commands, and how mistakes are shown.

Whatever loads torch is imported by the command that needs it, so that `fieldcraft --help` answers
at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from fieldcraft.cli import agents, data, runs, show
from fieldcraft.cli.app import (
    app,
)
from fieldcraft.types import UserError
from fieldcraft.version import __version__

COMMANDS = (runs, agents, show, data)  # each registers its commands


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 2 a mistake of the user's (in one sentence), 130 Ctrl-C."""
    # Threads that spin while they wait make a busy machine several times slower. OpenMP reads this
    # once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, TextIOWrapper):  # a letter that it cannot write ends no command
        sys.stdout.reconfigure(errors="backslashreplace")
    mistakes: list[UserError] = []
    try:
        app(args=arguments, prog_name="fieldcraft")
    except* UserError as group:  # a rollout's arrives in the group of its siblings
        mistakes += _leaves(group)
    if mistakes:
        print(f"fieldcraft: {mistakes[0]}", file=sys.stderr)
        sys.exit(2)


def _leaves(group: BaseExceptionGroup[UserError]) -> list[UserError]:
    found: list[UserError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        print(f"fieldcraft {__version__}")
        raise typer.Exit
