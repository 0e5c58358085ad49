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

from fieldcraft.cli.app import (
    STOPPED,
    Overrides,
    RecipeName,
    app,
)
from fieldcraft.config.recipe import Recipe
from fieldcraft.evals.tables import comparisons_table, results_table, seeds_table, tool_table
from fieldcraft.recipes.loading import load_recipe, shipped
from fieldcraft.records.events import Events, write_metrics
from fieldcraft.records.files import refuse_unwritable
from fieldcraft.records.reading import MAKE_ANEW, read_json, reading
from fieldcraft.runs.folder import RunFolder, find_run, open_run, refuse_other
from fieldcraft.terminal.progress import TerminalSink
from fieldcraft.terminal.trajectories import (
    print_collection,
)


@app.command()
def run(
    recipe: RecipeName,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder, by default runs/RECIPE[-seedN].")
    ] = None,
) -> None:
    """Every stage of a recipe; what is done already is skipped."""
    settings = load_recipe(recipe, overrides or [])
    seed = f"-seed{settings.seed}" if settings.seed else ""
    folder = out or Path("runs", f"{settings.recipe}{seed}")
    console = Console()
    if settings.collect is not None:
        _collect(settings, folder, console)
        return
    if RunFolder(folder, settings).done:
        done = open_run(folder, settings)
        with reading(done.report_json, done.report_advice):
            tables = _tables(done.read_report())
    else:
        refuse_unwritable(folder)
        if not (folder / "recipe.json").exists():
            refuse_other(folder)
            _look_first(settings)
        try:
            tables = _tables(_execute(settings, folder, console))
        except KeyboardInterrupt:
            print(STOPPED, file=sys.stderr)
            raise typer.Exit(130) from None
    console.print(*tables)
    one = folder / f"seed-{settings.seeds[0]}" if settings.seeds else folder
    print(f"{folder / 'report.json'}\n{folder / 'report.html'}")
    print(f"fieldcraft ask --model {shlex.quote(str(one))} {shlex.quote(_question(one))}")


def _tables(report: dict[str, Any]) -> list[Table]:
    """What a report shows in the terminal: of one run, or of several seeds."""
    if "rows" in report:
        compared = report["comparisons"]
        return [seeds_table(report["rows"]), *([comparisons_table(compared)] if compared else [])]
    seconds = {stage["name"]: stage["seconds"] for stage in report["stages"]}
    return [results_table(report["evals"], seconds), tool_table(report["evals"])]


def _execute(settings: Recipe, folder: Path, console: Console) -> dict[str, Any]:
    """One run, or one for every seed of the recipe."""
    if settings.seeds:
        from fieldcraft.runs.seeds import sweep

        return sweep(settings, folder, console)
    from fieldcraft.runs.run import run_recipe

    return run_recipe(settings, folder, Events([write_metrics, TerminalSink(console)]))


def _collect(settings: Recipe, folder: Path, console: Console) -> None:
    """A run that has a teacher and no stages."""
    if RunFolder(folder, settings).done:
        open_run(folder, settings)
    else:
        refuse_unwritable(folder)
        from fieldcraft.runs.collect import collect

        try:
            collect(settings, folder, Events([TerminalSink(console)]))
        except KeyboardInterrupt:
            print(STOPPED, file=sys.stderr)
            raise typer.Exit(130) from None
    summary = folder / "collect" / "summary.json"
    with reading(summary, MAKE_ANEW):
        print_collection(read_json(summary, dict[str, Any], MAKE_ANEW), console)
    for name in ("collect/demonstrations.jsonl", "collect/pairs.jsonl", "report.html"):
        print(folder / name)
    print(f"fieldcraft show {shlex.quote(str(folder))}")


def _look_first(recipe: Recipe) -> None:
    """Print everything that would stop the run, and exit with 2 if there is something."""
    from fieldcraft.runs.check import Unsound, refuse_unsound

    try:
        refuse_unsound(recipe)
    except Unsound as error:
        _refuse(error.problems)


def _refuse(problems: Sequence[str]) -> None:
    """Print every problem, and exit with 2 if there is one."""
    for problem in problems:
        print(f"fieldcraft: {problem}", file=sys.stderr)
    if problems:
        raise typer.Exit(2)


def _question(run: Path) -> str:
    """A question of the run's last evaluation, to ask next."""
    folder = find_run(run)
    trajectories, _ = folder.evaluation(folder.evaluations()[-1]).read()
    return trajectories[0].task.question


@app.command()
def check(recipe: RecipeName, overrides: Overrides = None) -> None:
    """What would go wrong with a recipe, before it costs anything."""
    from fieldcraft.runs.check import check_recipe

    settings = load_recipe(recipe, overrides or [])
    console = Console()

    def report(name: str, notes: Sequence[str], problems: Sequence[str]) -> None:
        mark = Text("wrong ", "red") if problems else Text("fine  ", "green")
        console.print(mark + Text(f"{name}  ") + Text("; ".join(notes), "dim"), soft_wrap=True)

    _refuse(check_recipe(settings, Path.cwd(), report))


@app.command()
def recipes() -> None:
    """The recipes that come with fieldcraft."""
    table = Table.grid(padding=(0, 2))
    for name in shipped():
        text = (resources.files("fieldcraft.recipes") / f"{name}.yaml").read_text("utf-8")
        comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
        first = " ".join(line.strip("# ") for line in comment).partition(". ")[0].rstrip(".")
        table.add_row(Text(name, "bold"), Text(first))
    Console().print(table)
