"""Command-line application, and arguments shared by commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from fieldcraft.cli.renamed_options import describe_former_option
from fieldcraft.recipes.consent import allow_permissions
from fieldcraft.recipes.permissions import PERMISSIONS
from fieldcraft.records.files import require_writable
from fieldcraft.terminal.console import CleanConsole, print_line
from fieldcraft.terminal.progress import is_live
from fieldcraft.types import UserError

INTERRUPTED_STATUS = 130  # exit status after Ctrl-C
# Base class of argument errors; typer exports only this subclass.
_UsageError: Any = typer.BadParameter.__base__


class CommandGroup(TyperGroup):
    """Group of all commands. Ctrl-C and a former option each exit with a sentence; a
    closed pipe, for example while printing help, is not an error."""

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        with _handle_exit():
            return super().make_context(*arguments, **settings)

    def invoke(self, *arguments: Any, **settings: Any) -> Any:
        with _handle_exit():
            return super().invoke(*arguments, **settings)


@contextmanager
def _handle_exit() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print_line("fieldcraft: stopped.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED_STATUS) from None
    except _UsageError as error:
        if sentence := _describe_former_option(error):
            raise UserError(sentence) from error
        raise
    except SystemExit as end:  # raised by rich for a help page
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        raise typer.Exit from None


def _describe_former_option(error: Any) -> str | None:
    """Return the message for an unknown option that was renamed or removed."""
    option = getattr(error, "option_name", None)
    if option is None or error.ctx is None:
        return None
    _, _, command = error.ctx.command_path.partition(" ")
    return describe_former_option(command, option)


app = typer.Typer(
    cls=CommandGroup,
    help="Train language models that decide for themselves when to think, act and answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
serve_app = typer.Typer(help="Serve agents, tools and indexes over HTTP.", no_args_is_help=True)
app.add_typer(serve_app, name="serve")

RecipeArgument = Annotated[
    str, typer.Argument(help="Name of a built-in recipe, or path of a YAML file.")
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Keys to change, for example seed=7 stages.rl2.steps=3."
    ),
]
AgentOverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Keys of its recipe to change, for example engine=local."
    ),
]
OutOption = Annotated[Path, typer.Option("--out", help="Folder to write.")]
IndexOption = Annotated[
    Path | None, typer.Option(help="Search this index instead of the run's own.")
]
SearchUrlOption = Annotated[str | None, typer.Option(help="Search through this server.")]
DialectOption = Annotated[str | None, typer.Option(help="Dialect of a bare checkpoint.")]
DeviceOption = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device of the model.")]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="Maximum number of questions or trajectories.")
]
HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
PortOption = Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")]
SeedOption = Annotated[int, typer.Option(help="Seed of the samples.")]
StageOption = Annotated[
    str | None, typer.Option(help="Stage of the trajectories. Default: the last evaluated one.")
]
MaxLeftOutOption = Annotated[
    float, typer.Option(min=0, max=1, help="Maximum share of unreadable records.")
]


def _allow_names(context: typer.Context, names: list[str] | None) -> list[str] | None:
    """Grant the permissions until the command ends."""
    context.with_resource(allow_permissions(names or ()))
    return names


AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        callback=_allow_names,
        help="Grant this permission to a third-party folder and remember it:"
        f" {', '.join(PERMISSIONS)}.",
    ),
]


def require_empty_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty: choose another folder with --out.")
    require_writable(out)


@contextmanager
def announce_imports() -> Iterator[None]:
    """Show a status message while a command imports torch, which takes seconds."""
    console, message = CleanConsole(stderr=True), "Loading torch and transformers ..."
    if "torch" in sys.modules:
        yield
    elif is_live(console):
        with console.status(message):
            yield
    else:
        print_line(message, file=sys.stderr)
        yield
