"""Commands about recorded runs: show, compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fieldcraft.cli.app import (
    AllowOption,
    LimitOption,
    StageOption,
    announce_imports,
    app,
    require_new_file,
)
from fieldcraft.cli.suites import are_suite_results, compare_suite_results
from fieldcraft.data.steps_io import make_untokenised_trajectory, read_demonstrations
from fieldcraft.evaluation.tables import (
    build_detail_tables,
    build_pairwise_table,
    build_results_table,
)
from fieldcraft.records.files import require_writable
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs.folder import RunFolder, find_run
from fieldcraft.terminal.console import CleanConsole, print_line
from fieldcraft.terminal.trajectory_text import (
    print_mask,
    print_trajectory,
    print_trajectory_list,
)
from fieldcraft.types import Author, Status, Trajectory, UserError

# Keyed by the position in the file of the evaluation, regardless of filters.
IndexedTrajectories = Mapping[int, Trajectory]


@dataclass(frozen=True)
class TrajectoryFilter:
    """Filter of trajectories; None accepts all values."""

    correct: bool | None
    split: str | None
    status: Status | None
    calls: int | None
    known: bool | None

    def __call__(self, trajectory: Trajectory) -> bool:
        meta = trajectory.task.meta
        pairs = (
            (self.correct, trajectory.is_correct),
            (self.split, str(meta.get("split"))),
            (self.status, trajectory.status),
            (self.calls, trajectory.num_executed_calls),
            (self.known, trajectory.task.is_known),
        )
        return all(expected is None or expected == found for expected, found in pairs)


NO_FILTER = TrajectoryFilter(None, None, None, None, None)


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or file of trajectories.")],
    stage: StageOption = None,
    correct: Annotated[
        bool | None,
        typer.Option("--correct/--incorrect", help="Only correct or only incorrect answers."),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only questions of this split.")] = None,
    status: Annotated[
        Status | None, typer.Option(help="Only trajectories with this status.")
    ] = None,
    calls: Annotated[
        int | None, typer.Option(min=0, help="Only trajectories with this number of calls.")
    ] = None,
    known: Annotated[
        bool | None,
        typer.Option("--known/--unknown", help="Only known or only unknown questions."),
    ] = None,
    limit: LimitOption = None,
    index: Annotated[
        int | None, typer.Option(min=0, help="Show the trajectory at this index in full.")
    ] = None,
    mask: Annotated[
        bool, typer.Option("--mask", help="Show the tokens, and mark the trained ones.")
    ] = False,
    html: Annotated[bool, typer.Option("--html", help="Print the path of the report.")] = False,
    allow: AllowOption = None,
) -> None:
    """Show trajectories of a run's evaluations: a list, or one in full."""
    trajectory_filter = TrajectoryFilter(correct, split, status, calls, known)
    if limit is not None and (index is not None or mask):
        raise UserError("--limit is for a list: leave it out to show one trajectory in full.")
    if run.is_file():
        if mask or html or stage is not None:
            raise UserError(
                "a file of trajectories has no stages, no masks and no report: leave out --stage,"
                " --mask and --html, or name the folder of its run."
            )
        _show_file(run, trajectory_filter, limit, index)
        return
    folder = find_run(run)
    if html:
        if mask or (stage, limit, index) != (None,) * 3 or trajectory_filter != NO_FILTER:
            raise UserError("--html prints the path of a report: leave out the other options.")
        if not folder.report_html.exists():
            raise UserError(f"{run} has no report yet: resume it with 'fieldcraft run'.")
        print_line(folder.report_html)
        return
    console = CleanConsole()
    name = ""
    iterate_all: Callable[[], Iterable[tuple[int, Trajectory]]]
    if folder.recipe.collect is not None:
        if mask or stage is not None:
            raise UserError(f"{run} contains only demonstrations: remove --mask and --stage.")
        accepted, rejected = _read_attempts(folder)
        if correct is None and index is not None:
            iterate_all = {**accepted, **rejected}.items
        else:  # a list has one kind; records contain the reasons for rejection
            iterate_all = (rejected if correct is False else accepted).items
        trajectory_filter = replace(trajectory_filter, correct=None)
    else:
        name = folder.resolve_evaluation(stage)
        evaluation = folder.evaluation(name)

        def iterate_all() -> Iterable[tuple[int, Trajectory]]:
            return enumerate(evaluation.iterate())

    found = ((i, trajectory) for i, trajectory in iterate_all() if trajectory_filter(trajectory))
    if index is None and not mask:
        listed = dict(islice(found, limit))
        if not listed:
            _require_split(split, iterate_all())
        print_trajectory_list(listed, console)
        return
    chosen = _find_by_index(index, found)
    if chosen is None:
        _require_split(split, iterate_all())
        raise _missing_trajectory_error(index, dict(iterate_all()), trajectory_filter)
    if mask:
        _print_mask(folder, name, chosen, console)
    else:
        print_trajectory(chosen, console)


def _show_file(
    path: Path, trajectory_filter: TrajectoryFilter, limit: int | None, index: int | None
) -> None:
    """Show trajectories of a file outside any evaluation, such as branch samples."""
    console = CleanConsole()
    indexed = dict(enumerate(read_trajectories(path)))
    if not indexed:
        raise UserError(f"{path} holds no trajectories: give the folder of a run.")
    listed = {i: trajectory for i, trajectory in indexed.items() if trajectory_filter(trajectory)}
    if index is None:
        print_trajectory_list(dict(islice(listed.items(), limit)), console)
        return
    if index not in listed:
        raise _missing_trajectory_error(index, indexed, trajectory_filter)
    print_trajectory(listed[index], console)


@app.command()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Runs or stages, or results of suites; the first is the baseline."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Page to write, by default compared.html; for suites, a JSON file."),
    ] = None,
    allow: AllowOption = None,
) -> None:
    """Compare runs: a page with their evaluations, curves and answers to each question.

    Results of `eval --suite` are compared benchmark by benchmark, without a page."""
    if are_suite_results(runs):
        compare_suite_results(runs, out)
        return
    out = out or Path("compared.html")
    from fieldcraft.runs.run_comparison import compare_runs, is_comparison_page

    if out.is_dir():
        raise UserError(f"{out} is a folder: give --out a file name in it.")
    if not is_comparison_page(out):
        require_new_file(out)
    require_writable(out.parent)
    report = compare_runs(runs, out)
    console = CleanConsole()
    console.print(build_results_table(report["evals"], {}), *build_detail_tables(report["evals"]))
    if report["pairwise"]:
        console.print(build_pairwise_table(report["pairwise"]))
    else:
        print_line("The runs have different questions, so their answers are not compared.")
    print_line(out)


def _find_by_index(index: int | None, found: Iterable[tuple[int, Trajectory]]) -> Trajectory | None:
    """Return the trajectory at an index, or the first one, without reading further."""
    return next((trajectory for i, trajectory in found if index in (None, i)), None)


def _missing_trajectory_error(
    index: int | None, indexed: IndexedTrajectories, trajectory_filter: TrajectoryFilter
) -> UserError:
    """Return the error for an index without a trajectory."""
    remaining = [i for i, trajectory in indexed.items() if trajectory_filter(trajectory)]
    if index is None or not remaining:
        return UserError("no trajectory matches the filters: remove one.")
    if index not in indexed:
        first, last = min(indexed), max(indexed)
        problem = "does not exist" if index > last else "is not one of these"
        return UserError(f"trajectory {index} {problem}: give an --index from {first} to {last}.")
    return UserError(
        f"trajectory {index} does not match the filters: remove them, or give another --index,"
        f" such as {remaining[0]}."
    )


def _require_split(split: str | None, indexed: Iterable[tuple[int, Trajectory]]) -> None:
    """Raise UserError if no question has this split."""
    splits = {str(t.task.meta["split"]) for _, t in indexed if "split" in t.task.meta}
    if split is not None and split not in splits:
        advice = f"give one of {', '.join(sorted(splits))}" if splits else "remove --split"
        raise UserError(f"no question has the split '{split}': {advice}.")


def _print_mask(run: RunFolder, stage: str, trajectory: Trajectory, console: Console) -> None:
    with announce_imports():
        from fieldcraft.train.model import load_tokenizer

    settings = run.recipe.stages.get(stage)
    trained = settings.trained_authors if settings else ("policy",)
    tokenizer = load_tokenizer(run.model(stage if settings else "start"))
    print_mask(trajectory, tokenizer, {Author(author) for author in trained}, console)


def _read_attempts(run: RunFolder) -> tuple[IndexedTrajectories, IndexedTrajectories]:
    """Return accepted demonstrations and rejected attempts; the indices of the latter follow those
    of the former."""
    files = [run.collect_folder / f"{name}.jsonl" for name in ("demonstrations", "rejected")]
    if not all(file.exists() for file in files):
        raise UserError(f"{run.path} has collected nothing yet: resume it with 'fieldcraft run'.")
    accepted, rejected = (
        [make_untokenised_trajectory(*demonstration) for demonstration in read_demonstrations(f)]
        for f in files
    )
    return dict(enumerate(accepted)), dict(enumerate(rejected, start=len(accepted)))
