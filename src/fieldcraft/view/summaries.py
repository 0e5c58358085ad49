"""Summaries of runs at a glance: how far they are, how they differ, what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any

from fieldcraft.config.recipe import dump_recipe
from fieldcraft.evals.achievement import achieved_so_far, achievement
from fieldcraft.evals.broken import broken_sentences
from fieldcraft.records.metrics import broken_rollouts
from fieldcraft.records.reading import read_json
from fieldcraft.records.remedies import put_aside
from fieldcraft.runs.stage_files import StageFolder
from fieldcraft.types import UserError
from fieldcraft.view.viewed import Viewed

FIGURES = ("n", "em", "em_ci95", "f1", "calls_mean", "tokens_mean", "tool_productivity")
MOST_SHOWN = 60  # characters of a section that another run lacks
MISSING = "not set"  # of a key that another run's recipe has


def summary(run: Viewed) -> dict[str, Any]:
    """Return a run's stages, evaluations and notes: sentences about what cannot be read."""
    notes = [run.trouble] if run.trouble else []
    recipe = run.recipe
    stages = [_stage(run, name, notes) for name in run.stages]
    summaries = _summaries(run, notes)
    return {
        "name": run.name,
        "path": str(run.path),
        "recipe": recipe and recipe.recipe,
        "seed": recipe and recipe.seed,
        "done": run.folder is not None and run.folder.report_json.exists(),
        "stages": stages,
        "evaluations": _evaluations(run, summaries),
        "achieved": _achieved(run, summaries, notes),
        "notes": notes,
    }


def _stage(run: Viewed, name: str, notes: list[str]) -> dict[str, Any]:
    assert run.recipe is not None
    settings, folder = run.recipe.stages[name], StageFolder(run.path / name)
    steps, seconds = 0, None
    try:
        rows = run.metrics(name)
        steps = len(rows)
        if sentence := broken_rollouts(rows, name):
            notes.append(sentence)
        seconds = folder.read_record()["seconds"] if folder.done else None
    except UserError as error:
        notes.append(str(error))
    of = getattr(settings, "steps", None)
    return {
        "name": name,
        "type": settings.type,
        "steps": steps,
        "of": steps if folder.done else of,
        "done": folder.done,
        "seconds": seconds,
    }


def _summaries(run: Viewed, notes: list[str]) -> dict[str, Any]:
    """Return the summaries of the evaluations that are done, in the order of the run."""
    found: dict[str, Any] = {}
    for path in sorted(run.path.glob("evaluations/*.json")):
        try:
            record = read_json(path, dict[str, Any], f"{put_aside(path)} to evaluate again")
        except UserError as error:
            notes.append(str(error))
            continue
        found[path.stem] = record.get("summary", {})
    notes += broken_sentences(found)
    return {name: found[name] for name in run.in_order(found)}


def _evaluations(run: Viewed, summaries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of evaluations: of each split, or of the whole."""
    return {
        name: {split: _figures(part) for split, part in _splits(run, whole).items()}
        for name, whole in summaries.items()
    }


def _splits(run: Viewed, whole: Mapping[str, Any]) -> Mapping[str, Any]:
    return whole.get("splits") or {_only_split(run): whole}


def _achieved(run: Viewed, summaries: Mapping[str, Any], notes: list[str]) -> str | None:
    """Return the sentence at the top of the run's report; before there is one, that of what is
    known by then."""
    if run.folder is not None and run.folder.report_json.exists():
        try:
            return achievement(run.folder.read_report())
        except UserError as error:
            notes.append(str(error))
    return achieved_so_far(run.stages, summaries)


def _only_split(run: Viewed) -> str:
    """Return the name of the questions of a summary without splits."""
    asked = [] if run.recipe is None else list(run.recipe.evaluation.sizes)
    return asked[0] if len(asked) == 1 else "all"


def _figures(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part[name] for name in FIGURES if name in part}


def differences(runs: Sequence[Viewed]) -> list[dict[str, Any]]:
    """Return the keys in which the recipes of runs differ, each with its value in every run; None
    for a run without a recipe."""
    known = [dump_recipe(run.recipe) for run in runs if run.recipe is not None]
    rows = []
    for key, values in _apart(known):
        left = iter(values)
        shown = [None if run.recipe is None else _written(next(left)) for run in runs]
        rows.append({"key": key, "values": shown})
    return rows


def _apart(values: Sequence[Any], place: str = "") -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the dotted keys, as a user writes them, in which values differ. A section that one of
    them lacks is one key."""
    if all(value == values[0] for value in values):
        return
    if not all(isinstance(value, dict) for value in values):
        yield place, values
        return
    for key in dict.fromkeys(key for value in values for key in value):
        inner = [value.get(key, MISSING) for value in values]
        yield from _apart(inner, f"{place}.{key}" if place else key)


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value
    return shorten(json.dumps(value, ensure_ascii=False), MOST_SHOWN, placeholder=" ...")
