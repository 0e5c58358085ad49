"""Recipe files, by the names of built-in recipes or by path, and overrides of their keys."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from fieldcraft.config.names import format_short
from fieldcraft.config.recipe import list_added_keys
from fieldcraft.config.renamed_keys import find_former_keys
from fieldcraft.config.validation_errors import InvalidRecipeError
from fieldcraft.records.paths import expand_home
from fieldcraft.records.reading import parse_yaml, raise_read_errors
from fieldcraft.types import UserError

RENAMED_RECIPES: Mapping[str, str] = {
    "afm-select": "afm-select-web, which drops what a model knows without tools, or"
    " afm-select-code, which drops what a model always solves",
}
BASE_KEY = "extends"  # name of a built-in recipe that provides the keys missing in a file
SHORTHAND_KEY = "engine"  # may be text alone; setting one of its keys converts it to a section


def list_builtin_recipes() -> list[str]:
    """Return the names of the built-in recipes."""
    folder = resources.files("fieldcraft.recipes")
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name[-5:] == ".yaml")


def read_recipe(name: str) -> dict[str, Any]:
    """Return the contents of a recipe file, by built-in name or path, merged over those of its base
    recipe. Raises UserError for a file that is missing or cannot be
    read, and for a key that was renamed."""
    data = _read_contents(expand_home(name))
    check_key_names(data, name)
    if BASE_KEY not in data:
        return data
    base = data.pop(BASE_KEY)
    if base not in list_builtin_recipes():
        raise UserError(
            f"{name} extends {format_short(base)}, which is not a built-in recipe: use one of"
            f" {', '.join(list_builtin_recipes())}."
        )
    return deep_merge(read_recipe(base), data)


def check_key_names(data: dict[str, Any], file: str = "") -> None:
    """Raise InvalidRecipeError for keys in the contents of a recipe that were renamed or removed.
    `file` is the one that holds them."""
    with raise_read_errors(file or "the recipe", "write it flatter"):
        if sentences := find_former_keys(data, list_added_keys):
            prefix = f"{file}: " if file else ""
            raise InvalidRecipeError([f"{prefix}{sentence}" for sentence in sentences])


def deep_merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings recursively. For other values, `override` takes precedence."""
    result = dict(base)
    for key, value in override.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = deep_merge(old, value)
        else:
            result[key] = value
    return result


def _read_contents(name: str) -> dict[str, Any]:
    if name in list_builtin_recipes():
        text = (resources.files("fieldcraft.recipes") / f"{name}.yaml").read_bytes()
    elif Path(name).suffix in (".yaml", ".yml") or (name and Path(name).exists()):
        with raise_read_errors(name, "give the path of a YAML file"):
            text = Path(name).read_bytes()
    elif name in RENAMED_RECIPES:
        raise UserError(f"the recipe '{name}' no longer exists: use {RENAMED_RECIPES[name]}.")
    else:
        similar = get_close_matches(name, list_builtin_recipes(), n=1)
        advice = f"; did you mean '{similar[0]}'?" if similar else "."
        raise UserError(
            f"there is no recipe '{name}': give a path to a YAML file or one of"
            f" {', '.join(list_builtin_recipes())}{advice}"
        )
    data = parse_yaml(text, name, "correct the file")
    if not isinstance(data, dict):
        raise UserError(f"{name} is not a YAML mapping with keys of a recipe: correct the file.")
    return data


def get_default_run_folder(name: str, overrides: list[str]) -> Path:
    """Return the default folder of a run of a recipe, runs/RECIPE[-seedN]. Raises UserError as
    `load_recipe` does."""
    data = read_recipe(name)
    for override in overrides:
        apply_override(data, override)
    seed = f"-seed{data['seed']}" if data.get("seed") else ""
    return Path("runs", f"{data.get('name')}{seed}")


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set the key of `override`, such as stages.rl.steps=7, in the data of a recipe. Numbers are
    indices of lists: tools.0.cost=3. Raises UserError for an invalid index or key."""
    key, equals, value = override.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"'{override}' is not an override: write key=value, as in seed=7.")
    *parents, last = key.split(".")
    node: Any = data
    if parents == [SHORTHAND_KEY] and isinstance(data.get(SHORTHAND_KEY), str):
        data[SHORTHAND_KEY] = {"name": data[SHORTHAND_KEY]}
    for parent in parents:
        if isinstance(node, dict):
            node.setdefault(parent, {})
        node = node[_resolve_key(node, parent, key)]
    name = _resolve_key(node, last, key)
    node[name] = parse_yaml(value, f"the value of '{format_short(override)[1:-1]}'", "quote it")


def _resolve_key(node: Any, name: str, key: str) -> str | int:
    """Return the part `name` of a key, converted to an index, from 0, if the node is a list."""
    if isinstance(node, list):
        if name.isdigit() and int(name) < len(node):
            return int(name)
        raise UserError(f"'{key}' cannot be set: the list has the indices 0 to {len(node) - 1}.")
    if not isinstance(node, dict):
        raise UserError(f"'{key}' cannot be set, because it is inside a single value.")
    return name
