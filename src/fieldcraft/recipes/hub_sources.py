"""Fetching of hub models and datasets named in a recipe, before the recipe is parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldcraft.config.hub_names import (
    HubDataset,
    HubModel,
    map_sources,
    parse_hub_dataset,
    parse_hub_model,
)
from fieldcraft.config.renamed_keys import builtin_added_keys, translate_stored
from fieldcraft.hub.dataset_files import fetch_dataset
from fieldcraft.hub.models import resolve_checkpoint
from fieldcraft.records.reading import RERUN_ADVICE, read_json


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
