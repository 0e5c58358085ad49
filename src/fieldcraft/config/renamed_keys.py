"""Former recipe keys: an error in a user's recipe, translated in a stored one.

`renamed_keys.json` lists the former names of keys, the former values by current key, and the keys
that were removed, with advice. In its paths, `stages.*` matches each stage and `[NAME]` a component
of that name; list indices are omitted. So `tools[python].waive` is a setting of each tool `python`.
A removed key is a key of a section of the recipe.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from importlib import resources
from typing import Any

from fieldcraft.config.components import BUILTIN_COMPONENTS, LOCAL_ENGINE, ComponentKind

_TABLE = json.loads((resources.files("fieldcraft.config") / "renamed_keys.json").read_text("utf-8"))
RENAMED_KEYS: Mapping[str, str] = _TABLE["keys"]
RENAMED_VALUES: Mapping[str, Mapping[str, str]] = _TABLE["values"]
REMOVED_KEYS: Mapping[str, str] = _TABLE["removed"]
_STAGE = "stages.*"
_DEFAULT_NAMES = {"engine": LOCAL_ENGINE}  # default component of a section
# Key of the recipe's name, which each former stored recipe has. Other former names may be settings
# of user-defined components in current recipes.
_FORMER_NAME_KEY = "recipe"

# Maps a stage type to the keys that it adds to its built-in base type, which may have any name;
# None for an unknown type.
AddedKeys = Callable[[str], Collection[str] | None]


def find_former_keys(data: Mapping[str, Any], added_keys: AddedKeys) -> list[str]:
    """Return a sentence for each key or value of a recipe that was renamed or removed; `added_keys`
    are the keys of user-defined stage types."""
    renaming = _Renaming(added_keys)
    renaming.rename(data, (), "")
    removed = [f"{key} no longer exists: {REMOVED_KEYS[key]}." for key in _find_removed(data)]
    return renaming.sentences + removed


def translate_stored(data: Mapping[str, Any], added_keys: AddedKeys) -> dict[str, Any]:
    """Return the contents of a stored recipe or agent with the current keys, regardless of the
    version of fieldcraft that wrote it. Removed keys are left out."""
    translated: dict[str, Any] = dict(data)
    if _FORMER_NAME_KEY in data:
        translated = _Renaming(added_keys).rename(data, (), "")
    for path in _find_removed(translated):
        section, _, key = path.partition(".")
        translated[section] = {k: v for k, v in translated[section].items() if k != key}
    return translated


def _find_removed(data: Mapping[str, Any]) -> list[str]:
    """Return the removed keys that a recipe has."""
    paths = [path.partition(".") for path in REMOVED_KEYS]
    return [
        f"{section}.{key}"
        for section, _, key in paths
        if isinstance(data.get(section), Mapping) and key in data[section]
    ]


def builtin_added_keys(stage_type: str) -> Collection[str] | None:
    """Return the added keys of a stage type without importing it; None for user-defined types."""
    return () if stage_type in BUILTIN_COMPONENTS[ComponentKind.STAGE] else None


class _Renaming:
    """One pass over a recipe.

    Attributes:
        sentences: one for each renamed key or value.
    """

    def __init__(self, added_keys: AddedKeys) -> None:
        self._added_keys = added_keys
        self.sentences: list[str] = []

    def rename(self, value: Any, path: tuple[str, ...], pattern: str) -> Any:
        """Return a value with current keys. `path` is its location in the recipe, and `pattern`
        the same location in the notation of the table."""
        match value:
            case Mapping():
                return self._rename_section(value, path, pattern)
            case list() | tuple():
                places = ((*path, str(index)) for index in range(len(value)))
                return [self.rename(v, p, pattern) for v, p in zip(value, places, strict=True)]
        return value

    def _rename_section(
        self, section: Mapping[str, Any], path: tuple[str, ...], pattern: str
    ) -> dict[str, Any]:
        renamed = {}
        for key, value in section.items():
            count = len(self.sentences)
            entry = self._rename_entry(section, key, path, pattern)
            if pattern == _STAGE and self.sentences[count:] and self._is_added(section, key):
                del self.sentences[count:]
                entry = key, value
            renamed[entry[0]] = entry[1]
        return renamed

    def _rename_entry(
        self, section: Mapping[str, Any], key: str, path: tuple[str, ...], pattern: str
    ) -> tuple[str, Any]:
        value, path = section[key], (*path, str(key))
        if pattern == "stages":
            return key, self.rename(value, path, _STAGE)
        former = f"{pattern}.{key}".strip(".")
        component = section.get("name", _DEFAULT_NAMES.get(pattern))
        scoped = f"{pattern}[{component}].{key}"
        current = RENAMED_KEYS.get(former) or RENAMED_KEYS.get(scoped)
        new_key = key if current is None else current.rpartition(".")[2]
        current = current or former
        new_value = RENAMED_VALUES.get(current, {}).get(value) if isinstance(value, str) else None
        if new_value is not None:
            self._report(path, f"={value}", f"{new_key}={new_value}")
            return new_key, new_value
        if new_key != key:
            self._report(path, "", new_key)
        return new_key, self.rename(value, path, current)

    def _report(self, path: tuple[str, ...], value: str, current: str) -> None:
        self.sentences.append(f"{'.'.join(path)}{value} is now called {current}.")

    def _is_added(self, stage: Mapping[str, Any], key: str) -> bool:
        """Return whether a key belongs to a user-defined stage type, or to an unknown one."""
        if "type" not in stage:
            return False
        added = self._added_keys(str(stage["type"]))
        return added is None or key in added
