"""Recipes from files and run folders: dotted overrides, errors that name the nearest key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fieldcraft.config.addresses import SecretShown, refuse_secrets
from fieldcraft.config.collection import TEACHER
from fieldcraft.config.complaints import first_problem
from fieldcraft.config.hub_names import as_placed
from fieldcraft.config.names import (
    BUILT_IN,
    VLLM,
    Kind,
    PartError,
    require,
    short,
    shown,
    suggestion,
)
from fieldcraft.config.recipe import (
    Recipe,
    evaluations,
    stage_settings,
    table_rows,
    world_settings,
)
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import JudgeModel, World, fields_of
from fieldcraft.config.stages import Stage
from fieldcraft.config.teacher import Teacher
from fieldcraft.recipes.asks import asks_of
from fieldcraft.recipes.clusters import check_cluster
from fieldcraft.recipes.consent import require_consent
from fieldcraft.recipes.environments import check_environment
from fieldcraft.recipes.exported import filled_from_model
from fieldcraft.recipes.fetching import fetched
from fieldcraft.recipes.files import read_recipe
from fieldcraft.recipes.overrides import apply_override
from fieldcraft.recipes.questions import check_closed_book, check_questions, check_selection
from fieldcraft.records.paths import at_home
from fieldcraft.records.reading import MAKE_ANEW, read_json, reading
from fieldcraft.types import UserError

# Folders of a run and rows of its report that are not stages; with a model of the user's, `base` is
# the row of that model.
RESERVED = (
    *("world", "start", "index", "engine", "evaluations", "evaluation", "collect", "select"),
    *(*BUILT_IN[Kind.WORKFLOW], TEACHER, "team", "lone"),
)
MOST = 2**32  # no number of a recipe is as large: random generators take seeds below


def load_recipe(name: str, overrides: list[str], begun: Path | None = None) -> Recipe:
    """Return a recipe by shipped name or path, with `key.path=value` overrides; `begun` as in
    `parse_recipe`.

    Raises UserError for an unknown name or key (naming the nearest) and for bad values.
    """
    data = read_recipe(name)
    given = {re.split("[.=]", override)[0] for override in overrides}
    unread = "world" in given or {"world", "tasks"} <= data.keys()
    for override in overrides:
        apply_override(data, override)
    recipe = parse_recipe(data, begun)
    if unread and recipe.asks_files and recipe.world is not None:
        raise UserError(
            f"the world '{recipe.world.name}' would not be read, because the questions are those of"
            " tasks=FILE: remove one of the two."
        )
    return recipe


def load_world(name: str, recipe: str, overrides: list[str]) -> Recipe:
    """Return a recipe about a world: the one called `recipe` if its world has this name, else an
    empty one with the world's own defaults, with `key.path=value` overrides.

    Raises UserError as `load_recipe` does.
    """
    data = read_recipe(recipe)
    world = data.get("world")
    if not isinstance(world, dict) or world.get("name") != name:
        data = {"recipe": short(name), "world": {"name": name}, "stages": {}}
    for override in overrides:
        apply_override(data, override)
    return parse_recipe(data)


def parse_recipe(data: dict[str, Any], begun: Path | None = None) -> Recipe:
    """Validate the contents of a recipe file, and fetch what it names on a hub. A run that is
    resumed, in the folder `begun`, keeps the commits that it began with.

    Raises UserError with the first problem."""
    with reading("the recipe", "write it flatter"):
        _check_values(data)
    recipe = build_recipe(filled_from_model(fetched(at_home(data), begun)))
    for name in recipe.stages:
        if name == "base" and recipe.model:
            raise UserError(
                "a stage cannot be called 'base' where a recipe has a model, because the report"
                " calls the model so: choose another name for the stage."
            )
        if name in RESERVED or not name.replace("-", "").replace("_", "").isalnum():
            raise UserError(
                f"a stage cannot be called '{name}': choose another name, of letters, digits, -"
                " and _, which becomes that of its folder."
            )
    check_names(recipe)
    check_cluster(recipe)
    _check_seeds(recipe)
    for key in recipe.needs:
        if getattr(recipe, key) is None:
            raise UserError(f"recipe '{recipe.recipe}' needs {key}=PATH on the command line.")
    graders = {recipe.correct}.union(*(stage.graders for stage in recipe.stages.values()))
    check_judge(recipe.judge, "judge" in {*graders, recipe.evaluation.verifier})
    keys = ("model", "tasks", "corpus", "demonstrations", "pairs")
    files: dict[str, Path | None] = {key: getattr(recipe, key) for key in keys}
    files |= {f"evaluation.tasks.{name}": path for name, path in recipe.evaluation.tasks.items()}
    for name, path in files.items():
        if path is not None and not path.exists():
            raise UserError(f"{name}={path} does not exist: give the path of an existing file.")
    _check_collection(recipe)
    check_selection(recipe)
    check_closed_book(recipe)
    _check_engine(recipe)
    _check_overlong(recipe)
    check_environment(recipe)
    recipe = _with_whole_world(recipe)
    check_questions(recipe)
    return recipe


def _check_values(value: Any, place: str = "") -> None:
    """Raise UserError for a key that is no text, and for a number that no setting can be."""
    match value:
        case dict():
            for key, inner in value.items():
                if not isinstance(key, str):
                    where = f" in '{place}'" if place else ""
                    raise UserError(f"the key {key}{where} is no text: write it in quotes.")
                _check_values(inner, f"{place}.{key}".strip("."))
        case list():
            for inner in value:
                _check_values(inner, place)
        case int() | float() if not abs(value) < MOST:
            raise UserError(f"'{place}' is wrong: {shown(value)} is not a number below {MOST}.")


def build_recipe(data: dict[str, Any]) -> Recipe:
    """Return the typed recipe of a mapping. Raises UserError with the first problem, and
    SecretShown."""
    data = as_placed(at_home(data))
    refuse_secrets(data)
    stages = data.get("stages")
    made = {n: _stage(n, s, stages) for n, s in stages.items()} if isinstance(stages, dict) else {}
    try:
        return Recipe.model_validate({**data, **({"stages": made} if made else {})})
    except ValidationError as error:
        raise UserError(_sentence(error, Recipe)) from error


def _stage(name: str, data: Any, stages: dict[str, Any]) -> Stage:
    if not isinstance(data, dict):
        raise UserError(f"stage '{name}' must be a mapping with a type and its settings.")
    if "type" not in data:
        raise UserError(_lacks(name, "type", stages))
    settings = stage_settings(str(data["type"]))
    try:
        return settings.model_validate(data)
    except ValidationError as error:
        kind, _, place = first_problem(error)
        if kind == "missing":
            raise UserError(_lacks(name, ".".join(_keys(place)), stages)) from error
        raise UserError(_sentence(error, settings, ("stages", name))) from error


def _lacks(name: str, key: str, stages: dict[str, Any]) -> str:
    others = ", ".join(other for other in stages if other != name)
    return f"stage '{name}' has no '{key}'; the other stages are {others or 'none'}."


def _with_whole_world(recipe: Recipe) -> Recipe:
    """Return the recipe with every setting of its world, those by default too."""
    if recipe.world is None:
        return recipe
    known_settings = world_settings(recipe.world.name)
    try:
        settings = known_settings.model_validate(recipe.world.settings)
    except ValidationError as error:
        raise UserError(_sentence(error, known_settings, ("world",))) from error
    world = World(name=recipe.world.name, **settings.model_dump(mode="json"))
    return recipe.model_copy(update={"world": world})


def check_names(recipe: Recipe) -> None:
    """Raise UserError for a name that stands for nothing, and for stages that others start from, or
    that are rows of a table or compared in it, and do not exist."""
    if recipe.dialect is not None:
        require(Kind.DIALECT, recipe.dialect)
    require(Kind.ENGINE, recipe.engine.name)
    require(Kind.ENVIRONMENT, recipe.environment.name)
    for tool in recipe.tools:
        require(Kind.TOOL, tool.name)
    if recipe.teacher.team is not None:
        require(Kind.TEAM, recipe.teacher.team)
    called: dict[str, str] = {"base": "the first model"}
    for workflow in recipe.evaluation.workflows:
        require(Kind.WORKFLOW, workflow)
        row = short(workflow)
        if row in called:
            raise UserError(
                f"the workflow '{workflow}' and {called[row]} would both be the row '{row}' of the"
                " report: give the function another name."
            )
        called[row] = f"the workflow '{workflow}'"
        if row in recipe.stages:
            raise UserError(
                f"the workflow '{workflow}' and a stage are both called '{short(workflow)}': choose"
                " another name for the stage."
            )
    earlier = ["start"]
    for name, stage in recipe.stages.items():
        if stage.start is not None and stage.start not in earlier:
            raise UserError(
                f"stage '{name}' starts from '{stage.start}', which does not come before it: use"
                f" one of {', '.join(earlier)}."
            )
        for read in stage.reads_stages:
            if read not in earlier:
                raise UserError(
                    f"stage '{name}' reads the model of '{read}', which does not come before it:"
                    f" use one of {', '.join(earlier)}."
                )
        earlier.append(name)
    for title, name in recipe.rows.items():
        if name not in evaluations(recipe):
            raise UserError(
                f"row '{title}' shows '{name}', which is never evaluated: use one of"
                f" {', '.join(evaluations(recipe))}."
            )
    for title, pair in recipe.comparisons.items():
        for row in pair:
            if row not in table_rows(recipe):
                raise UserError(
                    f"the comparison '{title}' names the row '{row}', which the table does not"
                    f" have; {suggestion(row, table_rows(recipe))}"
                )


def _check_collection(recipe: Recipe) -> None:
    teacher = recipe.teacher
    asked = recipe.select is not None and recipe.select.toolless == TEACHER
    if "team" in recipe.evaluation.teachers and teacher.team is None:
        raise UserError("evaluation.teachers names the team, so set teacher.team, as in afm.")
    if recipe.collect is None:
        if teacher != Teacher() and not (asked or recipe.evaluation.teachers):
            raise UserError(
                "teacher is only for a recipe with collect, select.toolless=teacher or"
                " evaluation.teachers: use the recipe autocoa-data, or afm-data."
            )
        if asked and teacher.model is None:
            raise UserError("select.toolless=teacher needs the name of a model: set teacher.model.")
        return
    if recipe.stages:
        raise UserError(
            "a recipe with collect has no stages: train in a second run, with demonstrations= and"
            " pairs= of the files that this one writes."
        )
    for key, given in {
        "at_limit": recipe.budget.at_limit != "tell",
        "max_refusals": recipe.budget.max_refusals,
    }.items():
        if given:
            raise UserError(
                f"a teacher ends by itself, so budget.{key} changes nothing with collect: remove"
                " it."
            )
    named = teacher.url is not None or teacher.seats or recipe.asks_files
    if teacher.model is None and named:
        raise UserError(
            "the teacher has no name: set teacher.model, the name of a model at teacher.url or the"
            " folder of a checkpoint."
        )


def _check_engine(recipe: Recipe) -> None:
    """Raise UserError for a second model beside vLLM, which holds one at a time, so nothing else
    can be sampled beside it."""
    frozen = [n for n, s in recipe.stages.items() if isinstance(s, Rl) and s.simulator == "frozen"]
    if recipe.engine.name == VLLM and frozen:
        raise UserError(
            f"stage '{frozen[0]}' has simulator: frozen, a second model that is sampled beside the"
            " policy, and engine: vllm holds one at a time: use engine=local, or another simulator."
        )


def _check_overlong(recipe: Recipe) -> None:
    """Raise UserError for a length penalty whose limit no rollout can reach."""
    for name, stage in recipe.stages.items():
        if isinstance(stage, Rl) and stage.overlong_penalty:
            try:
                for period in stage.periods(recipe.budget):
                    stage.overlong_span(period.limits)
            except ValueError as error:
                raise UserError(f"in stage '{name}' {error}.") from error


def _check_seeds(recipe: Recipe) -> None:
    if len(set(recipe.seeds)) < len(recipe.seeds):
        raise UserError(f"seeds={list(recipe.seeds)} names a seed twice: give each one once.")
    if recipe.seeds and recipe.seed:
        raise UserError(
            f"seed={recipe.seed} is one run and seeds={list(recipe.seeds)} several: for one alone"
            " set seeds=[] as well."
        )
    if recipe.seeds and not recipe.stages:
        raise UserError(
            f"the recipe '{recipe.recipe}' trains nothing, so there is no table over"
            f" seeds={list(recipe.seeds)}: run it with seed=N for each."
        )


def check_judge(judge: JudgeModel, needed: bool) -> None:
    """Raise UserError for a judge named by half, or not at all where one is needed."""
    named = [judge.url is not None, judge.model is not None]
    if any(named) != all(named) or (needed and not any(named)):
        raise UserError("a judge needs both a url and a model: set judge.url and judge.model.")


def recipe_of_run(run: Path) -> Recipe:
    """Return the recipe that a run folder was made with; the files it names may be gone by now.

    Raises UserError if the folder is not one run's, or one of another version's, PartError where a
    part of the user's cannot be imported here, and ConsentNeeded for modules of others: to read a
    recipe, and to show a run, may import what it names.
    """
    file = run / "recipe.json"
    if not file.exists():
        raise UserError(f"{run} is not a run: give a folder that 'fieldcraft run' wrote.")
    data = read_json(file, dict[str, Any], MAKE_ANEW)
    require_consent(file, data, [ask for ask in asks_of(data, run) if ask.name == "module"])
    try:
        recipe = build_recipe(data)
    except (PartError, SecretShown):  # a part of the user's is not where it was when the run began
        raise
    except UserError as error:
        raise UserError(
            f"{run} was made by another version of fieldcraft: use that version or run it anew."
        ) from error
    if recipe.seeds:
        raise UserError(
            f"{run} holds a run for every seed: give one of them, such as"
            f" {run / f'seed-{recipe.seeds[0]}'}."
        )
    return recipe


def _sentence(
    error: ValidationError, section: type[BaseModel], prefix: tuple[str, ...] = ()
) -> str:
    """Return a sentence about the key that pydantic complains of first; `prefix` is the place of
    the section in the recipe."""
    kind, clause, loc = first_problem(error)
    parts = _keys(loc)
    place = ".".join([*prefix, *parts])
    if kind == "extra_forbidden":
        above = "".join(f"{part}." for part in (*prefix, *parts[:-1]))
        return (
            f"unknown key '{place}'; {suggestion(parts[-1], keys_of(section, parts[:-1]), above)}"
        )
    if kind == "missing":
        return f"'{place}' is missing: give it a value."
    return f"'{place}' is wrong: {clause}."


def _keys(place: Sequence[str | int]) -> list[str]:
    """Return the place where pydantic found a problem, without the kinds of weight that it tells
    apart."""
    return [str(part) for part in place if part not in ("float", "Weighted")]


def keys_of(section: type[BaseModel], parts: Sequence[str]) -> list[str]:
    """Return the keys that a section, or one inside it, may have."""
    for part in parts:
        annotation = fields_of(section)[part].annotation
        section = next(  # a section, or one that may be null
            kind
            for kind in (annotation, *get_args(annotation))
            if isinstance(kind, type) and issubclass(kind, BaseModel)
        )
    return list(fields_of(section))
