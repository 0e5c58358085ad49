"""The beginning of a run: a folder is new, or holds a run of the same settings.

What only decides how a run is computed or shown may differ (`FREE_KEYS`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.recipes.consent import remember
from fieldcraft.records.files import draft_of, refuse_unwritable, write_json
from fieldcraft.records.reading import MAKE_ANEW, read_json
from fieldcraft.runs.folder import RunFolder
from fieldcraft.types import UserError

# What a run that is resumed may change: how a teacher, an engine, an environment or a search is
# reached, what decides how much memory it takes and which processes it has, and who shows its
# curves. `*` is any name.
FREE_KEYS = (
    ("cluster",),
    ("max_rows",),
    ("stages", "*", "optim", "micro_tokens"),
    ("stages", "*", "optim", "activation_checkpointing"),
    *(("engine", key) for key in ("python", "urls", "exchange", "timeout_seconds")),
    *(("environment", key) for key in ("python", "url", "sessions", "timeout_seconds")),
    *(("teacher", key) for key in ("url", "api_key_env", "prices")),
    *(("teacher", key) for key in ("concurrency", "timeout_seconds", "retries")),
    ("search", "api_key_env"),
    ("collect", "max_failed"),
    ("evaluation", "max_broken"),
    ("trackers",),
)


def open_run(path: Path, recipe: Recipe) -> RunFolder:
    """Begin a run, or resume one of the same settings.

    Raises UserError if the folder belongs to a run with other settings, or is not a run's.
    """
    refuse_other_run(path, recipe)
    manifest, wanted = path / "recipe.json", dump_recipe(recipe)
    if not manifest.exists() or read_json(manifest, dict[str, Any], MAKE_ANEW) != wanted:
        write_json(manifest, wanted)
    remember(manifest, wanted)
    return RunFolder(path, recipe)


def refuse_other_run(path: Path, recipe: Recipe) -> None:
    """Raise UserError for a folder in which a run of these settings can neither begin nor be
    resumed."""
    refuse_other(path)
    manifest = path / "recipe.json"
    if not manifest.exists():
        return
    found = _bound(read_json(manifest, dict[str, Any], MAKE_ANEW))
    wanted = _bound(dump_recipe(recipe))
    if found != wanted:
        raise UserError(
            f"{path} holds a run of recipe '{found.get('recipe')}' with other settings"
            f" ({_difference(found, wanted)}): choose another folder with --out."
        )


def refuse_other(path: Path) -> None:
    """Raise UserError for a folder that holds something else than a run, and for a place where none
    can be written."""
    if not path.exists():
        refuse_unwritable(path)
    elif not (path / "recipe.json").exists() and (
        not path.is_dir() or {*path.iterdir()} - {*_before(path)}
    ):
        raise UserError(f"{path} exists and is not a run: choose another folder with --out.")


def _before(path: Path) -> tuple[Path, Path]:
    """Return the paths that a folder may hold before a run begins in it."""
    return draft_of(path / "recipe.json"), RunFolder.questions_in(path)


def _bound(settings: Any, place: tuple[str, ...] = ()) -> Any:
    """Return the settings that a run cannot change any more."""
    if not isinstance(settings, dict):
        return settings
    return {
        key: _bound(inner, (*place, key))
        for key, inner in settings.items()
        if not any(_fits((*place, key), free) for free in FREE_KEYS)
    }


def _fits(place: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    return len(place) == len(pattern) and all(
        wanted in ("*", key) for key, wanted in zip(place, pattern, strict=True)
    )


def _difference(found: Any, wanted: Any, place: str = "") -> str:
    """Return the first key in which two recipes differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys([*found, *wanted]):
            if found.get(key) != wanted.get(key):
                return _difference(found.get(key), wanted.get(key), f"{place}.{key}".strip("."))
    return f"{place}={found} there, {wanted} here"
