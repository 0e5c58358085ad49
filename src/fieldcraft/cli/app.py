"""The command line's application, and the arguments that commands share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from fieldcraft.recipes.asks import ASKS
from fieldcraft.recipes.consent import allowing
from fieldcraft.records.files import refuse_unwritable
from fieldcraft.terminal.console import CleanConsole, say
from fieldcraft.terminal.progress import is_live
from fieldcraft.types import UserError

INTERRUPTED = 130  # the status after Ctrl-C


class Commands(TyperGroup):
    """All commands. Ctrl-C ends each in a sentence; that nobody reads what it prints, such as its
    help, is no mistake."""

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        with _ending():
            return super().make_context(*arguments, **settings)

    def invoke(self, *arguments: Any, **settings: Any) -> Any:
        with _ending():
            return super().invoke(*arguments, **settings)


@contextmanager
def _ending() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say("fieldcraft: stopped.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except SystemExit as end:  # rich's, of a page of help
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        raise typer.Exit from None


app = typer.Typer(
    cls=Commands,
    help="Train language models that decide for themselves when to think, act and answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
serve_app = typer.Typer(help="Serve what agents use over HTTP.", no_args_is_help=True)
app.add_typer(serve_app, name="serve")

RecipeName = Annotated[str, typer.Argument(help="A shipped recipe or the path of a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings to change, as in seed=7 or stages.rl2.steps=3."
    ),
]
AgentKeys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Keys of its recipe to change, as in engine=local."
    ),
]
Out = Annotated[Path, typer.Option("--out", help="The folder to write.")]
Index = Annotated[Path | None, typer.Option(help="Search this index instead of the run's own.")]
SearchUrl = Annotated[str | None, typer.Option(help="Search with this server instead.")]
Dialect = Annotated[str | None, typer.Option(help="The dialect of a bare checkpoint.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where the model runs.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most this many of them.")]


def _allow(context: typer.Context, names: list[str] | None) -> list[str] | None:
    """Allow it until the command ends, whatever the command loads."""
    context.with_resource(allowing(names or ()))
    return names


Allow = Annotated[
    list[str] | None,
    typer.Option(
        callback=_allow,
        help=f"What a folder of others may do, remembered for it: {', '.join(ASKS)}.",
    ),
]


def refuse_used(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty: choose another folder with --out.")
    refuse_unwritable(out)


@contextmanager
def loading() -> Iterator[None]:
    """Show during the imports of a command that runs a model that they take seconds."""
    console, message = CleanConsole(stderr=True), "Loading torch and transformers ..."
    if "torch" in sys.modules:
        yield
    elif is_live(console):
        with console.status(message):
            yield
    else:
        say(message, file=sys.stderr)
        yield
