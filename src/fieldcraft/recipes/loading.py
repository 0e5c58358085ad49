"""Recipes from files and run folders, with dotted overrides, and errors with suggestions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fieldcraft.config.collection import TEACHER
from fieldcraft.config.hub_names import replace_names_with_paths
from fieldcraft.config.names import (
    BUILTIN_COMPONENTS,
    ComponentError,
    ComponentKind,
    format_short,
    get_display_name,
)
from fieldcraft.config.recipe import (
    Recipe,
    list_added_keys,
    make_world_settings_model,
    resolve_stage_config,
)
from fieldcraft.config.renamed_keys import translate_stored
from fieldcraft.config.sections import WorldConfig
from fieldcraft.config.stages import Stage
from fieldcraft.config.url_secrets import ExposedSecretError, require_no_secrets
from fieldcraft.config.validation_errors import (
    describe_section_error,
    describe_validation_error,
    drop_union_tags,
)
from fieldcraft.recipes.clusters import require_valid_cluster
from fieldcraft.recipes.consent import require_consent
from fieldcraft.recipes.environments import require_valid_environment
from fieldcraft.recipes.exported import fill_from_model_folder
from fieldcraft.recipes.files import check_key_names, read_recipe
from fieldcraft.recipes.hub_sources import fetch_sources
from fieldcraft.recipes.overrides import apply_override
from fieldcraft.recipes.permissions import find_permission_requests
from fieldcraft.recipes.questions import (
    require_questions,
    require_valid_closed_book,
    require_valid_selection,
)
from fieldcraft.recipes.rules import (
    require_complete_judge,
    require_known_names,
    require_single_model,
    require_valid_collection,
    require_valid_overlong,
    require_valid_seeds,
)
from fieldcraft.records.paths import expand_home
from fieldcraft.records.reading import RERUN_ADVICE, raise_read_errors, read_json
from fieldcraft.types import UserError

# Names of run folders and report rows that are not stages; for a recipe with a model, `base` is the
# row of that model.
RESERVED_STAGE_NAMES = (
    *("world", "start", "index", "engine", "evaluations", "evaluation", "collect", "select"),
    *(*BUILTIN_COMPONENTS[ComponentKind.WORKFLOW], TEACHER, "team", "lone"),
)
MAX_NUMBER = 2**32  # exclusive limit of numbers in a recipe; random generators need smaller seeds


def load_recipe(name: str, overrides: list[str], resumed_folder: Path | None = None) -> Recipe:
    """Return a recipe by built-in name or path, with `key.path=value` overrides; `resumed_folder`
    as in `parse_recipe`.

    Raises UserError for an unknown name or key (with a suggestion) and for invalid values.
    """
    data = read_recipe(name)
    overridden = {re.split("[.=]", override)[0] for override in overrides}
    ignores_world = "world" in overridden or {"world", "tasks"} <= data.keys()
    for override in overrides:
        apply_override(data, override)
    check_key_names(data)  # before anything is fetched
    recipe = parse_recipe(data, resumed_folder)
    if ignores_world and recipe.has_task_files and recipe.world is not None:
        raise UserError(
            f"the world '{recipe.world.name}' would be ignored, because tasks=FILE provides"
            " the questions: remove one of the two."
        )
    return recipe


def load_world_recipe(name: str, recipe: str, overrides: list[str]) -> Recipe:
    """Return a recipe for a world: the recipe `recipe` if its world has this name, else an empty
    recipe with the world's defaults, with `key.path=value` overrides.

    Raises UserError as `load_recipe` does.
    """
    data = read_recipe(recipe)
    world = data.get("world")
    if not isinstance(world, dict) or world.get("name") != name:
        data = {"name": get_display_name(name), "world": {"name": name}, "stages": {}}
    for override in overrides:
        apply_override(data, override)
    return parse_recipe(data)


def parse_recipe(data: dict[str, Any], resumed_folder: Path | None = None) -> Recipe:
    """Validate the contents of a recipe file, and fetch its hub sources. A resumed run, in the
    folder `resumed_folder`, keeps the commits that it started with.

    Raises UserError with the first error."""
    with raise_read_errors("the recipe", "write it flatter"):
        _require_plain_values(data)
    recipe = build_recipe(fill_from_model_folder(fetch_sources(expand_home(data), resumed_folder)))
    for name in recipe.stages:
        if name == "base" and recipe.model:
            raise UserError(
                "the stage name 'base' is reserved for the model of the recipe:"
                " choose another name."
            )
        if name in RESERVED_STAGE_NAMES or not name.replace("-", "").replace("_", "").isalnum():
            raise UserError(
                f"a stage cannot be called '{name}': choose a name of letters, digits, - and _,"
                " which becomes the name of its folder."
            )
    require_known_names(recipe)
    require_valid_cluster(recipe)
    require_valid_seeds(recipe)
    for key in recipe.required_paths:
        if getattr(recipe, key) is None:
            raise UserError(f"recipe '{recipe.name}' needs {key}=PATH on the command line.")
    graders = {recipe.verdict_reward}.union(
        *(stage.reward_names for stage in recipe.stages.values())
    )
    require_complete_judge(recipe.judge, "judge" in {*graders, recipe.evaluation.verifier})
    keys = ("model", "tasks", "corpus", "demonstrations", "pairs")
    files: dict[str, Path | None] = {key: getattr(recipe, key) for key in keys}
    files |= {f"evaluation.tasks.{name}": path for name, path in recipe.evaluation.tasks.items()}
    for name, path in files.items():
        if path is not None and not path.exists():
            raise UserError(f"{name}={path} does not exist: give the path of an existing file.")
    require_valid_collection(recipe)
    require_valid_selection(recipe)
    require_valid_closed_book(recipe)
    require_single_model(recipe)
    require_valid_overlong(recipe)
    require_valid_environment(recipe)
    recipe = _fill_world_defaults(recipe)
    require_questions(recipe)
    return recipe


def _require_plain_values(value: Any, path: str = "") -> None:
    """Raise UserError for a key that is not text, and for a number outside the allowed range."""
    match value:
        case dict():
            for key, inner in value.items():
                if not isinstance(key, str):
                    where = f" in '{path}'" if path else ""
                    raise UserError(f"the key {key}{where} is not a string: quote it.")
                _require_plain_values(inner, f"{path}.{key}".strip("."))
        case list():
            for inner in value:
                _require_plain_values(inner, path)
        case int() | float() if not abs(value) < MAX_NUMBER:
            raise UserError(
                f"'{path}' is wrong: {format_short(value)} is not a number below {MAX_NUMBER}."
            )


def build_recipe(data: dict[str, Any]) -> Recipe:
    """Return the typed recipe of a mapping. Raises UserError with the first error, and
    ExposedSecretError."""
    check_key_names(data)
    data = replace_names_with_paths(expand_home(data))
    require_no_secrets(data)
    stages = data.get("stages")
    built = (
        {n: _build_stage(n, s, stages) for n, s in stages.items()}
        if isinstance(stages, dict)
        else {}
    )
    try:
        return Recipe.model_validate({**data, **({"stages": built} if built else {})})
    except ValidationError as error:
        raise UserError(describe_section_error(error, Recipe)) from error


def _build_stage(name: str, data: Any, stages: dict[str, Any]) -> Stage:
    if not isinstance(data, dict):
        raise UserError(f"stage '{name}' must be a mapping with a type and its settings.")
    if "type" not in data:
        raise UserError(_describe_missing_key(name, "type", stages))
    settings = resolve_stage_config(str(data["type"]))
    try:
        return settings.model_validate(data)
    except ValidationError as error:
        kind, _, place = describe_validation_error(error)
        if kind == "missing":
            raise UserError(
                _describe_missing_key(name, ".".join(drop_union_tags(place)), stages)
            ) from error
        raise UserError(describe_section_error(error, settings, ("stages", name))) from error


def _describe_missing_key(name: str, key: str, stages: dict[str, Any]) -> str:
    other_stages = ", ".join(other for other in stages if other != name)
    return f"stage '{name}' has no '{key}'; the other stages are {other_stages or 'none'}."


def _fill_world_defaults(recipe: Recipe) -> Recipe:
    """Return the recipe with all settings of its world, including defaults."""
    if recipe.world is None:
        return recipe
    known_settings = make_world_settings_model(recipe.world.name)
    try:
        settings = known_settings.model_validate(recipe.world.settings)
    except ValidationError as error:
        raise UserError(describe_section_error(error, known_settings, ("world",))) from error
    world = WorldConfig(name=recipe.world.name, **settings.model_dump(mode="json"))
    return recipe.model_copy(update={"world": world})


def load_run_recipe(run: Path) -> Recipe:
    """Return the recipe of a run folder; files named in it may no longer exist.

    Raises UserError if the folder is not a run or was written by an incompatible version,
    ComponentError if a user-defined component cannot be imported, and ConsentRequiredError for
    third-party modules: reading a recipe, and showing a run, may import modules named in it.
    """
    file = run / "recipe.json"
    if not file.exists():
        raise UserError(f"{run} is not a run: give a folder that 'fieldcraft run' wrote.")
    stored = read_json(file, dict[str, Any], RERUN_ADVICE)
    modules = [ask for ask in find_permission_requests(stored, run) if ask.name == "module"]
    require_consent(file, stored, modules)
    try:
        recipe = build_recipe(translate_stored(stored, list_added_keys))
    except (
        ComponentError,
        ExposedSecretError,
    ):  # a user-defined component has moved since the run started
        raise
    except UserError as error:
        raise UserError(
            f"{run} was written by another version of fieldcraft: use that version, or"
            " start a new run."
        ) from error
    if recipe.seeds:
        raise UserError(
            f"{run} contains one run per seed: give one of them, such as"
            f" {run / f'seed-{recipe.seeds[0]}'}."
        )
    return recipe
