"""Recipe files, by the names of those that are shipped, or by their paths."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from fieldcraft.config.names import shown
from fieldcraft.recipes.overrides import apply_override
from fieldcraft.records.paths import at_home
from fieldcraft.records.reading import parse_yaml, reading
from fieldcraft.types import UserError

RENAMED: Mapping[str, str] = {
    "afm-select": "afm-select-web, which drops what a model knows without tools, or"
    " afm-select-code, which drops what a model always solves",
}
LIKE = "like"  # names a shipped recipe, whose keys are those that a file does not have


def shipped() -> list[str]:
    """Return the names of the recipes in the package."""
    folder = resources.files("fieldcraft.recipes")
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name[-5:] == ".yaml")


def read_recipe(name: str) -> dict[str, Any]:
    """Return the contents of a recipe file, by shipped name or path, merged over those of the
    recipe that it is like. Raises UserError for a file that is not there or cannot be read."""
    data = _contents(at_home(name))
    if LIKE not in data:
        return data
    model = data.pop(LIKE)
    if model not in shipped():
        raise UserError(
            f"{name} is like {shown(model)}, which is no shipped recipe: use one of"
            f" {', '.join(shipped())}."
        )
    return merged(read_recipe(model), data)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both as one. Sections that both have are merged, too; of other keys `above`
    decides."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            both[key] = merged(old, value)
        else:
            both[key] = value
    return both


def _contents(name: str) -> dict[str, Any]:
    if name in shipped():
        text = (resources.files("fieldcraft.recipes") / f"{name}.yaml").read_bytes()
    elif Path(name).suffix in (".yaml", ".yml") or (name and Path(name).exists()):
        with reading(name, "give the path of a YAML file"):
            text = Path(name).read_bytes()
    elif name in RENAMED:
        raise UserError(f"there is no recipe '{name}' any more: use {RENAMED[name]}.")
    else:
        near = get_close_matches(name, shipped(), n=1)
        meant = f"; did you mean '{near[0]}'?" if near else "."
        raise UserError(
            f"there is no recipe '{name}': give a path to a YAML file or one of"
            f" {', '.join(shipped())}{meant}"
        )
    data = parse_yaml(text, name, "correct the file")
    if not isinstance(data, dict):
        raise UserError(f"{name} is no YAML mapping with the keys of a recipe: correct the file.")
    return data


def named_folder(name: str, overrides: list[str]) -> Path:
    """Return the folder of a run of a recipe for which nobody names another one:
    runs/RECIPE[-seedN]. Raises UserError as `load_recipe` does."""
    data = read_recipe(name)
    for override in overrides:
        apply_override(data, override)
    seed = f"-seed{data['seed']}" if data.get("seed") else ""
    return Path("runs", f"{data.get('recipe')}{seed}")
