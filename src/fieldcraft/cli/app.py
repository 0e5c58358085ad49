"""Command-line application, arguments shared by commands, and former options.

A command exits with a message that contains the new name of a former option, or with advice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from fieldcraft.config.sections import JudgeConfig
from fieldcraft.config.url_secrets import require_no_secret
from fieldcraft.config.validation_errors import describe_validation_error
from fieldcraft.recipes.consent import allow_permissions
from fieldcraft.recipes.permissions import PERMISSIONS
from fieldcraft.records.files import require_folder_name, require_writable
from fieldcraft.records.reading import RecipeKeyError
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
        with _handle_interrupts(), _raise_usage_errors():
            return super().make_context(*arguments, **settings)

    def invoke(self, *arguments: Any, **settings: Any) -> Any:
        with _handle_interrupts(), _raise_usage_errors():
            return super().invoke(*arguments, **settings)


@contextmanager
def _handle_interrupts() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        print_line("fieldcraft: stopped.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED_STATUS) from None


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an error is Ctrl-C, or was raised because of it: Python replaces one in
    `__set_name__` of a class that is being imported."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ if error.__suppress_context__ else error.__context__
    return error is not None


@contextmanager
def _raise_usage_errors() -> Iterator[None]:
    """Replace the error for a former option, and exit normally after a closed pipe."""
    try:
        yield
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
        metavar="KEY=VALUE",
        help="Keys to change, for example seed=7 world.people=60 stages.rl2.steps=3.",
    ),
]
AgentOverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Keys of its recipe to change, for example engine=local."
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
FileMaxLeftOutOption = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="Maximum share of unreadable records of a file.", show_default="0.1"
    ),
]


TemperatureOption = Annotated[
    float | None, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")
]
TopKOption = Annotated[
    int | None, typer.Option(min=0, help="Number of likeliest tokens to sample from; 0 is all.")
]
TopPOption = Annotated[
    float | None,
    typer.Option(help="Cumulative probability of the likeliest tokens to sample from."),
]
MinPOption = Annotated[
    float | None,
    typer.Option(help="Minimum probability of a token, relative to the likeliest one."),
]
SamplingOption = Annotated[
    Literal["recipe", "model"] | None,
    typer.Option(help="Source of the sampling settings that are not given as options."),
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


def make_judge_settings(url: str | None, model: str | None, votes: int | None) -> JudgeConfig:
    """Return the settings of a judge from the options --judge-url, --judge-model and --judge-votes;
    None is the default. Raises UserError for an invalid value, and ExposedSecretError."""
    require_no_secret("--judge-url", url)
    try:
        votes_key = {} if votes is None else {"votes": votes}
        return JudgeConfig.model_validate({"url": url, "model": model, **votes_key})
    except ValidationError as error:
        _, clause, path = describe_validation_error(error)
        raise UserError(f"--judge-{path[0]} is wrong: {clause}.") from error


def collect_sampling_keys(
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    sampling: str | None,
) -> dict[str, Any]:
    """Return the keys of `SamplingConfig` that the user set."""
    numbers = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    keys = {**numbers, "sampling": sampling}
    return {key: value for key, value in keys.items() if value is not None}


def require_empty_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty: choose another folder with --out.")
    require_folder_name(out)
    require_writable(out)


def require_new_file(out: Path) -> None:
    """Raise UserError for a file to write that exists: it may be a source of the command."""
    if out.exists():
        raise UserError(f"{out} exists: choose another file with --out.")


@contextmanager
def advise_options(**advice: str) -> Iterator[None]:
    """Raise errors about a file with advice for this command: for each recipe key that a sentence
    would name, what to give instead. All such commands have the option --max-left-out."""
    try:
        yield
    except RecipeKeyError as error:
        options = {"max_left_out": f", or allow it with --max-left-out {error.value}", **advice}
        raise UserError(f"{error.problem}{options[error.key]}.") from error


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


# -- former options ----------------------------------------------------------------------------


# Maps a command to the old and new names of its options.
RENAMED_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "show": {"--right": "--correct", "--wrong": "--incorrect", "--number": "--index"},
    "branch": {"--trajectory": "--index", "--training": "--from-training"},
    "serve sandbox": {"--concurrent": "--concurrency", "--waive": "--allow-missing-layer"},
    "serve agent": {
        "--seconds": "--timeout",
        "--grace": "--shutdown-grace",
        "--record": "--log-folder",
    },
    "studio": {"--sample": "--allow-sampling"},
    "view": {"--sample": "--allow-sampling"},
    "world": {"--model": "--with-model", "--recipe": "--settings-from"},
    "index": {"--approximate": "--hnsw"},
}

# Maps a command to its removed options, and these to the rest of the message.
_NO_TIMES = (
    "was for times, which plan no longer estimates: leave it out, and measure a few steps of the"
    " run (`seconds` in metrics.jsonl)."
)
REMOVED_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "plan": {
        "--mean-tokens": _NO_TIMES,
        "--tokens": _NO_TIMES,
        "--completion-share": _NO_TIMES,
        "--written": _NO_TIMES,
        "--tool-seconds": _NO_TIMES,
    },
}


def describe_former_option(command: str, option: str) -> str | None:
    """Return the message for a renamed or removed option; None for other options."""
    if name := RENAMED_OPTIONS.get(command, {}).get(option):
        return f"{option} is now called {name}."
    advice = REMOVED_OPTIONS.get(command, {}).get(option)
    return None if advice is None else f"{option} {advice}"
