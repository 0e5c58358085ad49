"""The run folder: what is in it, and how it survives being killed at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fieldcraft.config.recipe import FREE_KEYS
from fieldcraft.records.files import atomic_folder, draft_of, read_json, write_json
from fieldcraft.types import UserError


class RunFolder:
    """Where a run keeps everything: `recipe.json`, one folder a stage, `report.json`."""

    def __init__(self, path: Path, recipe: dict[str, Any]) -> None:
        """Open or begin a run.

        Raises UserError if the folder belongs to a run with other settings, or is not a run's.
        """
        self.path = path
        manifest = path / "recipe.json"
        if manifest.exists():
            found = read_json(manifest)
            bound, wanted = _bound(found), _bound(recipe)
            if bound != wanted:
                raise UserError(
                    f"{path} holds a run of recipe '{found.get('recipe')}' with other settings"
                    f" ({_difference(bound, wanted)}): choose another folder with --out."
                )
            if found != recipe:
                write_json(manifest, recipe)
        elif path.exists() and (not path.is_dir() or {*path.iterdir()} - {draft_of(manifest)}):
            raise UserError(f"{path} exists and is not a run: choose another folder with --out.")
        else:
            write_json(manifest, recipe)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder while the block runs. Raises UserError if another process does."""
        try:
            with FileLock(self.path / ".lock", timeout=0):
                yield
        except Timeout as error:
            raise UserError(
                f"{self.path} is being worked on by another process: wait for it, or choose"
                " another folder with --out."
            ) from error

    def once(self, name: str, make: Callable[[Path], None]) -> Path:
        """The folder `name`, made by `make` in a draft if it is not complete yet."""
        target = self.path / name
        if not target.exists():
            with atomic_folder(target) as draft:
                make(draft)
        return target


def _bound(recipe: dict[str, Any]) -> dict[str, Any]:
    """The settings that a run cannot change any more."""
    return {
        name: {key: inner for key, inner in value.items() if (name, key) not in FREE_KEYS}
        if isinstance(value, dict)
        else value
        for name, value in recipe.items()
    }


def _difference(found: Any, wanted: Any, place: str = "") -> str:
    """The first key in which two recipes differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys([*found, *wanted]):
            if found.get(key) != wanted.get(key):
                return _difference(found.get(key), wanted.get(key), f"{place}.{key}".strip("."))
    return f"{place}={found} there, {wanted} here"
