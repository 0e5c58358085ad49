"""Demonstrations of a run, filtered: the data, what was left out, and their card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.filters import Chain, Filtered, apply_filters, make_rule, profile
from fieldcraft.data.funnel import Card
from fieldcraft.data.grading import Grader
from fieldcraft.data.steps_io import write_demonstrations
from fieldcraft.dialects import get_dialect
from fieldcraft.evals.cards import write_card
from fieldcraft.runs.dialects import choose_dialect
from fieldcraft.runs.loop import run_async
from fieldcraft.train.scratch import new_tokenizer
from fieldcraft.types import Dialect, Reward, Step, Task

DEMONSTRATIONS = "demonstrations.jsonl"
Filters = Mapping[str, Mapping[str, Any]]
Shown = Sequence[tuple[Task, Sequence[Step]]]


def filter_shown(
    recipe: Recipe, shown: Shown, filters: Filters, dialect: Dialect, correct: Reward
) -> Filtered:
    """Pass demonstrations through the filters of a recipe; `correct` tells which answers are right.
    Raises UserError as `apply_filters` does."""
    return run_async(apply_filters(shown, filters, dialect, Grader(correct), recipe.seed))


def write_filtered(folder: Path, title: str, shown: Shown, found: Filtered, recipe: Recipe) -> None:
    """Write what was kept (`demonstrations.jsonl`) and left out (`dropped.jsonl`), and the card."""
    write_demonstrations(folder / DEMONSTRATIONS, found.kept)
    write_demonstrations(folder / "dropped.jsonl", (_with_reason(*left) for left in found.dropped))
    before = profile([Chain(*chain) for chain in shown])
    after = profile(found.kept)
    figures = {name: {"before": before[name], "after": after[name]} for name in before}
    settings: dict[str, Any] = {"filters": {cut.name: dict(cut.settings) for cut in found.cuts}}
    settings |= {"dialect": choose_dialect(recipe).name, "correct": recipe.correct}
    write_card(
        Card(title, "demonstrations", recipe.seed, settings, found.cuts, figures, found.examples),
        folder,
    )


def _with_reason(chain: Chain, rule: str, reason: str) -> tuple[Task, Sequence[Step]]:
    meta = chain.task.meta | {"dropped_by": rule, "reason": reason}
    return replace(chain.task, meta=meta), chain.steps


def text_dialect(recipe: Recipe) -> Dialect:
    """Return the recipe's dialect where there is no model: its tokenizer knows bytes alone."""
    return get_dialect(choose_dialect(recipe).name, new_tokenizer([], ()))


def refuse_bad_filters(filters: Filters) -> None:
    """Raise UserError for filters that could not be used, before anything is done."""
    for name, settings in filters.items():
        make_rule(name, settings)
