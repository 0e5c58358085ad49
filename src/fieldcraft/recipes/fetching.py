"""Fetching of what a recipe names on a hub or in forms of other programs, before it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldcraft.config.hub_names import HubModel, HubRows, map_sources, model_named, rows_named
from fieldcraft.hub.models import checkpoint
from fieldcraft.hub.rows import fetch_rows
from fieldcraft.records.reading import MAKE_ANEW, read_json


def fetched(data: dict[str, Any], begun: Path | None) -> dict[str, Any]:
    """Return the contents of a recipe with folders and files of this machine in place of names.

    Args:
        data: the contents, of which nothing is known yet.
        begun: the folder of a run that may have begun with them. What is named without a revision
            is then what it began with, wherever the main branch is by now.

    Raises:
        UserError: what is named cannot be brought here.
    """
    before = [] if begun is None else _names_of(begun)

    def model(text: str) -> str:
        named = model_named(text)
        same = next((old for old in before if _is_same_model(named, old)), text)
        return str(checkpoint(Path(text if Path(text).exists() else str(same))))

    def rows(text: str) -> str:
        named = rows_named(text)
        if named is None:
            return text
        same = (old for old in before if isinstance(old, HubRows) and _is_same_rows(named, old))
        return str(fetch_rows(next(same, named)))

    return map_sources(data, checkpoint=model, file=rows)


def _names_of(run: Path) -> list[HubModel | HubRows]:
    """Return the names of the hub, each with its commit, that a run began with; none before it has
    begun."""
    manifest = run / "recipe.json"
    if not manifest.exists():
        return []
    found: list[HubModel | HubRows | None] = []

    def keep_model(text: str) -> str:
        found.append(model_named(text))
        return text

    def keep_rows(text: str) -> str:
        found.append(rows_named(text))
        return text

    data = read_json(manifest, dict[str, Any], MAKE_ANEW)
    map_sources(data, checkpoint=keep_model, file=keep_rows)
    return [name for name in found if name is not None]


def _is_same_model(named: HubModel | None, before: HubModel | HubRows) -> bool:
    if named is None or not isinstance(before, HubModel):
        return False
    return before.is_pinned and named == HubModel(before.name, None)


def _is_same_rows(named: HubRows, before: HubRows) -> bool:
    return before.is_whole and before == HubRows(
        named.name,
        named.revision or before.revision,
        named.config or before.config,
        named.split or before.split,
    )
