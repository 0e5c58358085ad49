"""The command line's application, and the arguments that commands share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from fieldcraft.recipes.consent import allow_permissions
from fieldcraft.recipes.permissions import PERMISSIONS
from fieldcraft.records.files import require_writable
from fieldcraft.terminal.console import CleanConsole, print_line
from fieldcraft.terminal.progress import is_live
from fieldcraft.types import UserError

INTERRUPTED_STATUS = 130  # the status after Ctrl-C


class CommandGroup(TyperGroup):
    """All commands. Ctrl-C ends each in a sentence; that nobody reads what it prints, such as its
    help, is no mistake."""

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
    except SystemExit as end:  # rich's, of a page of help
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        raise typer.Exit from None


app = typer.Typer(
    cls=CommandGroup,
    help="Train language models that decide for themselves when to think, act and answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
serve_app = typer.Typer(help="Serve what agents use over HTTP.", no_args_is_help=True)
app.add_typer(serve_app, name="serve")

RecipeArgument = Annotated[str, typer.Argument(help="A shipped recipe or the path of a YAML file.")]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings to change, as in seed=7 or stages.rl2.steps=3."
    ),
]
AgentOverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Keys of its recipe to change, as in engine=local."
    ),
]
OutOption = Annotated[Path, typer.Option("--out", help="The folder to write.")]
IndexOption = Annotated[
    Path | None, typer.Option(help="Search this index instead of the run's own.")
]
SearchUrlOption = Annotated[str | None, typer.Option(help="Search with this server instead.")]
DialectOption = Annotated[str | None, typer.Option(help="The dialect of a bare checkpoint.")]
DeviceOption = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where the model runs.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="At most this many of them.")]


def _allow_names(context: typer.Context, names: list[str] | None) -> list[str] | None:
    """Allow it until the command ends, whatever the command loads."""
    context.with_resource(allow_permissions(names or ()))
    return names


AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        callback=_allow_names,
        help=f"What a folder of others may do, remembered for it: {', '.join(PERMISSIONS)}.",
    ),
]


def require_empty_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty: choose another folder with --out.")
    require_writable(out)


@contextmanager
def announce_imports() -> Iterator[None]:
    """Show during the imports of a command that runs a model that they take seconds."""
    console, message = CleanConsole(stderr=True), "Loading torch and transformers ..."
    if "torch" in sys.modules:
        yield
    elif is_live(console):
        with console.status(message):
            yield
    else:
        print_line(message, file=sys.stderr)
        yield
