"""Names on Hugging Face's hub, and the places of this machine where copies of them lie.

Inside the program a recipe holds folders and files. What is written down of it, `recipe.json` and
the report, holds the names that they are copies of, each with its commit: these mean the same
later and on other machines. Both directions are pure, so neither asks a network nor a disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

PREFIX = "hub:"  # of data sets; a path without it is a file
DEFAULT = "default"  # configuration of a data set that has no named ones
_REPOSITORY = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MODEL = re.compile(rf"(?P<name>{_REPOSITORY})(?:@(?P<revision>\w[\w./-]*))?")
_ROWS = re.compile(
    rf"{PREFIX}(?P<name>{_REPOSITORY})(?:@(?P<revision>\w[\w.-]*))?"
    r"(?:/(?P<config>\w[\w.-]*))?(?::(?P<split>\w[\w.-]*))?"
)

Change = Callable[[str], str]


class HubModel(NamedTuple):
    """A model repository, and the branch, tag or commit that is meant; None: its main branch."""

    name: str
    revision: str | None

    @property
    def is_pinned(self) -> bool:
        """Return whether the revision is a commit, which never changes."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def at(self, commit: str) -> HubModel:
        return self._replace(revision=commit)

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


class HubRows(NamedTuple):
    """A data set repository, with the configuration and the split that are meant; None: the only
    ones that it has."""

    name: str
    revision: str | None
    config: str | None
    split: str | None

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is left open: the name has a commit, a configuration and a
        split."""
        pinned = HubModel(self.name, self.revision).is_pinned
        return pinned and self.config is not None and self.split is not None

    def __str__(self) -> str:
        config = "" if self.config is None else f"/{self.config}"
        split = "" if self.split is None else f":{self.split}"
        return f"{PREFIX}{HubModel(self.name, self.revision)}{config}{split}"


def model_named(text: str | Path) -> HubModel | None:
    """Read `org/name[@revision]`. None for any other text."""
    found = _MODEL.fullmatch(str(text))
    return found and HubModel(found["name"], found["revision"])


def rows_named(text: str | Path) -> HubRows | None:
    """Read `hub:org/name[@revision][/config][:split]`. None for any other text."""
    found = _ROWS.fullmatch(str(text))
    return found and HubRows(found["name"], found["revision"], found["config"], found["split"])


# -- places ------------------------------------------------------------------------------------


def hub_cache() -> Path:
    """Return the folder in which all programs of Hugging Face keep what they fetch."""
    home = os.environ.get("HF_HOME") or _caches() / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()


def own_cache() -> Path:
    """Return the folder of what this project makes from files of others: whole models, rows as JSON
    lines."""
    return _caches() / "fieldcraft"


def _caches() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser()


def repository_of(model: HubModel) -> Path:
    """Return the folder of the cache that holds every revision of a model."""
    return hub_cache() / f"models--{model.name.replace('/', '--')}"


def folder_of(model: HubModel) -> Path:
    """Return the folder of a model at a commit, whether it is there or not."""
    return repository_of(model) / "snapshots" / str(model.revision)


def model_in(folder: Path) -> HubModel | None:
    """Return the model that a folder of the cache is a copy of; None for other folders."""
    repository = folder.parent.parent
    kind, *names = repository.name.split("--")
    if (kind, folder.parent.name, len(names)) != ("models", "snapshots", 2):
        return None
    found = HubModel("/".join(names), folder.name)
    return found if found.is_pinned and repository.parent == hub_cache() else None


def file_of(rows: HubRows) -> Path:
    """Return the file of the rows of a data set that is wholly named, whether it is there or not.
    Its own name is that of the data set, which tasks carry as their source."""
    _, name = rows.name.split("/")
    folder = own_cache() / "datasets" / rows.name.replace("/", "--") / str(rows.revision)
    return folder / str(rows.config) / str(rows.split) / f"{name.replace('.', '-')}.jsonl"


def rows_in(file: Path) -> HubRows | None:
    """Return the rows that a file of the cache is a copy of; None for other files."""
    root = own_cache() / "datasets"
    parts = file.relative_to(root).parts if file.is_relative_to(root) else ()
    if len(parts) != 5:
        return None
    name, commit, config, split, _ = parts
    return HubRows(name.replace("--", "/", 1), commit, config, split)


# -- recipes -----------------------------------------------------------------------------------


def as_named(data: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a recipe with names of the hub in place of the copies that it
    reads."""
    return map_sources(
        data,
        checkpoint=lambda text: str(model_in(Path(text)) or text),
        file=lambda text: str(rows_in(Path(text)) or text),
    )


def as_placed(data: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a recipe with the places of copies, whether these are there or not, in
    place of names of the hub that leave nothing open."""
    return map_sources(data, checkpoint=_placed_model, file=_placed_rows)


def _placed_model(text: str) -> str:
    model = model_named(text)
    here = model is None or not model.is_pinned or Path(text).exists()
    return text if model is None or here else str(folder_of(model))


def _placed_rows(text: str) -> str:
    rows = rows_named(text)
    return text if rows is None or not rows.is_whole else str(file_of(rows))


def map_sources(data: dict[str, Any], *, checkpoint: Change, file: Change) -> dict[str, Any]:
    """Return the contents of a recipe with each checkpoint and each file of data that it names
    changed by a function. Models behind a url are left alone, as the name is that of a server's."""
    model, path = _of_texts(checkpoint), _of_texts(file)
    found = _each(data, ("model",), model)
    found = _each(found, ("stages", "*", "teacher", "checkpoint"), model)
    found = _each(found, ("evaluation", "tasks", "*"), path)
    for key in ("tasks", "corpus", "demonstrations", "pairs"):
        found = _each(found, (key,), path)

    def local(section: Any) -> Any:
        """Return a teacher, or a seat of it, with its model changed if that is here."""
        url = section.get("url") if isinstance(section, Mapping) else None
        return section if url is not None else _each(section, ("model",), model)

    if local(teacher := found.get("teacher")) is teacher:
        return found
    return _each(_each(found, ("teacher",), local), ("teacher", "seats", "*"), local)


def _of_texts(change: Change) -> Callable[[Any], Any]:
    """Return a change of values that leaves all but texts and paths as they are."""
    return lambda value: change(str(value)) if isinstance(value, str | Path) and value else value


def _each(data: Any, place: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    """Return a value with the part at a place in it changed; `*` stands for every key."""
    if not place:
        return change(data)
    if not isinstance(data, Mapping):
        return data
    keys = data if place[0] == "*" else [key for key in place[:1] if key in data]
    return {**data, **{key: _each(data[key], place[1:], change) for key in keys}}
