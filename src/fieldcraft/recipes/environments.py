"""Recipe keys that an external environment does not support."""

from __future__ import annotations

from fieldcraft.config.distil import Distil
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.types import UserError


def require_valid_environment(recipe: Recipe) -> None:
    """Raise UserError for keys that require the framework's own tools and questions."""
    if not recipe.environment.is_external:
        return
    name = recipe.environment.name
    evaluated = recipe.evaluation_recipe
    unsupported = {
        "collect": recipe.collect,
        "select": recipe.select,
        "evaluation.teachers": recipe.evaluation.teachers,
        "evaluation.workflows": recipe.evaluation.workflows,
        "budget.fold": recipe.budget.fold,
        "evaluation.budget.fold": evaluated.budget.fold,
        "budget.at_limit": recipe.budget.at_limit != "tell",
        "evaluation.budget.at_limit": evaluated.budget.at_limit != "tell",
        "budget.max_refusals": recipe.budget.max_refusals,
        "evaluation.budget.max_refusals": evaluated.budget.max_refusals,
    }
    for key, given in unsupported.items():
        if given:
            raise UserError(f"{key} does not work in environment '{name}', so remove it.")
    for stage, settings in recipe.stages.items():
        if len(periods := settings.budget_periods(recipe.budget)) > 1:
            raise UserError(
                f"stage '{stage}' changes its budget, and environment '{name}' is opened once with"
                " one: give it a single budget."
            )
        for period in periods:
            budget = period.budget
            if budget.fold or budget.at_limit != "tell" or budget.max_refusals:
                raise UserError(
                    "budget.fold, budget.at_limit and budget.max_refusals of stage"
                    f" '{stage}' do not work in environment '{name}', so remove them."
                )
        if isinstance(settings, Rl) and settings.observations != "real":
            raise UserError(
                f"stage '{stage}' simulates observations, which environment '{name}' writes itself:"
                " set observations: real."
            )
        if isinstance(settings, Distil) and settings.teacher.privileged is not None:
            raise UserError(
                f"stage '{stage}' gives its teacher privileged information, but environment"
                f" '{name}' writes the prompts itself: remove teacher.privileged."
            )
