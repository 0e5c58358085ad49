"""Consent to the actions of an agent loaded from a folder, required before any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldcraft.recipes.consent import require_consent, require_consent_to_links
from fieldcraft.recipes.exported import read_agent_settings
from fieldcraft.records.reading import RERUN_ADVICE, read_json
from fieldcraft.runs.folder import RunFolder
from fieldcraft.runs.search import find_search
from fieldcraft.types import UserError


def require_trust(run: RunFolder | None, model: Path) -> None:
    """Raise ConsentRequiredError unless the user permits the actions of an agent, which belongs to
    a run or an exported model. Bare checkpoints are only data."""
    if run is None:
        exported = read_agent_settings(model)
        index = None if exported is None else exported[1]
    else:
        file = run.path / "recipe.json"
        data = read_json(file, dict[str, Any], RERUN_ADVICE)
        require_consent(file, data)
        require_consent_to_links(run.path, data)
        index = run.index
    if index is not None and index.exists():
        find_search().require_trusted(index)


def require_single_search(index: Path | None, url: str | None) -> None:
    """Check the options of a search that replaces an agent's own.

    Raises UserError if both an index and a server are given, or the folder has no index.
    """
    if index is not None and url is not None:
        raise UserError("only one search is supported: give --index or --search-url, not both.")
    if index is not None:
        find_search().require_index(index)
        find_search().require_trusted(index)
