"""Commands about runs: run, check, recipes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fieldcraft.cli.app import AllowOption, OverridesArgument, RecipeArgument, announce_imports, app
from fieldcraft.config.collection import CollectConfig
from fieldcraft.config.plan import makes_only_data
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rules import RUN_RULES
from fieldcraft.config.validation_errors import InvalidRecipeError
from fieldcraft.evaluation.results import build_report_tables, describe_report
from fieldcraft.recipes.files import get_default_run_folder, list_builtin_recipes
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus, write_metrics
from fieldcraft.records.files import require_writable
from fieldcraft.records.reading import RERUN_ADVICE, raise_read_errors, read_json
from fieldcraft.runs.folder import RunFolder, find_run
from fieldcraft.runs.resume import require_same_recipe
from fieldcraft.terminal.console import CleanConsole, print_line
from fieldcraft.terminal.progress import TerminalReporter
from fieldcraft.terminal.trajectory_text import print_collection
from fieldcraft.types import UserError


@app.command()
def run(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. Default: runs/RECIPE[-seedN].")
    ] = None,
    allow: AllowOption = None,
) -> None:
    """Run every stage of a recipe; finished stages are skipped."""
    folder = out or get_default_run_folder(recipe, overrides or [])
    settings = load_recipe(recipe, overrides or [], folder, RUN_RULES)
    require_same_recipe(folder, settings)
    console = CleanConsole()
    try:
        report = _execute_or_read(settings, folder, console)
    except KeyboardInterrupt:
        resume_command = ["fieldcraft", "run", recipe, *(overrides or []), "--out", str(folder)]
        print_line(
            f"fieldcraft: stopped; resume with: {shlex.join(resume_command)}", file=sys.stderr
        )
        raise typer.Exit(130) from None
    if settings.collect is not None:
        _print_collection(settings.collect, folder, console)
    elif makes_only_data(settings):
        _print_existing(folder / "select/tasks.jsonl", folder / "select/card.html")
    else:
        _print_report(settings, report, folder, console)


def _print_report(settings: Recipe, report: dict[str, Any], folder: Path, console: Console) -> None:
    sentences = [f"{sentence}\n" for sentence in describe_report(report)]
    console.print(*sentences, *build_report_tables(report))
    _print_existing(folder / "report.json", folder / "report.html")
    if not settings.stages:  # an evaluation trains no model to ask
        return
    example_run = folder / f"seed-{settings.seeds[0]}" if settings.seeds else folder
    print_line(
        f"fieldcraft ask --model {shlex.quote(str(example_run))} "
        f"{shlex.quote(_find_example_question(example_run))}"
    )


def _execute_or_read(settings: Recipe, folder: Path, console: Console) -> dict[str, Any]:
    """Execute the missing steps of one run, or of one run per seed of the recipe, and return the
    report."""
    run_folder = RunFolder(folder, settings)
    if run_folder.is_done:  # nothing is written, so the folder may be read-only
        return run_folder.read_report()
    require_writable(folder)
    # A collection asks its teacher first, and its journal has what it paid for.
    if settings.collect is None and not (folder / "recipe.json").exists():
        _check_before_run(settings)
    if settings.seeds:
        from fieldcraft.runs.seeds import run_seeds

        return run_seeds(settings, folder, console)
    with announce_imports():
        from fieldcraft.runs.run import run_recipe

    return run_recipe(settings, folder, EventBus([write_metrics, TerminalReporter(console)]))


def _print_collection(settings: CollectConfig, folder: Path, console: Console) -> None:
    summary = folder / "collect" / "summary.json"
    with raise_read_errors(summary, RERUN_ADVICE):
        print_collection(read_json(summary, dict[str, Any], RERUN_ADVICE), console)
    names = ["demonstrations.jsonl", "pairs.jsonl"]
    if settings.filters:
        names += ["filtered/demonstrations.jsonl", "filtered/card.html"]
    _print_existing(*(folder / "collect" / name for name in names), folder / "report.html")
    print_line(f"fieldcraft show {shlex.quote(str(folder))}")


def _print_existing(*paths: Path) -> None:
    """Print the paths of the files that exist: without its extension, a run has no pages."""
    for path in paths:
        if path.exists():
            print_line(path)


def _check_before_run(recipe: Recipe) -> None:
    """Print all errors that would stop the run, and exit with status 2 if there are any."""
    with announce_imports():
        from fieldcraft.runs.check import require_checked

    try:
        require_checked(recipe)
    except InvalidRecipeError as error:
        _exit_with_errors(error.errors)


def _exit_with_errors(errors: Sequence[UserError | str]) -> None:
    """Print all errors, and exit with status 2 if there are any."""
    for error in errors:
        print_line(f"fieldcraft: {error}", file=sys.stderr)
    if errors:
        raise typer.Exit(2)


def _find_example_question(run: Path) -> str:
    """Return an example question from the run's last evaluation."""
    folder = find_run(run)
    for name in folder.evaluations()[-1:]:
        for trajectory in folder.evaluation(name).iterate():
            return trajectory.task.question
    return "QUESTION"


@app.command()
def check(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    show: Annotated[
        int,
        typer.Option(
            min=0,
            help="Also print this many questions and demonstrations as the model reads them,"
            " with grades and loss masks.",
        ),
    ] = 0,
    allow: AllowOption = None,
) -> None:
    """Check a recipe for errors before it runs."""
    try:
        settings = load_recipe(recipe, overrides or [], rules=RUN_RULES)
    except InvalidRecipeError as error:
        _exit_with_errors(error.errors)
    console = CleanConsole()
    with announce_imports():
        from fieldcraft.runs.check import check_recipe
        from fieldcraft.runs.examples import ExampleSource
        from fieldcraft.runs.sources import CheckWarning
        from fieldcraft.terminal.examples import print_examples

    def examine(source: ExampleSource) -> None:
        print_examples(source.take(show), console)

    def report(name: str, notes: Sequence[str], errors: Sequence[str]) -> None:
        warnings = [note for note in notes if isinstance(note, CheckWarning)]
        mark = Text("error", "red") if errors else Text("ok", "green")
        mark = Text("warn", "yellow") if warnings and not errors else mark
        line = Table.grid(padding=(0, 1))
        line.add_column(width=5)
        plain_notes = [note for note in notes if note not in warnings]
        line.add_row(mark, Text(f"{name}  ") + Text("; ".join(plain_notes), "dim", overflow="fold"))
        for warning in warnings:
            line.add_row(Text(), Text(warning, "yellow", overflow="fold"))
        console.print(line)

    _exit_with_errors(check_recipe(settings, Path.cwd(), report, examine if show else None))


@app.command()
def recipes() -> None:
    """List the built-in recipes."""
    table = Table.grid(padding=(0, 2))
    for name in list_builtin_recipes():
        text = (resources.files("fieldcraft.recipes") / f"{name}.yaml").read_text("utf-8")
        comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
        first = " ".join(line.strip("# ") for line in comment).partition(". ")[0].rstrip(".")
        table.add_row(Text(name, "bold"), Text(first))
    CleanConsole().print(table)
