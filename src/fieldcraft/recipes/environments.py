"""Keys that cannot be beside an environment of others in a recipe."""

from __future__ import annotations

from fieldcraft.config.distil import Distil
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.types import UserError


def check_environment(recipe: Recipe) -> None:
    """Raise UserError for what needs tools and questions of the framework's own."""
    if not recipe.environment.of_others:
        return
    name = recipe.environment.name
    acting = recipe.as_evaluated
    parts = {
        "collect": recipe.collect,
        "select": recipe.select,
        "evaluation.teachers": recipe.evaluation.teachers,
        "evaluation.workflows": recipe.evaluation.workflows,
        "budget.fold": recipe.budget.fold,
        "evaluation.budget.fold": acting.budget.fold,
        "budget.at_limit": recipe.budget.at_limit != "tell",
        "evaluation.budget.at_limit": acting.budget.at_limit != "tell",
        "budget.max_refusals": recipe.budget.max_refusals,
        "evaluation.budget.max_refusals": acting.budget.max_refusals,
    }
    for part, given in parts.items():
        if given:
            raise UserError(f"{part} does not work in environment '{name}', so remove it.")
    for stage, settings in recipe.stages.items():
        if len(periods := settings.periods(recipe.budget)) > 1:
            raise UserError(
                f"stage '{stage}' changes its budget, and environment '{name}' is opened once with"
                " one: give it a single budget."
            )
        for period in periods:
            limits = period.limits
            if limits.fold or limits.at_limit != "tell" or limits.max_refusals:
                raise UserError(
                    "budget.fold, budget.at_limit and budget.max_refusals of stage"
                    f" '{stage}' do not work in environment '{name}', so remove them."
                )
        if isinstance(settings, Rl) and settings.observations != "real":
            raise UserError(
                f"stage '{stage}' simulates observations, which environment '{name}' writes itself:"
                " set observations: real."
            )
        if isinstance(settings, Distil) and settings.teacher.shown is not None:
            raise UserError(
                f"stage '{stage}' shows its teacher more of a question, which environment '{name}'"
                " asks itself: remove teacher.shown."
            )
