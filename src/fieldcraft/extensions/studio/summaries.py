"""Summaries of runs: their progress, differences and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any

from fieldcraft.config.recipe import dump_recipe
from fieldcraft.evaluation.achievement import (
    describe_achievement,
    describe_broken_rate,
    describe_partial_run,
)
from fieldcraft.extensions.studio.run_view import RunView
from fieldcraft.records.metrics import describe_broken_rollouts, rename_summary
from fieldcraft.records.reading import advise_renaming, raise_read_errors, read_json
from fieldcraft.runs.stage_files import StageFolder
from fieldcraft.types import UserError

SUMMARY_METRICS = ("n", "em", "em_ci95", "calls_mean")  # shown by static/runs.js
MAX_VALUE_CHARS = 60  # characters of a section that is missing in another run
MISSING_VALUE = "not set"  # shown for a key that only other recipes have


def summarise_run(run: RunView) -> dict[str, Any]:
    """Return a run's stages, evaluations and notes: sentences about unreadable files."""
    notes = [run.error] if run.error else []
    recipe = run.recipe
    stages = [_summarise_stage(run, name, notes) for name in run.stages]
    summaries = _read_summaries(run, notes)
    return {
        "name": run.name,
        "path": str(run.path),
        "recipe": recipe and recipe.name,
        "seed": recipe and recipe.seed,
        "done": run.folder is not None and run.folder.report_json.exists(),
        "stages": stages,
        "evaluations": _pick_evaluation_metrics(run, summaries),
        "achieved": _read_achievement(run, summaries, notes),
        "notes": notes,
    }


def _summarise_stage(run: RunView, name: str, notes: list[str]) -> dict[str, Any]:
    assert run.recipe is not None
    settings, folder = run.recipe.stages[name], StageFolder(run.path / name)
    steps, seconds = 0, None
    try:
        rows = run.read_metrics(name)
        steps = len(rows)
        if sentence := describe_broken_rollouts(rows, name):
            notes.append(sentence)
        seconds = folder.read_record()["seconds"] if folder.is_done else None
    except UserError as error:
        notes.append(str(error))
    planned_steps = getattr(settings, "steps", None)
    return {
        "name": name,
        "type": settings.type,
        "steps": steps,
        "of": steps if folder.is_done else planned_steps,
        "done": folder.is_done,
        "seconds": seconds,
    }


def _read_summaries(run: RunView, notes: list[str]) -> dict[str, Any]:
    """Return the summaries of finished evaluations, in the order of the run."""
    summaries: dict[str, Any] = {}
    sentences: list[str | None] = []
    for path in sorted(run.path.glob("evaluations/*.json")):
        advice = f"{advise_renaming(path)} to evaluate again"
        try:
            with raise_read_errors(path, advice):
                summary = rename_summary(read_json(path, dict[str, Any], advice)["summary"])
                describe_partial_run([], {path.stem: summary})  # has all that it needs
                sentences.append(describe_broken_rate(path.stem, summary))
        except UserError as error:
            notes.append(str(error))
            continue
        summaries[path.stem] = summary
    notes += filter(None, sentences)
    return {name: summaries[name] for name in run.sort_parts(summaries)}


def _pick_evaluation_metrics(run: RunView, summaries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of evaluations: of each split, or of all questions."""
    return {
        name: {split: _pick_metrics(part) for split, part in _get_splits(run, record).items()}
        for name, record in summaries.items()
    }


def _get_splits(run: RunView, record: Mapping[str, Any]) -> Mapping[str, Any]:
    return record.get("splits") or {_name_only_split(run): record}


def _read_achievement(run: RunView, summaries: Mapping[str, Any], notes: list[str]) -> str | None:
    """Return the headline of the run's report or, if it does not exist yet, a preliminary one."""
    if run.folder is not None and run.folder.report_json.exists():
        try:
            with raise_read_errors(run.folder.report_json, run.folder.report_advice):
                return describe_achievement(run.folder.read_report())
        except UserError as error:
            notes.append(str(error))
    return describe_partial_run(run.stages, summaries)


def _name_only_split(run: RunView) -> str:
    """Return the name of the question set of a summary without splits."""
    splits = [] if run.recipe is None else list(run.recipe.evaluation.split_sizes)
    return splits[0] if len(splits) == 1 else "all"


def _pick_metrics(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part[name] for name in SUMMARY_METRICS if name in part}


def find_recipe_differences(runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """Return the keys in which the recipes of runs differ, each with its value in every run, None
    for a run without a recipe."""
    known = [dump_recipe(run.recipe) for run in runs if run.recipe is not None]
    rows = []
    for key, values in _iter_differences(known):
        remaining = iter(values)
        cells = [None if run.recipe is None else _render_value(next(remaining)) for run in runs]
        rows.append({"key": key, "values": cells})
    return rows


def _iter_differences(
    values: Sequence[Any], prefix: str = ""
) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the dotted keys whose values differ. A section that is missing in a recipe is one
    key."""
    if all(value == values[0] for value in values):
        return
    if not all(isinstance(value, dict) for value in values):
        yield prefix, values
        return
    for key in dict.fromkeys(key for value in values for key in value):
        inner = [value.get(key, MISSING_VALUE) for value in values]
        yield from _iter_differences(inner, f"{prefix}.{key}" if prefix else key)


def _render_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return shorten(json.dumps(value, ensure_ascii=False), MAX_VALUE_CHARS, placeholder=" ...")
