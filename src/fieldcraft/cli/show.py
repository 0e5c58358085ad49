"""The commands show and compare: what a run did, and several runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fieldcraft.cli.app import Allow, Limit, app, loading
from fieldcraft.data.steps_io import as_trajectory, read_demonstrations
from fieldcraft.evals.tables import detail_tables, pairwise_table, results_table
from fieldcraft.records.files import refuse_unwritable
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs.folder import RunFolder, find_run
from fieldcraft.terminal.console import CleanConsole, say
from fieldcraft.terminal.trajectories import (
    print_mask,
    print_trajectory,
    print_trajectory_list,
)
from fieldcraft.types import Author, Status, Trajectory, UserError

# By number: the position in the file of its evaluation, whatever else a list leaves out.
Numbered = Mapping[int, Trajectory]


@dataclass(frozen=True)
class Filter:
    """Filter of trajectories; None asks for nothing."""

    right: bool | None
    split: str | None
    status: Status | None
    calls: int | None
    known: bool | None

    def __call__(self, trajectory: Trajectory) -> bool:
        meta = trajectory.task.meta
        pairs = (
            (self.right, trajectory.right),
            (self.split, meta.get("split")),
            (self.status, trajectory.status),
            (self.calls, trajectory.executed_calls),
            (self.known, trajectory.task.is_known),
        )
        return all(wish is None or wish == found for wish, found in pairs)


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or a file of trajectories.")],
    stage: Annotated[str | None, typer.Option(help="By default the last one evaluated.")] = None,
    right: Annotated[
        bool | None, typer.Option("--right/--wrong", help="Only right or only wrong answers.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only questions of this split.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only those that ended so.")] = None,
    calls: Annotated[int | None, typer.Option(min=0, help="Only with so many calls.")] = None,
    known: Annotated[
        bool | None,
        typer.Option("--known/--unknown", help="Only questions that the model knows, or does not."),
    ] = None,
    limit: Limit = None,
    number: Annotated[
        int | None, typer.Option(min=0, help="The one with this number in the list, in full.")
    ] = None,
    mask: Annotated[
        bool, typer.Option("--mask", help="Its tokens, and which of them the stage trains.")
    ] = False,
    html: Annotated[bool, typer.Option("--html", help="Print where the report is.")] = False,
    allow: Allow = None,
) -> None:
    """Show trajectories of a run's evaluations: a list, or one in full."""
    if run.is_file():
        _show_file(run, Filter(right, split, status, calls, known), limit, number)
        return
    folder = find_run(run)
    if html:
        if not folder.report_html.exists():
            raise UserError(f"{run} has no report yet: let 'fieldcraft run' resume it.")
        say(folder.report_html)
        return
    console = CleanConsole()
    wanted = Filter(right, split, status, calls, known)
    name = ""
    everything: Callable[[], Iterable[tuple[int, Trajectory]]]
    if folder.recipe.collect is not None:
        if mask or stage is not None:
            raise UserError(f"{run} holds demonstrations, which no stage has trained on yet.")
        kept, rejected = _collected(folder)
        shown: Mapping[int, Trajectory] = {**kept, **rejected}
        if number is None:  # a list is of one kind; why an attempt was rejected is in its record
            shown = rejected if right is False else kept
        everything = shown.items
        wanted = replace(wanted, right=None)
    else:
        name = folder.evaluated(stage)
        evaluation = folder.evaluation(name)

        def everything() -> Iterable[tuple[int, Trajectory]]:
            return enumerate(evaluation.each())

    found = ((at, trajectory) for at, trajectory in everything() if wanted(trajectory))
    if number is None and not mask:
        listed = dict(islice(found, limit))
        if not listed:
            _check_split(split, everything())
        print_trajectory_list(listed, console)
        return
    chosen = _one(number, found)
    if chosen is None:
        _check_split(split, everything())
        raise _no_trajectory(number, dict(everything()), wanted)
    if mask:
        _print_mask(folder, name, chosen, console)
    else:
        print_trajectory(chosen, console)


def _show_file(path: Path, wanted: Filter, limit: int | None, number: int | None) -> None:
    """Show trajectories that are in no evaluation, such as those of a branch."""
    console = CleanConsole()
    everything = dict(enumerate(read_trajectories(path)))
    listed = {at: trajectory for at, trajectory in everything.items() if wanted(trajectory)}
    if number is None:
        print_trajectory_list(dict(islice(listed.items(), limit)), console)
        return
    if number not in listed:
        raise _no_trajectory(number, everything, wanted)
    print_trajectory(listed[number], console)


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Runs, or stages of them; the first is the baseline.")
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("compared.html"),
    allow: Allow = None,
) -> None:
    """Compare runs side by side: a page with their evaluations, curves and answers to each
    question."""
    from fieldcraft.runs.comparing import compare_runs

    if out.is_dir():
        raise UserError(f"{out} is a folder: give --out the name of a page in it.")
    refuse_unwritable(out.parent)
    report = compare_runs(runs, out)
    console = CleanConsole()
    console.print(results_table(report["evals"], {}), *detail_tables(report["evals"]))
    if report["pairwise"]:
        console.print(pairwise_table(report["pairwise"]))
    else:
        say("The runs were asked different questions, so no answers are compared.")
    say(out)


def _one(number: int | None, found: Iterable[tuple[int, Trajectory]]) -> Trajectory | None:
    """Return the trajectory of a number, or the first one; no more is read."""
    return next((trajectory for at, trajectory in found if number in (None, at)), None)


def _no_trajectory(number: int | None, everything: Numbered, wanted: Filter) -> UserError:
    """Return the error for a number that has no trajectory."""
    left = [at for at, trajectory in everything.items() if wanted(trajectory)]
    if number is None or not left:
        return UserError("there is no such trajectory: leave out a filter.")
    if number not in everything:
        last = len(everything) - 1
        return UserError(f"there is no trajectory {number}: give --number one of 0 to {last}.")
    return UserError(
        f"trajectory {number} is not among those that the filters leave: leave them out, or"
        f" give --number another one, such as {left[0]}."
    )


def _check_split(split: str | None, everything: Iterable[tuple[int, Trajectory]]) -> None:
    """Raise UserError for a split that no question is of."""
    splits = {str(t.task.meta["split"]) for _, t in everything if "split" in t.task.meta}
    if split is not None and split not in splits:
        have = f"give one of {', '.join(sorted(splits))}" if splits else "leave out --split"
        raise UserError(f"no question is of the split '{split}': {have}.")


def _print_mask(run: RunFolder, stage: str, trajectory: Trajectory, console: Console) -> None:
    with loading():
        from fieldcraft.train.model import load_tokenizer

    settings = run.recipe.stages.get(stage)
    trained = settings.trained_authors if settings else ("policy",)
    tokenizer = load_tokenizer(run.model(stage if settings else "start"))
    print_mask(trajectory, tokenizer, {Author(author) for author in trained}, console)


def _collected(run: RunFolder) -> tuple[Numbered, Numbered]:
    """Return the demonstrations that were kept, and rejected attempts, numbered one after the
    other."""
    files = [run.collected / f"{name}.jsonl" for name in ("demonstrations", "rejected")]
    if not all(file.exists() for file in files):
        raise UserError(f"{run.path} has collected nothing yet: let 'fieldcraft run' resume it.")
    kept, rejected = ([as_trajectory(*read) for read in read_demonstrations(f)] for f in files)
    return dict(enumerate(kept)), dict(enumerate(rejected, start=len(kept)))
