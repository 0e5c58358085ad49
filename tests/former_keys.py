"""Contents of files written by versions with former recipe keys."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldcraft.config.renamed_keys import RENAMED_KEYS, RENAMED_VALUES

PRESET = {"kl_in": "reward"}  # a user-defined algorithm
FORMER_KEYS = {new: former.rpartition(".")[2] for former, new in RENAMED_KEYS.items()}
FORMER_VALUES = {
    path: {new: former for former, new in values.items()} for path, values in RENAMED_VALUES.items()
}


def with_former_keys(value: Any, path: str = "") -> Any:
    """Return the contents of a recipe as an earlier version wrote them."""
    if isinstance(value, list):
        return [with_former_keys(inner, path) for inner in value]
    if not isinstance(value, Mapping):
        return FORMER_VALUES.get(path, {}).get(value, value) if isinstance(value, str) else value
    former = {}
    for key, inner in value.items():
        place = "stages.*" if path == "stages" else f"{path}.{key}".strip(".")
        scoped = f"{path}[{value.get('name')}].{key}"
        name = FORMER_KEYS.get(place) or FORMER_KEYS.get(scoped) or key
        former[name] = with_former_keys(inner, place)
    return former


def write_former_keys(file: Path) -> dict[str, Any]:
    """Replace the keys of a recipe.json or fieldcraft.json by former ones; return the new
    contents."""
    former: dict[str, Any] = with_former_keys(json.loads(file.read_text()))
    file.write_text(json.dumps(former))
    return former
