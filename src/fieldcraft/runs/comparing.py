"""Several runs on one page: their evaluations, learning curves and trajectories side by side."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fieldcraft.config.lineage import lineage
from fieldcraft.config.recipe import dump_recipe
from fieldcraft.evals.browsing import Source
from fieldcraft.evals.metrics import summarise
from fieldcraft.evals.pairwise import against_first
from fieldcraft.evals.report import build_report, write_html
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.runs.folder import RunFolder, find_run
from fieldcraft.types import Trajectory, UserError


@dataclass(frozen=True, slots=True)
class Shown:
    """An evaluation of a run, and its name on the page."""

    label: str
    run: RunFolder
    evaluation: str


def compare_runs(places: Sequence[Path], path: Path) -> dict[str, Any]:
    """Write a page that shows runs beside each other, and return what is in its tables: `evals` by
    name, and `pairwise`, which is empty where the runs were asked different questions.

    Args:
        places: two or more of RUN, whose last evaluation is taken, or RUN/STAGE.
        path: the page.

    Raises:
        UserError: there are fewer than two, one twice, or one without an evaluation.
    """
    shown = _shown(places)
    samples = {one.label: one.run.evaluation(one.evaluation).read() for one in shown}
    done = {label: trajectories for label, (trajectories, _) in samples.items()}
    split = shown[0].run.recipe.evaluation.leading
    report = build_report(
        recipe=" beside ".join(done),
        seed=shown[0].run.recipe.seed,
        device=shown[0].run.recipe.device,
        stages=[],
        evals={
            label: summarise(trajectories, split) | {"seconds": seconds}
            for label, (trajectories, seconds) in samples.items()
        },
        comparisons=against_first(done, split) if _same_questions(done) else [],
        extra={
            "runs": {one.label: _link(one.run, path) for one in shown},
            "config": {one.label: dump_recipe(one.run.recipe) for one in shown},
        },
    )
    commands = {one.label: _command(one) for one in shown}
    write_html(report, _curves(shown), done, path, Source(commands=commands))
    return report


def _shown(places: Sequence[Path]) -> list[Shown]:
    if len(places) < 2:
        raise UserError("there is nothing to compare with: give the folders of two runs or more.")
    found = [_find(place) for place in places]
    names = [f"{run.path.resolve().name}/{evaluation}" for run, evaluation in found]
    if len(set(names)) < len(names):  # runs of the same name in different folders
        names = [f"{run.path}/{evaluation}" for run, evaluation in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name} is given twice: give two runs, or two stages of one.")
    return [Shown(name, *one) for name, one in zip(names, found, strict=True)]


def _find(place: Path) -> tuple[RunFolder, str]:
    """Return the run, and the name of the evaluation that is meant."""
    above = place.absolute().parent
    if not (place / "recipe.json").exists() and (above / "recipe.json").exists():
        run, name = find_run(place.parent), place.absolute().name
    else:
        run = find_run(place)
        name = next(reversed(run.evaluations()), "")
    if name not in run.evaluations():
        have = ", ".join(run.evaluations()) or "none yet"
        raise UserError(f"{place} has no evaluation to show: the run has {have}.")
    return run, name


def _same_questions(samples: Mapping[str, Sequence[Trajectory]]) -> bool:
    return len({tuple(t.task.id for t in part) for part in samples.values()}) == 1


def _curves(shown: Sequence[Shown]) -> dict[str, list[dict[str, Any]]]:
    """Return the metric rows of the stages that each model went through."""
    curves = {
        f"{one.label.removesuffix(one.evaluation)}{stage}": MetricsLog(
            one.run.stage(stage).metrics
        ).rows()
        for one in shown
        for stage in lineage(one.run.recipe, one.evaluation)
    }
    return {name: rows for name, rows in curves.items() if rows}


def _link(run: RunFolder, page: Path) -> str | None:
    """Return the address of a run's own report, relative to the page."""
    if not run.report_html.exists():
        return None
    return quote(Path(os.path.relpath(run.report_html, page.parent)).as_posix())


def _command(one: Shown) -> str:
    return shlex.join(["fieldcraft", "show", str(one.run.path), "--stage", one.evaluation])
