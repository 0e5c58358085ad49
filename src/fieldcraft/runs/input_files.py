"""Hashes of the input files of a run, recorded at its start.

A run that continues with other questions would mix two experiments. The corpus is copied to the
index of the run, so it is not compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from fieldcraft.config.recipe import Recipe
from fieldcraft.records.files import write_json
from fieldcraft.records.reading import RERUN_ADVICE, read_json
from fieldcraft.types import UserError

HASHES_FILE = "input_files.json"  # path of a file as in the recipe: SHA-256 of its content


def record_input_files(folder: Path, recipe: Recipe) -> None:
    """Record the hashes of files that the run in a folder has not used before."""
    recorded = _read_hashes(folder)
    files = _list_input_files(recipe)
    if added := {str(file): _hash_file(file) for file in files if str(file) not in recorded}:
        write_json(folder / HASHES_FILE, recorded | added)


def require_same_input_files(folder: Path, recipe: Recipe) -> None:
    """Raise UserError for a file that has changed since the run in a folder began."""
    recorded = _read_hashes(folder)
    for file in _list_input_files(recipe):
        if str(file) in recorded and recorded[str(file)] != _hash_file(file):
            raise UserError(
                f"{file} has changed since the run in {folder} began: restore the file, or choose"
                " another folder with --out."
            )


def _read_hashes(folder: Path) -> dict[str, str]:
    file = folder / HASHES_FILE
    return read_json(file, dict[str, str], RERUN_ADVICE) if file.exists() else {}


def _list_input_files(recipe: Recipe) -> Iterator[Path]:
    """Yield the local files of questions, demonstrations and pairs that exist."""
    files = (recipe.tasks, recipe.demonstrations, recipe.pairs)
    for file in (*files, *recipe.evaluation.tasks.values()):
        if file is not None and file.is_file():
            yield file


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
