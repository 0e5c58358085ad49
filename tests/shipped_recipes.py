"""The built-in recipes with stand-ins for the files that a user provides."""

from pathlib import Path

from fieldcraft.recipes.files import read_recipe

ANY_FILE = Path(__file__)


def stand_ins(name: str) -> list[str]:
    """Return overrides for required files, and for a model that the recipe names on the hub."""
    written = read_recipe(name)
    keys = [*written.get("required_paths", []), *(["model"] if "model" in written else [])]
    return [f"{key}={ANY_FILE}" for key in keys]
