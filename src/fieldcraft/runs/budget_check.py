"""Checks of the budgets of a recipe: rollouts that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.folding import check_fold_budget
from fieldcraft.dialects.tool_names import ToolNameMap
from fieldcraft.engine.sizes import get_max_positions, get_rope_length_limit
from fieldcraft.environments.termination import count_reserved_tokens
from fieldcraft.runs.setup import CheckContext


def collect_budgets(recipe: Recipe) -> Mapping[str, BudgetConfig]:
    """Return the distinct budgets of a recipe, by their keys."""
    found = {"budget": recipe.budget}
    if (evaluated := recipe.evaluation_recipe.budget) != recipe.budget:
        found["evaluation.budget"] = evaluated
    for name, stage in recipe.stages.items():
        for number, phase in enumerate(stage.budget_periods(recipe.budget)):
            if phase.budget not in found.values():
                found[f"stages.{name}.budget.{number}"] = phase.budget
    return found


def check_budgets(context: CheckContext, notes: list[str]) -> Iterator[str]:
    """Check that the model's context fits a whole rollout, and that a rollout has room for more
    than a prompt."""
    yield from check_positions(context)
    longest = max(context.tasks, key=lambda task: len(task.question))
    prompt = len(
        context.dialect.encode_prompt(
            longest.question, ToolNameMap(longest, context.schemas).schemas
        )
    )
    turns, room_for = (2, "a search and an answer") if context.schemas else (1, "an answer")
    totals = []
    for key, budget in collect_budgets(context.recipe).items():
        reserved = count_reserved_tokens(context.dialect, budget)
        yield from check_fold_budget(key, budget, context.dialect, prompt, reserved)
        if budget.max_context_tokens not in totals:
            totals.append(budget.max_context_tokens)
        if prompt + turns * budget.max_turn_tokens + reserved > budget.max_context_tokens:
            reserve_note = (
                f", in addition to {reserved} reserved for an answer," if reserved else ""
            )
            yield (
                f"the prompt of task '{longest.id}' has {prompt} tokens, which leaves no room for"
                f" {room_for} of {budget.max_turn_tokens} "
                f"tokens{' each' if turns > 1 else ''}{reserve_note}"
                f" within {key}.max_context_tokens={budget.max_context_tokens}: raise it."
            )
    notes.append(f"the longest prompt has {prompt} of {' or '.join(map(str, totals))} tokens")


def check_positions(context: CheckContext) -> Iterator[str]:
    """Check that a rollout fits into the positions of the model, and into a session of the
    engine."""
    max_positions, limit = get_max_positions(context.config), get_rope_length_limit(context.config)
    reason = (
        ", beyond which its rotary embeddings change for all texts"
        if max_positions == limit
        else ""
    )
    session_tokens = context.recipe.engine.settings.get("max_model_len")
    for key, budget in collect_budgets(context.recipe).items():
        tokens = budget.max_context_tokens
        if max_positions is not None and tokens > max_positions:
            yield (
                f"{key}.max_context_tokens={tokens} is more than the {max_positions} positions of"
                f" the model{reason}: set {key}.max_context_tokens={max_positions} or less."
            )
        elif isinstance(session_tokens, int) and tokens > session_tokens:
            yield (
                f"{key}.max_context_tokens={tokens} is more than"
                f" engine.max_model_len={session_tokens}, where the engine would end every session:"
                f" raise engine.max_model_len, or lower {key}.max_context_tokens."
            )
