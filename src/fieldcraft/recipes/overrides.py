"""Command-line overrides of recipe keys."""

from __future__ import annotations

from typing import Any

from fieldcraft.config.names import format_short
from fieldcraft.records.reading import parse_yaml
from fieldcraft.types import UserError

SHORTHAND_KEY = "engine"  # may be text alone; setting one of its keys converts it to a section


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
