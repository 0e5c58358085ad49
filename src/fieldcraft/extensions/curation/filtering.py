"""Filtering of a run's demonstrations: the data, the rejected examples, and a data card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.grading import Grader
from fieldcraft.data.steps_io import write_demonstrations
from fieldcraft.dialects import make_dialect
from fieldcraft.evaluation.pages import find_page_writer
from fieldcraft.extensions.curation.filters import (
    DataCard,
    Demonstration,
    FilterResult,
    apply_filters,
    make_filter,
    summarise_demonstrations,
)
from fieldcraft.records.files import write_json
from fieldcraft.runs.dialects import choose_dialect
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.stage_files import DEMONSTRATIONS_FILE
from fieldcraft.train.scratch import make_tokenizer
from fieldcraft.types import DemoStep, Dialect, Reward, Task

FilterSettings = Mapping[str, Mapping[str, Any]]
Demonstrations = Sequence[tuple[Task, Sequence[DemoStep]]]


def filter_demonstrations(
    recipe: Recipe,
    demonstrations: Demonstrations,
    filters: FilterSettings,
    dialect: Dialect,
    verdict_reward: Reward,
) -> FilterResult:
    """Apply the filters of a recipe to demonstrations, using the verdict reward `verdict_reward`.
    Raises UserError like `apply_filters`."""
    return run_async(
        apply_filters(demonstrations, filters, dialect, Grader(verdict_reward), recipe.seed)
    )


def write_filtered(
    folder: Path, title: str, demonstrations: Demonstrations, result: FilterResult, recipe: Recipe
) -> None:
    """Write the accepted (`demonstrations.jsonl`) and the rejected examples (`dropped.jsonl`), and
    the card."""
    write_demonstrations(folder / DEMONSTRATIONS_FILE, result.accepted)
    write_demonstrations(
        folder / "dropped.jsonl", (_with_reason(*dropped) for dropped in result.dropped)
    )
    before = summarise_demonstrations(
        [Demonstration(*demonstration) for demonstration in demonstrations]
    )
    after = summarise_demonstrations(result.accepted)
    figures = {name: {"before": before[name], "after": after[name]} for name in before}
    settings: dict[str, Any] = {
        "filters": {stage.name: dict(stage.settings) for stage in result.stages}
    }
    settings |= {"dialect": choose_dialect(recipe).name, "verdict_reward": recipe.verdict_reward}
    write_data_card(
        DataCard(
            title, "demonstrations", recipe.seed, settings, result.stages, figures, result.examples
        ),
        folder,
    )


def _with_reason(
    demonstration: Demonstration, filter_name: str, reason: str
) -> tuple[Task, Sequence[DemoStep]]:
    meta = demonstration.task.meta | {"dropped_by": filter_name, "reason": reason}
    return replace(demonstration.task, meta=meta), demonstration.steps


def write_data_card(card: DataCard, folder: Path) -> None:
    """Write `card.html`, one file without network access, and then `card.json` into a folder."""
    if write_page := find_page_writer("card"):
        write_page(card, folder / "card.html")
    write_json(folder / "card.json", card.to_record())


def make_byte_level_dialect(recipe: Recipe) -> Dialect:
    """Return the recipe's dialect with a byte-level tokenizer, for use without a model."""
    return make_dialect(choose_dialect(recipe).name, make_tokenizer([], ()))


def require_valid_filters(filters: FilterSettings) -> None:
    """Raise UserError for invalid filters, before any work is done."""
    for name, settings in filters.items():
        make_filter(name, settings)
