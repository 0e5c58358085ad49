"""The command show: trajectories in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fieldcraft.cli.app import (
    Limit,
    app,
)
from fieldcraft.data.steps_io import as_trajectory, read_demonstrations
from fieldcraft.runs.folder import RunFolder, find_run
from fieldcraft.terminal.trajectories import (
    print_mask,
    print_trajectory,
    print_trajectory_list,
)
from fieldcraft.types import Author, Trajectory, UserError


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    stage: Annotated[str | None, typer.Option(help="By default the last one evaluated.")] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only wrong answers.")] = False,
    limit: Limit = None,
    number: Annotated[int | None, typer.Option(min=0, help="One of the list, in full.")] = None,
    mask: Annotated[bool, typer.Option("--mask", help="Which tokens its stage trains.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Print where the report is.")] = False,
) -> None:
    """Trajectories of a run's evaluations: a list, or one in full."""
    folder = find_run(run)
    if html:
        if not folder.report_html.exists():
            raise UserError(f"{run} has no report yet: let 'fieldcraft run' resume it.")
        print(folder.report_html)
        return
    console = Console()
    name = ""
    if folder.recipe.collect is not None:
        if mask or stage is not None:
            raise UserError(f"{run} holds demonstrations, which no stage has trained on yet.")
        found = _collected(folder, "rejected" if wrong else "demonstrations")
    else:
        name = _evaluation(folder, stage)
        found, _ = folder.evaluation(name).read()
        if wrong:
            found = [t for t in found if t.right is False]
    found = found[:limit]
    if number is not None and number >= len(found):
        raise UserError(f"there are {len(found)} trajectories to show, counted from 0.")
    if mask:
        _print_mask(folder, name, found[number or 0], console)
    elif number is not None:
        print_trajectory(found[number], console)
    else:
        print_trajectory_list(found, console)


def _print_mask(run: RunFolder, stage: str, trajectory: Trajectory, console: Console) -> None:
    from fieldcraft.train.model import load_tokenizer

    settings = run.recipe.stages.get(stage)
    trained = settings.trained_authors if settings else ("policy",)
    tokenizer = load_tokenizer(run.model(stage if settings else "start"))
    print_mask(trajectory, tokenizer, {Author(author) for author in trained}, console)


def _collected(run: RunFolder, name: str) -> list[Trajectory]:
    """Demonstrations that were kept, or rejected attempts with their reasons."""
    file = run.collected / f"{name}.jsonl"
    if not file.exists():
        raise UserError(f"{run.path} has collected nothing yet: let 'fieldcraft run' resume it.")
    return [as_trajectory(task, steps) for task, steps in read_demonstrations(file)]


def _evaluation(run: RunFolder, stage: str | None) -> str:
    """An evaluation of the run, the last one there is by default."""
    found = run.evaluations()
    if not found:
        raise UserError(f"{run.path} has no evaluation yet: let 'fieldcraft run' resume it.")
    if stage is not None and stage not in found:
        raise UserError(f"{run.path} has no evaluation of '{stage}': it has {', '.join(found)}.")
    return stage or found[-1]
