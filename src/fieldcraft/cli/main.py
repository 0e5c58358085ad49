"""Command line: all commands, and the formatting of errors.

Modules that load torch are imported by the commands that need them, so `fieldcraft --help` answers
at once."""

from __future__ import annotations

import _thread
import errno
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldcraft.cli.app import app
from fieldcraft.config.components import COMMAND_MODULES
from fieldcraft.config.hub_names import is_in_cache
from fieldcraft.config.names import is_installed
from fieldcraft.recipes.consent import ConsentRequiredError
from fieldcraft.records.paths import expand_home_in_argument
from fieldcraft.records.waits import report_waits_to
from fieldcraft.terminal.console import drop_invalid_sizes, print_line
from fieldcraft.types import UserError
from fieldcraft.version import __version__

RERAISE_DELAY_SECONDS = 0.05  # until the interrupted callback has returned
for _module in filter(is_installed, COMMAND_MODULES):  # each registers its commands
    import_module(_module)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with a status: 0 for success, 2 for a user error or an error of the
    operating system (printed as one sentence), 130 for Ctrl-C."""
    # Waiting threads that spin for long make a busy machine thirty times slower, and threads that
    # sleep at once make an idle one slower by half. About ten microseconds of spinning are close to
    # the better of the two on both. GNU OpenMP reads this once, when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if isinstance(sys.stdout, TextIOWrapper):  # unencodable characters are not errors
        sys.stdout.reconfigure(errors="backslashreplace")
    drop_invalid_sizes()
    argv = [*map(expand_home_in_argument, sys.argv[1:] if arguments is None else arguments)]
    errors = _run_command(argv)
    while errors and _ask_for_consent(errors[0]):
        errors = _run_command(argv)
    if errors:
        print_line(f"fieldcraft: {_format_error(errors[0])}", file=sys.stderr)
        sys.exit(2)


def _run_command(arguments: Sequence[str]) -> list[UserError | OSError]:
    """Run a command and return its errors. Without errors, the command exits the process."""
    errors: list[UserError | OSError] = []
    try:
        with _reraise_lost_interrupts(), report_waits_to(_print_wait):
            app(args=[*arguments], prog_name="fieldcraft")
    except* (UserError, OSError) as group:  # an error of a rollout arrives in a group
        errors += _flatten_errors(group)
    return errors


def _ask_for_consent(error: UserError | OSError) -> bool:
    """Ask the user at a terminal to grant the permissions that a folder requests. Folders are
    loaded before a command does anything else, so the command can be restarted."""
    if not isinstance(error, ConsentRequiredError) or not (
        sys.stdin.isatty() and sys.stderr.isatty()
    ):
        return False
    print_line(f"{error.file} would", file=sys.stderr)
    for ask in error.requests:
        print_line(f"  {ask} ('{ask.key}')", file=sys.stderr)
    print_line("Allow this now and in the future? [y/N]", file=sys.stderr)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        return False
    error.grant()
    return True


def _print_wait(line: str) -> None:
    """Print a line about a long wait if there is no other handler, as in `ask` or `check`."""
    print_line(line, file=sys.stderr)


@contextmanager
def _reraise_lost_interrupts() -> Iterator[None]:
    """Raise a lost KeyboardInterrupt again after a short delay. Python only reports one that is
    raised in a weak reference callback or in a destructor, and continues."""
    original_hook = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            threading.Timer(RERAISE_DELAY_SECONDS, _thread.interrupt_main).start()
        else:
            original_hook(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = original_hook


def _flatten_errors(group: BaseExceptionGroup[UserError | OSError]) -> list[UserError | OSError]:
    errors: list[UserError | OSError] = []
    for error in group.exceptions:
        errors += _flatten_errors(error) if isinstance(error, BaseExceptionGroup) else [error]
    return errors


def _format_error(error: UserError | OSError) -> str:
    """Return the sentence for the user. Errors of the operating system are not bugs of the
    program."""
    if isinstance(error, UserError):
        return str(error)
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({reason}): free disk space and run the same command again."
    file = f"{error.filename} cannot be used" if error.filename else "a file cannot be used"
    if error.filename and is_in_cache(Path(os.fsdecode(error.filename))):
        return f"{file} ({reason}): set XDG_CACHE_HOME to a writable folder."
    return f"{file} ({reason}): fix this and run the same command again."


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        print_line(f"fieldcraft {__version__}")
        raise typer.Exit
