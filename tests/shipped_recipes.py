"""The built-in recipes with files that are there in place of those that a user brings."""

from pathlib import Path

from fieldcraft.recipes.files import read_recipe

ANY_FILE = Path(__file__)


def stand_ins(name: str) -> list[str]:
    """Return overrides of what a recipe needs, and of a model that it names on the hub."""
    written = read_recipe(name)
    keys = [*written.get("required_paths", []), *(["model"] if "model" in written else [])]
    return [f"{key}={ANY_FILE}" for key in keys]
