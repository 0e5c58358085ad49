"""Rules between recipe keys, as functions that raise UserError."""

from __future__ import annotations

from fieldcraft.config.collection import TEACHER
from fieldcraft.config.names import (
    VLLM_ENGINE,
    ComponentKind,
    get_display_name,
    resolve_path,
    suggest_name,
)
from fieldcraft.config.recipe import Recipe, get_seed_table_rows, list_evaluations
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import JudgeConfig
from fieldcraft.config.teacher import TeacherConfig
from fieldcraft.types import UserError


def require_known_names(recipe: Recipe) -> None:
    """Raise UserError for a name that cannot be resolved, and for nonexistent stages that other
    stages, report rows or comparisons refer to."""
    if recipe.dialect is not None:
        resolve_path(ComponentKind.DIALECT, recipe.dialect)
    resolve_path(ComponentKind.ENGINE, recipe.engine.name)
    resolve_path(ComponentKind.ENVIRONMENT, recipe.environment.name)
    for tool in recipe.tools:
        resolve_path(ComponentKind.TOOL, tool.name)
    if recipe.teacher.team is not None:
        resolve_path(ComponentKind.TEAM, recipe.teacher.team)
    row_owners: dict[str, str] = {"base": "the first model"}
    for workflow in recipe.evaluation.workflows:
        resolve_path(ComponentKind.WORKFLOW, workflow)
        row = get_display_name(workflow)
        if row in row_owners:
            raise UserError(
                f"the workflow '{workflow}' and {row_owners[row]} would both be the row '{row}' of"
                " the report: give the function another name."
            )
        row_owners[row] = f"the workflow '{workflow}'"
        if row in recipe.stages:
            raise UserError(
                f"the workflow '{workflow}' and a stage are both called '{row}': choose another"
                " name for the stage."
            )
    earlier = ["start"]
    for name, stage in recipe.stages.items():
        if stage.start_from is not None and stage.start_from not in earlier:
            raise UserError(
                f"stage '{name}' starts from '{stage.start_from}', which does not come before it:"
                f" use one of {', '.join(earlier)}."
            )
        for dependency in stage.stage_dependencies:
            if dependency not in earlier:
                raise UserError(
                    f"stage '{name}' reads the model of '{dependency}', which does not come before"
                    f" it: use one of {', '.join(earlier)}."
                )
        earlier.append(name)
    for title, name in recipe.table_rows.items():
        if name not in list_evaluations(recipe):
            raise UserError(
                f"row '{title}' shows '{name}', which is never evaluated: use one of"
                f" {', '.join(list_evaluations(recipe))}."
            )
    for title, pair in recipe.comparisons.items():
        for row in pair:
            if row not in get_seed_table_rows(recipe):
                raise UserError(
                    f"the comparison '{title}' names the row '{row}', which the table does not"
                    f" have; {suggest_name(row, get_seed_table_rows(recipe))}"
                )


def require_valid_collection(recipe: Recipe) -> None:
    """Raise UserError for a teacher that is not used, for a collection in a recipe that trains, and
    for keys that a teacher ignores."""
    teacher = recipe.teacher
    is_sampled = recipe.select is not None and recipe.select.closed_book_model == TEACHER
    if "team" in recipe.evaluation.teachers and teacher.team is None:
        raise UserError("evaluation.teachers names the team, so set teacher.team, as in afm.")
    if recipe.collect is None:
        if teacher != TeacherConfig() and not (is_sampled or recipe.evaluation.teachers):
            raise UserError(
                "teacher is only for a recipe with collect, select.closed_book_model=teacher or"
                " evaluation.teachers: use the recipe autocoa-data, or afm-data."
            )
        if is_sampled and teacher.model is None:
            raise UserError(
                "select.closed_book_model=teacher needs the name of a model: set teacher.model."
            )
        return
    if recipe.stages:
        raise UserError(
            "a recipe with collect has no stages: train in a second run, with demonstrations= and"
            " pairs= of the files that this one writes."
        )
    for key, is_set in {
        "at_limit": recipe.budget.at_limit != "tell",
        "max_refusals": recipe.budget.max_refusals,
    }.items():
        if is_set:
            raise UserError(
                f"budget.{key} has no effect with collect, because the teacher decides when to"
                " stop: remove it."
            )
    needs_model = teacher.url is not None or teacher.members or recipe.has_task_files
    if teacher.model is None and needs_model:
        raise UserError(
            "the teacher has no name: set teacher.model, the name of a model at teacher.url or the"
            " folder of a checkpoint."
        )


def require_single_model(recipe: Recipe) -> None:
    """Raise UserError for a second model with vLLM, which serves only one model at a time."""
    frozen = [n for n, s in recipe.stages.items() if isinstance(s, Rl) and s.simulator == "frozen"]
    if recipe.engine.name == VLLM_ENGINE and frozen:
        raise UserError(
            f"stage '{frozen[0]}' has simulator: frozen, a second model next to the policy, and"
            " engine: vllm holds one at a time: use engine=local, or another simulator."
        )


def require_valid_overlong(recipe: Recipe) -> None:
    """Raise UserError for a length penalty whose limit no rollout can reach."""
    for name, stage in recipe.stages.items():
        if isinstance(stage, Rl) and stage.overlong_penalty:
            try:
                for period in stage.budget_periods(recipe.budget):
                    stage.resolve_overlong_buffer(period.budget)
            except ValueError as error:
                raise UserError(f"in stage '{name}' {error}.") from error


def require_valid_seeds(recipe: Recipe) -> None:
    """Raise UserError for repeated seeds, or seeds combined with `seed` or without stages."""
    if len(set(recipe.seeds)) < len(recipe.seeds):
        raise UserError(f"seeds={list(recipe.seeds)} names a seed twice: give each one once.")
    if recipe.seeds and recipe.seed:
        raise UserError(
            f"seed={recipe.seed} is one run and seeds={list(recipe.seeds)} several: for one alone"
            " set seeds=[] as well."
        )
    if recipe.seeds and not recipe.stages:
        raise UserError(
            f"the recipe '{recipe.name}' trains nothing, so there is no table over"
            f" seeds={list(recipe.seeds)}: run it with seed=N for each."
        )


def require_complete_judge(judge: JudgeConfig, needed: bool) -> None:
    """Raise UserError for a judge without url or model, or for a missing judge that is needed."""
    is_set = [judge.url is not None, judge.model is not None]
    if any(is_set) != all(is_set) or (needed and not any(is_set)):
        raise UserError("a judge needs both a url and a model: set judge.url and judge.model.")
