"""Checks of the budgets of a recipe: rollouts that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sections import Limits
from fieldcraft.dialects.folding import fold_problems
from fieldcraft.dialects.naming import Names
from fieldcraft.engine.sizes import length_limit, positions
from fieldcraft.rollout.ending import reserve
from fieldcraft.runs.setup import Setup


def budgets(recipe: Recipe) -> Mapping[str, Limits]:
    """Return all budgets of a recipe that differ, by the keys that name them."""
    found = {"budget": recipe.budget}
    if (evaluated := recipe.as_evaluated.budget) != recipe.budget:
        found["evaluation.budget"] = evaluated
    for name, stage in recipe.stages.items():
        for number, period in enumerate(stage.periods(recipe.budget)):
            if period.limits not in found.values():
                found[f"stages.{name}.budget.{number}"] = period.limits
    return found


def budget_problems(setup: Setup, notes: list[str]) -> Iterator[str]:
    """Check that the model can read a whole rollout, and that a rollout holds more than a
    prompt."""
    yield from position_problems(setup)
    longest = max(setup.tasks, key=lambda task: len(task.question))
    prompt = len(setup.dialect.prompt(longest.question, Names(longest, setup.schemas).schemas))
    turns, room_for = (2, "a search and an answer") if setup.schemas else (1, "an answer")
    totals = []
    for key, budget in budgets(setup.recipe).items():
        kept = reserve(setup.dialect, budget)
        yield from fold_problems(key, budget, setup.dialect, prompt, kept)
        if budget.total_tokens not in totals:
            totals.append(budget.total_tokens)
        if prompt + turns * budget.turn_tokens + kept > budget.total_tokens:
            beside = f", beside {kept} that are held back for an answer," if kept else ""
            yield (
                f"the prompt of task '{longest.id}' has {prompt} tokens, which leaves no room for"
                f" {room_for} of {budget.turn_tokens} tokens{' each' if turns > 1 else ''}{beside}"
                f" within {key}.total_tokens={budget.total_tokens}: raise it."
            )
    notes.append(f"the longest prompt has {prompt} of {' or '.join(map(str, totals))} tokens")


def position_problems(setup: Setup) -> Iterator[str]:
    """Check that a rollout fits into the positions of the model, and into a session of the
    engine."""
    bound, limit = positions(setup.config), length_limit(setup.config)
    why = ", beyond which its rotary embeddings change for all texts" if bound == limit else ""
    session = setup.recipe.engine.settings.get("max_len")
    for key, budget in budgets(setup.recipe).items():
        tokens = budget.total_tokens
        if bound is not None and tokens > bound:
            yield (
                f"{key}.total_tokens={tokens} is more than the {bound} positions of the model{why}:"
                f" set {key}.total_tokens={bound} or less."
            )
        elif isinstance(session, int) and tokens > session:
            yield (
                f"{key}.total_tokens={tokens} is more than engine.max_len={session}, where the"
                " engine would end every session: raise engine.max_len, or lower"
                f" {key}.total_tokens."
            )
