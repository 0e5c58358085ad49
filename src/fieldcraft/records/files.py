"""Atomic writes: files and folders appear whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def draft_of(path: Path) -> Path:
    """The temporary path of a file or folder that is being written."""
    return path.with_name(f".{path.name}.draft")


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes `target` (new) when the block ends, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_of(target)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    yield draft
    draft.rename(target)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Where to write a file that becomes `path` when the block ends, whole or not at all, and is on
    the disk then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_of(path)
    yield draft
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)


def write_text(path: Path, pieces: Iterable[str]) -> None:
    """Write a text file, whole or not at all. Lone surrogates (bytes that were never text) become
    "?"."""
    with (
        atomic_file(path) as draft,
        draft.open("w", encoding="utf-8", errors="replace", newline="\n") as file,
    ):
        file.writelines(pieces)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(path, json.JSONEncoder(indent=1, ensure_ascii=False).iterencode(value))


def read_json(path: Path) -> Any:
    """Parse a JSON file."""
    return json.loads(path.read_text("utf-8"))
