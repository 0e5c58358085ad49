"""Recipes from files and run folders, with dotted overrides, and errors with suggestions.

Hub models and datasets that a recipe names are fetched before it is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fieldcraft.config.components import ComponentKind
from fieldcraft.config.hub_names import (
    HubDataset,
    HubModel,
    map_sources,
    parse_hub_dataset,
    parse_hub_model,
    replace_names_with_paths,
)
from fieldcraft.config.names import (
    UTF8_ADVICE,
    ComponentError,
    format_short,
    get_display_name,
    is_utf8,
    resolve,
)
from fieldcraft.config.recipe import (
    Recipe,
    list_added_keys,
    make_world_settings_model,
    resolve_stage_config,
)
from fieldcraft.config.renamed_keys import builtin_added_keys, translate_stored
from fieldcraft.config.rules import RULES, Rule, find_ignored_world, require_valid
from fieldcraft.config.sections import DEFAULT_SPLIT_SIZE, WorldConfig
from fieldcraft.config.stages import Stage
from fieldcraft.config.url_secrets import require_no_secrets
from fieldcraft.config.validation_errors import InvalidRecipeError, describe_section_errors
from fieldcraft.hub.dataset_files import fetch_dataset
from fieldcraft.hub.models import resolve_checkpoint
from fieldcraft.recipes.consent import require_consent
from fieldcraft.recipes.exported import fill_from_model_folder
from fieldcraft.recipes.files import apply_override, check_key_names, read_recipe
from fieldcraft.recipes.permissions import find_permission_requests
from fieldcraft.records.paths import expand_home
from fieldcraft.records.reading import RERUN_ADVICE, raise_read_errors, read_json
from fieldcraft.types import UserError

MAX_NUMBER = 2**32  # exclusive limit of numbers in a recipe; random generators need smaller seeds


def load_recipe(
    name: str,
    overrides: list[str],
    resumed_folder: Path | None = None,
    rules: Sequence[Rule] = RULES,
) -> Recipe:
    """Return a recipe by built-in name or path, with `key.path=value` overrides; `resumed_folder`
    and `rules` as in `parse_recipe`.

    Raises UserError for an unknown name, and InvalidRecipeError for unknown keys (with suggestions)
    and invalid values.
    """
    data = read_recipe(name)
    overridden = {re.split("[.=]", override)[0] for override in overrides}
    ignores_world = "world" in overridden or {"world", "tasks"} <= data.keys()
    for override in overrides:
        apply_override(data, override)
    check_key_names(data)  # before anything is fetched
    if ignores_world:
        rules = (*rules, find_ignored_world)
    return parse_recipe(data, resumed_folder, rules)


def load_world_recipe(name: str, recipe: str, overrides: list[str]) -> Recipe:
    """Return a recipe for a world, with `key.path=value` overrides: the recipe `recipe` if its
    world has this name, else an empty one with the world's defaults. If the world has no split
    `heldout`, it is evaluated on all its splits.

    Raises UserError as `load_recipe` does.
    """
    data = read_recipe(recipe)
    world = data.get("world")
    if not isinstance(world, dict) or world.get("name") != name:
        data = {"name": get_display_name(name), "world": {"name": name}, "stages": {}}
        titles = resolve(ComponentKind.WORLD, name).splits
        if "heldout" not in titles:
            data["evaluation"] = {"splits": dict.fromkeys(titles, DEFAULT_SPLIT_SIZE)}
    for override in overrides:
        apply_override(data, override)
    return parse_recipe(data)


def parse_recipe(
    data: dict[str, Any], resumed_folder: Path | None = None, rules: Sequence[Rule] = RULES
) -> Recipe:
    """Validate the contents of a recipe file by its types and `rules`, and fetch its hub sources. A
    resumed run, in the folder `resumed_folder`, keeps the commits that it started with.

    Raises InvalidRecipeError with all errors."""
    require_usable_values(data)
    recipe = build_recipe(fill_from_model_folder(fetch_sources(expand_home(data), resumed_folder)))
    require_valid(recipe, rules)
    return _fill_world_defaults(recipe)


def require_usable_values(data: dict[str, Any]) -> None:
    """Raise InvalidRecipeError for values that no key of a recipe accepts."""
    with raise_read_errors("the recipe", "write it flatter"):
        if unusable := list(_find_unusable_values(data)):
            raise InvalidRecipeError(unusable)


def _find_unusable_values(value: Any, path: str = "") -> Iterator[str]:
    """Yield a sentence for each key that is not text, each text that UTF-8 cannot encode, and each
    number outside the allowed range."""
    match value:
        case str() if not is_utf8(value):
            yield f"'{path}' is wrong: {format_short(value)} is not UTF-8: {UTF8_ADVICE}."
        case dict():
            for key, inner in value.items():
                where = f" in '{path}'" if path else ""
                if not isinstance(key, str):
                    yield f"the key {key}{where} is not a string: quote it."
                elif not is_utf8(key):
                    yield f"the key {format_short(key)}{where} is not UTF-8: {UTF8_ADVICE}."
                yield from _find_unusable_values(inner, f"{path}.{key}".strip("."))
        case list():
            for inner in value:
                yield from _find_unusable_values(inner, path)
        case int() | float() if not abs(value) < MAX_NUMBER:
            yield f"'{path}' is wrong: {format_short(value)} is not a number below {MAX_NUMBER}."


def build_recipe(data: dict[str, Any]) -> Recipe:
    """Return the typed recipe of a mapping. Raises InvalidRecipeError with all errors in its types,
    and ExposedSecretError."""
    check_key_names(data)
    data = replace_names_with_paths(expand_home(data))
    require_no_secrets(data)
    errors = list[UserError | str]()
    if isinstance(stages := data.get("stages"), dict):
        built = dict[str, Stage]()
        for name, stage in stages.items():
            try:
                built[name] = _build_stage(name, stage, stages)
            except InvalidRecipeError as error:
                errors += error.errors
            except UserError as error:
                errors.append(error)
        data = {**data, "stages": built}
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        errors += describe_section_errors(error, Recipe)
    if errors:
        raise InvalidRecipeError(errors)
    return recipe


def _build_stage(name: str, data: Any, stages: dict[str, Any]) -> Stage:
    def describe_missing(key: str) -> str:
        other_stages = ", ".join(other for other in stages if other != name)
        return f"stage '{name}' has no '{key}'; the other stages are {other_stages or 'none'}."

    if not isinstance(data, dict):
        raise UserError(f"stage '{name}' must be a mapping with a type and its settings.")
    if "type" not in data:
        raise UserError(describe_missing("type"))
    settings = resolve_stage_config(str(data["type"]))
    try:
        return settings.model_validate(data)
    except ValidationError as error:
        prefix = ("stages", name)
        sentences = describe_section_errors(error, settings, prefix, describe_missing)
        raise InvalidRecipeError(sentences) from error


def _fill_world_defaults(recipe: Recipe) -> Recipe:
    """Return the recipe with all settings of its world, including defaults."""
    if recipe.world is None:
        return recipe
    settings_model = make_world_settings_model(recipe.world.name)
    settings = settings_model.model_validate(recipe.world.settings)
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
    except InvalidRecipeError as error:
        for cause in error.errors:  # a user-defined component has moved since the run started
            if isinstance(cause, ComponentError):
                raise cause from error
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


# -- sources on the hub ------------------------------------------------------------------------


def fetch_sources(data: dict[str, Any], resumed_folder: Path | None) -> dict[str, Any]:
    """Return the contents of a recipe with names replaced by local folders and files.

    Args:
        data: contents of the recipe, not yet validated.
        resumed_folder: folder of a run that may have started with them. Names without a revision
            then refer to the commits that the run started with, not to the current main branch.

    Raises:
        UserError: a source cannot be fetched or converted.
    """
    pinned_names = [] if resumed_folder is None else _list_hub_names(resumed_folder)

    def fetch_model(text: str) -> str:
        wanted = parse_hub_model(text)
        source = next((pinned for pinned in pinned_names if _is_same_model(wanted, pinned)), text)
        return str(resolve_checkpoint(Path(text if Path(text).exists() else str(source))))

    def fetch_file(text: str) -> str:
        wanted = parse_hub_dataset(text)
        if wanted is None:
            return text
        matches = (
            pinned
            for pinned in pinned_names
            if isinstance(pinned, HubDataset) and _is_same_dataset(wanted, pinned)
        )
        return str(fetch_dataset(next(matches, wanted)))

    return map_sources(data, checkpoint=fetch_model, file=fetch_file)


def _list_hub_names(run_folder: Path) -> list[HubModel | HubDataset]:
    """Return the hub names with which a run started, each with its commit, or an empty list before
    the run has started."""
    manifest = run_folder / "recipe.json"
    if not manifest.exists():
        return []
    found: list[HubModel | HubDataset | None] = []

    def collect_model(text: str) -> str:
        found.append(parse_hub_model(text))
        return text

    def collect_dataset(text: str) -> str:
        found.append(parse_hub_dataset(text))
        return text

    stored = read_json(manifest, dict[str, Any], RERUN_ADVICE)
    data = translate_stored(stored, builtin_added_keys)
    map_sources(data, checkpoint=collect_model, file=collect_dataset)
    return [name for name in found if name is not None]


def _is_same_model(wanted: HubModel | None, pinned: HubModel | HubDataset) -> bool:
    if wanted is None or not isinstance(pinned, HubModel):
        return False
    return pinned.is_pinned and wanted == HubModel(pinned.name, None)


def _is_same_dataset(wanted: HubDataset, pinned: HubDataset) -> bool:
    return pinned.is_fully_specified and pinned == HubDataset(
        wanted.name,
        wanted.revision or pinned.revision,
        wanted.config or pinned.config,
        wanted.split or pinned.split,
    )
