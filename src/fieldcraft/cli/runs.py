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

from fieldcraft.cli.app import Allow, Overrides, RecipeName, app, loading
from fieldcraft.config.recipe import Recipe, refuse_idle
from fieldcraft.evals.achievement import achievement
from fieldcraft.evals.broken import broken_sentences
from fieldcraft.evals.tables import (
    comparisons_table,
    detail_tables,
    results_table,
    seeds_table,
    training_table,
)
from fieldcraft.recipes.files import named_folder, shipped
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import Events, write_metrics
from fieldcraft.records.files import refuse_unwritable
from fieldcraft.records.reading import MAKE_ANEW, read_json, reading
from fieldcraft.runs.beginning import open_run, refuse_other_run
from fieldcraft.runs.folder import RunFolder, find_run
from fieldcraft.terminal.console import CleanConsole, say
from fieldcraft.terminal.figures import Figures
from fieldcraft.terminal.progress import TerminalSink
from fieldcraft.terminal.trajectories import print_collection


@app.command()
def run(
    recipe: RecipeName,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder, by default runs/RECIPE[-seedN].")
    ] = None,
    allow: Allow = None,
) -> None:
    """Run every stage of a recipe; what is done already is skipped."""
    folder = out or named_folder(recipe, overrides or [])
    settings = _load(recipe, overrides or [], folder)
    refuse_other_run(folder, settings)
    console = CleanConsole()
    try:
        if settings.collect is not None:
            _collect(settings, folder, console)
            return
        if settings.select is not None and not settings.stages:
            _select(settings, folder, console)
            return
        shown = _report(settings, folder, console)
    except KeyboardInterrupt:
        again = ["fieldcraft", "run", recipe, *(overrides or []), "--out", str(folder)]
        say(f"fieldcraft: stopped; resume with: {shlex.join(again)}", file=sys.stderr)
        raise typer.Exit(130) from None
    console.print(*shown)
    one = folder / f"seed-{settings.seeds[0]}" if settings.seeds else folder
    say(f"{folder / 'report.json'}\n{folder / 'report.html'}")
    say(f"fieldcraft ask --model {shlex.quote(str(one))} {shlex.quote(_question(one))}")


def _summary(report: dict[str, Any]) -> list[Figures | str]:
    """Return the parts of a report that the terminal shows: a sentence and the tables of one run,
    or of several seeds."""
    achieved = achievement(report)
    broken = broken_sentences(report.get("evals", {}))
    return [*(f"{line}\n" for line in (achieved, *broken) if line), *_tables(report)]


def _tables(report: dict[str, Any]) -> list[Figures]:
    if "rows" in report:
        found = [seeds_table(report["rows"])]
        if cost := training_table(report["rows"]):
            found.append(cost)
        if report["comparisons"]:
            found.append(comparisons_table(report["comparisons"]))
        return found
    seconds = {stage["name"]: stage["seconds"] for stage in report["stages"]}
    return [results_table(report["evals"], seconds), *detail_tables(report["evals"])]


def _load(recipe: str, overrides: list[str], begun: Path | None = None) -> Recipe:
    """Return a recipe that does something."""
    settings = load_recipe(recipe, overrides, begun)
    refuse_idle(settings)
    return settings


def _report(settings: Recipe, folder: Path, console: Console) -> list[Figures | str]:
    """Return the report of one run, or of one for every seed of the recipe; whatever is missing is
    done."""
    if RunFolder(folder, settings).done:
        done = open_run(folder, settings)
        with reading(done.report_json, done.report_advice):
            return _summary(done.read_report())
    refuse_unwritable(folder)
    if not (folder / "recipe.json").exists():
        _look_first(settings)
    return _summary(_execute(settings, folder, console))


def _execute(settings: Recipe, folder: Path, console: Console) -> dict[str, Any]:
    """Do what is left of a run, or of one for every seed of the recipe, and return its report."""
    if settings.seeds:
        from fieldcraft.runs.seeds import sweep

        return sweep(settings, folder, console)
    with loading():
        from fieldcraft.runs.run import run_recipe

    return run_recipe(settings, folder, Events([write_metrics, TerminalSink(console)]))


def _collect(settings: Recipe, folder: Path, console: Console) -> None:
    """Run a recipe that has a teacher and no stages."""
    if RunFolder(folder, settings).done:
        open_run(folder, settings)
    else:
        refuse_unwritable(folder)
        with loading():
            from fieldcraft.runs.collect import collect

        collect(settings, folder, Events([TerminalSink(console)]))
    summary = folder / "collect" / "summary.json"
    with reading(summary, MAKE_ANEW):
        print_collection(read_json(summary, dict[str, Any], MAKE_ANEW), console)
    assert settings.collect is not None, "run sees to that"
    names = ["demonstrations.jsonl", "pairs.jsonl"]
    if settings.collect.filters:
        names += ["filtered/demonstrations.jsonl", "filtered/card.html"]
    for path in (*(folder / "collect" / name for name in names), folder / "report.html"):
        say(path)
    say(f"fieldcraft show {shlex.quote(str(folder))}")


def _select(settings: Recipe, folder: Path, console: Console) -> None:
    """Run a recipe that selects questions and has no stages."""
    if RunFolder(folder, settings).done:
        open_run(folder, settings)
    else:
        refuse_unwritable(folder)
        _look_first(settings)
        with loading():
            from fieldcraft.runs.selecting import select

        select(settings, folder, Events([TerminalSink(console)]))
    for name in ("select/tasks.jsonl", "select/card.html"):
        say(folder / name)


def _look_first(recipe: Recipe) -> None:
    """Print everything that would stop the run, and exit with 2 if there is something."""
    with loading():
        from fieldcraft.runs.check import Unsound, refuse_unsound

    try:
        refuse_unsound(recipe)
    except Unsound as error:
        _refuse(error.problems)


def _refuse(problems: Sequence[str]) -> None:
    """Print every problem, and exit with 2 if there is one."""
    for problem in problems:
        say(f"fieldcraft: {problem}", file=sys.stderr)
    if problems:
        raise typer.Exit(2)


def _question(run: Path) -> str:
    """Return a question of the run's last evaluation, to ask next."""
    folder = find_run(run)
    for name in folder.evaluations()[-1:]:
        for trajectory in folder.evaluation(name).each():
            return trajectory.task.question
    return "QUESTION"


@app.command()
def check(
    recipe: RecipeName,
    overrides: Overrides = None,
    show: Annotated[
        int,
        typer.Option(
            min=0,
            help="Also print so many questions and demonstrations, as the model reads them, as they"
            " are trained and graded.",
        ),
    ] = 0,
    allow: Allow = None,
) -> None:
    """Check what would go wrong with a recipe, before it costs anything."""
    settings = _load(recipe, overrides or [])
    console = CleanConsole()
    with loading():
        from fieldcraft.runs.check import check_recipe
        from fieldcraft.runs.examples import DataOfRun
        from fieldcraft.runs.sources import Doubt
        from fieldcraft.terminal.examples import print_examples

    def examine(data: DataOfRun) -> None:
        print_examples(data.take(show), console)

    def report(name: str, notes: Sequence[str], problems: Sequence[str]) -> None:
        doubts = [note for note in notes if isinstance(note, Doubt)]
        mark = Text("wrong", "red") if problems else Text("fine", "green")
        mark = Text("look", "yellow") if doubts and not problems else mark
        line = Table.grid(padding=(0, 1))
        line.add_column(width=5)
        plain = [note for note in notes if note not in doubts]
        line.add_row(mark, Text(f"{name}  ") + Text("; ".join(plain), "dim", overflow="fold"))
        for doubt in doubts:
            line.add_row(Text(), Text(doubt, "yellow", overflow="fold"))
        console.print(line)

    _refuse(check_recipe(settings, Path.cwd(), report, examine if show else None))


@app.command()
def recipes() -> None:
    """List the recipes that come with fieldcraft."""
    table = Table.grid(padding=(0, 2))
    for name in shipped():
        text = (resources.files("fieldcraft.recipes") / f"{name}.yaml").read_text("utf-8")
        comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
        first = " ".join(line.strip("# ") for line in comment).partition(". ")[0].rstrip(".")
        table.add_row(Text(name, "bold"), Text(first))
    CleanConsole().print(table)
