"""Comparison page of several runs: their evaluations, learning curves and trajectories."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fieldcraft.config.recipe import dump_recipe, get_stage_ancestry
from fieldcraft.evaluation.comparison import compare_with_first
from fieldcraft.evaluation.pages import PageContext, find_page_writer
from fieldcraft.evaluation.report import build_report
from fieldcraft.evaluation.results import RunComparison
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.runs.arguments import require_path
from fieldcraft.runs.folder import RunFolder, find_run
from fieldcraft.types import Trajectory, UserError

_TITLE_SEPARATOR = " beside "  # between the names of the runs in the title of a page
_MAX_HEAD_BYTES = 65536  # start of a page that contains its title


@dataclass(frozen=True, slots=True)
class ComparedEvaluation:
    """Evaluation of a run, and its name on the page."""

    label: str
    run: RunFolder
    evaluation: str


def compare_runs(run_paths: Sequence[Path], path: Path) -> dict[str, Any]:
    """Write a page that compares runs, and return the content of its tables: `evals` by name, and
    `pairwise`, which is empty if the runs have different questions.

    Args:
        run_paths: two or more of RUN, whose last evaluation is used, or RUN/STAGE.
        path: path of the page.

    Raises:
        UserError: fewer than two runs, a duplicate, or one without an evaluation; or no extension
            that writes pages.
    """
    if (write_page := find_page_writer("report")) is None:
        raise UserError("no page can be written, because fieldcraft.extensions.studio is missing.")
    compared = _find_evaluations(run_paths)
    samples = {entry.label: entry.run.evaluation(entry.evaluation).read() for entry in compared}
    links = {entry.label: _link_report(entry.run, path) for entry in compared}
    report = _build_comparison(compared, samples, links)
    trajectories = {label: graded for label, (graded, _) in samples.items()}
    commands = {entry.label: _make_show_command(entry) for entry in compared}
    write_page(report, _read_curves(compared), trajectories, path, PageContext(commands=commands))
    return report


def is_comparison_page(path: Path) -> bool:
    """Return whether a file is a page that `compare_runs` wrote, judging by its title."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(_MAX_HEAD_BYTES)
    title = start.partition(b"<title>")[2].partition(b"</title>")[0]
    return start.startswith(b"<!DOCTYPE html") and _TITLE_SEPARATOR.encode() in title


def compare(*runs: Path | str) -> RunComparison:
    """Compare the last evaluations of runs, or those of RUN/STAGE, with the first one. Return
    `evals` by name, and `pairwise`, which is empty if the runs have different questions.

    Raises UserError like `compare_runs`, which also writes a page.
    """
    compared = _find_evaluations([require_path(run, "run") for run in runs])
    samples = {entry.label: entry.run.evaluation(entry.evaluation).read() for entry in compared}
    return RunComparison(_build_comparison(compared, samples, {}))


def _build_comparison(
    compared: Sequence[ComparedEvaluation],
    samples: Mapping[str, tuple[list[Trajectory], float]],
    links: Mapping[str, str | None],
) -> dict[str, Any]:
    """Return the comparison as a report. `samples` maps labels to trajectories and seconds, and
    `links` to the reports of the runs."""
    trajectories_by_label = {label: trajectories for label, (trajectories, _) in samples.items()}
    split = compared[0].run.recipe.evaluation.leading_split
    return build_report(
        recipe=_TITLE_SEPARATOR.join(trajectories_by_label),
        seed=compared[0].run.recipe.seed,
        device=compared[0].run.recipe.device,
        stages=[],
        evals={
            label: summarise_evaluation(trajectories, split) | {"seconds": seconds}
            for label, (trajectories, seconds) in samples.items()
        },
        comparisons=compare_with_first(trajectories_by_label, split)
        if _have_same_questions(trajectories_by_label)
        else [],
        extra={
            "runs": dict(links),
            "config": {entry.label: dump_recipe(entry.run.recipe) for entry in compared},
        },
    )


def _find_evaluations(run_paths: Sequence[Path]) -> list[ComparedEvaluation]:
    if len(run_paths) < 2:
        raise UserError("there is nothing to compare with: give the folders of two runs or more.")
    found = [_find_evaluation(path) for path in run_paths]
    names = [f"{run.path.resolve().name}/{evaluation}" for run, evaluation in found]
    if len(set(names)) < len(names):  # runs with the same name in different folders
        names = [f"{run.path}/{evaluation}" for run, evaluation in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name} is given twice: give two runs, or two stages of one.")
    return [
        ComparedEvaluation(name, *run_and_name)
        for name, run_and_name in zip(names, found, strict=True)
    ]


def _find_evaluation(path: Path) -> tuple[RunFolder, str]:
    """Return the run, and the name of the requested evaluation."""
    parent = path.absolute().parent
    if not (path / "recipe.json").exists() and (parent / "recipe.json").exists():
        run, name = find_run(path.parent), path.absolute().name
    else:
        run = find_run(path)
        name = next(reversed(run.evaluations()), "")
    if name not in run.evaluations():
        available = ", ".join(run.evaluations()) or "none yet"
        raise UserError(f"{path} has no evaluation to show: the run has {available}.")
    return run, name


def _have_same_questions(samples: Mapping[str, Sequence[Trajectory]]) -> bool:
    """Return whether the runs asked the same questions. Ids alone may be numbers of lines, which
    the questions of every file have."""
    questions = {tuple((t.task.id, t.task.question) for t in part) for part in samples.values()}
    return len(questions) == 1


def _read_curves(compared: Sequence[ComparedEvaluation]) -> dict[str, list[dict[str, Any]]]:
    """Return the metric rows of the stages in the lineage of each model."""
    curves = {
        f"{entry.label.removesuffix(entry.evaluation)}{stage}": MetricsLog(
            entry.run.stage(stage).metrics
        ).read_rows()
        for entry in compared
        for stage in get_stage_ancestry(entry.run.recipe, entry.evaluation)
    }
    return {name: rows for name, rows in curves.items() if rows}


def _link_report(run: RunFolder, page: Path) -> str | None:
    """Return the address of a run's own report, relative to the page."""
    if not run.report_html.exists():
        return None
    return quote(Path(os.path.relpath(run.report_html, page.parent)).as_posix())


def _make_show_command(entry: ComparedEvaluation) -> str:
    return shlex.join(["fieldcraft", "show", str(entry.run.path), "--stage", entry.evaluation])
