"""Rules for the questions of a recipe: for evaluation, and for selection or measurement."""

from __future__ import annotations

from fieldcraft.config.names import ComponentKind, list_registered, suggest_name
from fieldcraft.config.recipe import Recipe, get_closed_book_model, get_split_titles
from fieldcraft.types import UserError


def require_questions(recipe: Recipe) -> None:
    """Raise UserError for a recipe without questions, or with questions of nonexistent splits."""
    if recipe.world is None and not recipe.has_task_files and not recipe.environment.is_external:
        raise UserError(
            f"recipe '{recipe.name}' has no questions: give tasks=FILE, or world.name= with one"
            f" of {', '.join(list_registered(ComponentKind.WORLD))}."
        )
    if not recipe.has_task_files:
        _require_no_files(recipe)
    if recipe.evaluation.tasks and recipe.tasks is None:
        _require_training_tasks(recipe)
    splits = _list_splits(recipe)
    for name in recipe.evaluation.splits:
        if name not in splits:
            advice = suggest_name(name, splits, "evaluation.splits.")
            raise UserError(f"unknown key 'evaluation.splits.{name}'; {advice}")
    sizes = recipe.evaluation.split_sizes
    if recipe.tasks is not None and not recipe.evaluation.tasks and not sizes.get("heldout"):
        raise UserError(
            "tasks=FILE needs evaluation.splits.heldout=, the number of questions to test on, or"
            " evaluation.tasks=FILE."
        )


def _require_no_files(recipe: Recipe) -> None:
    """Raise UserError for files that are not read: a world or an environment provides its own
    passages and demonstrations."""
    own = {key: getattr(recipe, key) for key in ("corpus", "demonstrations", "pairs")}
    for key, path in own.items():
        if path is not None:
            raise UserError(
                f"{key}={path} would not be read, because the questions are those of a world or an"
                f" environment: give tasks=FILE, too, or remove {key}."
            )


def _list_splits(recipe: Recipe) -> list[str]:
    """Return the splits available for evaluation."""
    files = recipe.evaluation.tasks
    own = () if files else get_split_titles(recipe)
    has_heldout = recipe.tasks is not None or not (files or recipe.world)
    return sorted({*files, *own, *(["heldout"] if has_heldout else [])})


def _require_training_tasks(recipe: Recipe) -> None:
    """Raise UserError for evaluation files without `tasks` if the recipe needs questions to train
    on."""
    if recipe.world is not None or recipe.environment.is_external:
        raise UserError(
            "evaluation.tasks replaces the questions of a world or an environment, so the questions"
            " to train on must be your own, too: give tasks=FILE, or remove evaluation.tasks."
        )
    needing_tasks = [
        f"stage '{name}'" for name, s in recipe.stages.items() if s.kind != "supervised"
    ]
    needing_tasks += ["select"] if recipe.select is not None else []
    needing_tasks += ["collect"] if recipe.collect is not None else []
    if needing_tasks:
        raise UserError(
            f"{needing_tasks[0]} needs other questions than evaluation.tasks: give tasks=FILE."
        )


def require_valid_selection(recipe: Recipe) -> None:
    """Raise UserError if the models used for selection are not available before reinforcement
    learning starts."""
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
    for name in sorted(recipe.select.sampled_models):
        if name not in models:
            raise UserError(
                f"select samples the model of '{name}', which does not exist before the first"
                f" rl stage: use one of {', '.join(models)}."
            )


def require_valid_closed_book(recipe: Recipe) -> None:
    """Raise UserError if the measured rates are not used, or the measured model does not exist."""
    if recipe.closed_book is None:
        return
    if recipe.environment.is_external or not (recipe.stages or recipe.model):
        raise UserError(
            "closed_book asks the questions of evaluations and stages without tools, and this"
            " recipe has no such questions: remove it."
        )
    model, models = get_closed_book_model(recipe), ["start", *recipe.stages]
    if model not in models:
        raise UserError(
            f"closed_book samples the model of '{model}', which does not exist: use one of"
            f" {', '.join(models)}."
        )
    if recipe.closed_book.questions == 0:
        return
    if recipe.select is not None and recipe.select.closed_book_model is not None:
        raise UserError(
            "select already measures the closed-book rate of the training questions: remove"
            " closed_book.questions."
        )
    after = list(recipe.stages.values())[models.index(model) :]
    if all(stage.kind != "rl" for stage in after):
        raise UserError(
            "closed_book.questions is for a stage of reinforcement learning after"
            f" '{model}', but the recipe has none: add one, or set closed_book.questions=0."
        )
