"""Recipes that sample questions before they are asked: those selected, and those measured."""

from __future__ import annotations

from fieldcraft.config.recipe import Recipe, closed_book_model
from fieldcraft.types import UserError


def check_selection(recipe: Recipe) -> None:
    """What is selected by must be there before reinforcement learning begins."""
    if recipe.select is None:
        return
    if recipe.collect is not None:
        raise UserError("a recipe has either collect or select: do them in two runs.")
    kinds = [stage.kind for stage in recipe.stages.values()]
    if kinds and "rl" not in kinds:
        raise UserError(
            "select chooses the questions of a stage of reinforcement learning, which the recipe"
            " does not have: add one, or remove select."
        )
    first = kinds.index("rl") if kinds else 0
    models = ["start", *list(recipe.stages)[:first]]
    for name in sorted(recipe.select.reads):
        if name not in models:
            raise UserError(
                f"select samples the model of '{name}', which is not there before reinforcement"
                f" learning begins: use one of {', '.join(models)}."
            )


def check_closed_book(recipe: Recipe) -> None:
    """What is measured must be read by something, and the model that is asked must be there."""
    if recipe.closed_book is None:
        return
    if recipe.environment.of_others or not (recipe.stages or recipe.model):
        raise UserError(
            "closed_book asks the questions of evaluations and stages without tools, and this"
            " recipe has none that can be asked so: remove it."
        )
    model, models = closed_book_model(recipe), ["start", *recipe.stages]
    if model not in models:
        raise UserError(
            f"closed_book samples the model of '{model}', which is not there: use one of"
            f" {', '.join(models)}."
        )
    if recipe.closed_book.questions == 0:
        return
    if recipe.select is not None and recipe.select.toolless is not None:
        raise UserError(
            "select measures the closed-book rate of the questions of training itself: remove"
            " closed_book.questions."
        )
    after = list(recipe.stages.values())[models.index(model) :]
    if all(stage.kind != "rl" for stage in after):
        raise UserError(
            "closed_book.questions is for the questions of a stage of reinforcement learning after"
            f" '{model}', and there is none: add one, or set closed_book.questions=0."
        )
