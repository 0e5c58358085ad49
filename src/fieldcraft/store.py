"""The run folder: what is in it, and how it survives being killed at any moment."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fieldcraft.config import FREE_KEYS
from fieldcraft.types import UserError


def _draft(path: Path) -> Path:
    """Where something is written before it takes its name."""
    return path.with_name(f".{path.name}.draft")


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes `target` (new) when the block ends, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(target)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    yield draft
    draft.rename(target)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(path)
    with draft.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def read_json(path: Path) -> Any:
    """Parse a JSON file."""
    return json.loads(path.read_text("utf-8"))


class MetricsLog:
    """A JSON-lines file with one flat row a step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
        """All complete rows; a row that a kill cut short is not one."""
        if not self.path.exists():
            return []
        text = self.path.read_text("utf-8")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def rewind(self, step: int) -> None:
        """Forget rows of steps that will be done again."""
        kept = [row for row in self.rows() if row["step"] < step]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = _draft(self.path)
        draft.write_text("".join(f"{json.dumps(row)}\n" for row in kept), "utf-8")
        draft.replace(self.path)

    def append(self, row: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(row)}\n")


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
        elif path.exists() and (not path.is_dir() or {*path.iterdir()} - {_draft(manifest)}):
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
