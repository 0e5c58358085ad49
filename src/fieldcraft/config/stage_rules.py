"""Rules for the stages of a recipe, their budgets, and the environment in which they act."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.choices import list_unread_keys
from fieldcraft.config.collection import TEACHER
from fieldcraft.config.components import BUILTIN_COMPONENTS, ComponentKind
from fieldcraft.config.distil import Distil
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.config.stages import Stage

# Names of run folders and report rows that are not stages; for a recipe with a model, `base` is the
# row of that model.
RESERVED_STAGE_NAMES = (
    *("world", "start", "index", "engine", "evaluations", "evaluation"),
    *("collect", "retrieved", "select"),
    *(*BUILTIN_COMPONENTS[ComponentKind.WORKFLOW], TEACHER, "team", "lone"),
)

# -- names and order ----------------------------------------------------------------------------


def find_invalid_stage_names(recipe: Recipe) -> Iterator[str]:
    for name in recipe.stages:
        if name == "base" and recipe.model:
            yield (
                "the stage name 'base' is reserved for the model of the recipe:"
                " leave out model if that stage makes the model, or choose another name."
            )
        if name in RESERVED_STAGE_NAMES or not name.replace("-", "").replace("_", "").isalnum():
            yield (
                f"a stage cannot be called '{name}': choose a name of letters, digits, - and _,"
                " which becomes the name of its folder."
            )


def find_late_models(recipe: Recipe) -> Iterator[str]:
    earlier = ["start"]
    for name, stage in recipe.stages.items():
        if stage.start_from is not None and stage.start_from not in earlier:
            yield (
                f"stage '{name}' starts from '{stage.start_from}', which does not come before it:"
                f" use one of {', '.join(earlier)}."
            )
        for dependency in (d for d in stage.stage_dependencies if d not in earlier):
            yield (
                f"stage '{name}' reads the model of '{dependency}', which does not come before"
                f" it: use one of {', '.join(earlier)}."
            )
        earlier.append(name)


def find_cot_share_without_tools(recipe: Recipe) -> Iterator[str]:
    for name, stage in recipe.stages.items():
        if isinstance(stage, Rl) and stage.cot_share and not recipe.tools:
            yield (
                f"stage '{name}' has a cot_share, but the recipe has no tools that could be"
                " unavailable: remove cot_share, or add tools."
            )


def find_second_model(recipe: Recipe) -> Iterator[str]:
    for name, stage in recipe.stages.items():
        is_frozen = isinstance(stage, Rl) and stage.simulator == "frozen"
        if is_frozen and not recipe.engine.features.several_models:
            yield (
                f"stage '{name}' has simulator: frozen, a second model next to the policy, and"
                f" engine: {recipe.engine.name} holds one at a time: use engine=local, or another"
                " simulator."
            )


def find_unused_sampler_weights(recipe: Recipe) -> Iterator[str]:
    for name, stage in recipe.stages.items():
        if not isinstance(stage, Rl):
            continue
        own = [k for k in ("sampler_is_cap", "sampler_is_level") if not stage.has_default(k)]
        if own and not stage.uses_sampler_weight:
            yield (
                f"stage '{name}' has a {own[0]}, which weighs advantages, and with reward_weight: 0"
                " this KL to the teacher has none: remove it; sampler_reject works."
            )
        elif own == ["sampler_is_level"]:
            yield (
                f"stage '{name}' has sampler_is_level: {stage.sampler_is_level}, the level of a"
                " weight that it does not have: set sampler_is_cap, or remove sampler_is_level."
            )


# -- budgets ------------------------------------------------------------------------------------


def _find_value_error(function: Callable[..., object], *arguments: object) -> Iterator[str]:
    """Yield the message of a call's ValueError, if there is one."""
    try:
        function(*arguments)
    except ValueError as error:
        yield str(error)


def _list_budgets(recipe: Recipe, stage: Stage) -> Sequence[BudgetConfig]:
    """Return the budgets of a stage; none if they are invalid."""
    try:
        return [period.budget for period in stage.budget_periods(recipe.budget)]
    except ValueError:
        return ()


def find_invalid_budgets(recipe: Recipe) -> Iterator[str]:
    for name, stage in recipe.stages.items():
        for clause in _find_value_error(stage.budget_periods, recipe.budget):
            yield f"'stages' is wrong: stage '{name}': {clause}."
    for clause in _find_value_error(recipe.budget.with_changes, recipe.evaluation.budget):
        yield f"'evaluation' is wrong: {clause}."


def find_changed_summary_prompts(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each stage with another summary prompt: it belongs to the dialect, and a
    stage has only one."""
    prompt = recipe.budget.fold.prompt if recipe.budget.fold is not None else None
    for name, stage in recipe.stages.items():
        folds = [budget.fold for budget in _list_budgets(recipe, stage)]
        if any(fold is not None and fold.prompt != prompt for fold in folds):
            yield (
                f"'stages' is wrong: stage '{name}': a stage cannot change the summary prompt: set"
                " budget.fold.prompt instead."
            )


def find_unreachable_overlong_limits(recipe: Recipe) -> Iterator[str]:
    for name, stage in recipe.stages.items():
        if isinstance(stage, Rl) and stage.overlong_penalty:
            for budget in _list_budgets(recipe, stage):
                for clause in _find_value_error(stage.resolve_overlong_buffer, budget):
                    yield f"in stage '{name}' {clause}."


# -- external environments ----------------------------------------------------------------------


def find_tools_with_environment(recipe: Recipe) -> Iterator[str]:
    if recipe.tools and recipe.environment.is_external:
        yield "'tools' is wrong: an external environment has its own actions: remove tools."


def _list_unread(recipe: Recipe, section: ConfigSection, prefix: str = "") -> list[str]:
    """Return the keys of a section, with a prefix in the recipe, that are set and have no effect in
    its environment."""
    keys = (prefix + key for key in type(section).model_fields if not section.has_default(key))
    unread = list_unread_keys(recipe.environment)
    return [key.removeprefix(prefix) for key in keys if key in unread]


def find_keys_with_environment(recipe: Recipe) -> Iterator[str]:
    sections = ("collect", "select", "evaluation.teachers", "evaluation.workflows")
    keys = [key for key in sections if attrgetter(key)(recipe)]
    keys += _list_unread(recipe, recipe)
    keys += [f"budget.{key}" for key in _list_unread(recipe, recipe.budget, "budget.")]
    with suppress(ValueError):  # reported by the rule of budgets
        own = _list_unread(recipe, recipe.evaluation_recipe.budget, "budget.")
        keys += [f"evaluation.budget.{key}" for key in own if key in recipe.evaluation.budget]
    for key in keys if recipe.environment.is_external else ():
        yield f"{key} does not work in environment '{recipe.environment.name}', so remove it."


def find_stages_with_environment(recipe: Recipe) -> Iterator[str]:
    environment = recipe.environment.name
    for name, stage in recipe.stages.items() if recipe.environment.is_external else ():
        budgets = _list_budgets(recipe, stage)
        if len(budgets) > 1:
            yield (
                f"stage '{name}' changes its budget, and environment '{environment}' is opened once"
                " with one: give it a single budget."
            )
        own = {key for budget in budgets for key in _list_unread(recipe, budget, "budget.")}
        for key in sorted(own - {*_list_unread(recipe, recipe.budget, "budget.")}):
            yield (
                f"budget.{key} of stage '{name}' does not work in environment '{environment}', so"
                " remove it."
            )
        if isinstance(stage, Rl) and stage.observations != "real":
            yield (
                f"stage '{name}' simulates observations, which environment '{environment}' writes"
                " itself: set observations: real."
            )
        if isinstance(stage, Distil) and stage.teacher.privileged is not None:
            yield (
                f"stage '{name}' gives its teacher privileged information, but environment"
                f" '{environment}' writes the prompts itself: remove teacher.privileged."
            )
