"""Names on the Hugging Face hub, and the paths of their local copies.

In memory, a recipe contains folders and files. Stored forms (`recipe.json`, the report) contain the
hub names of these copies with their commits, which stay valid later and on other machines. Both
conversions are pure: they access neither the network nor the disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

DATASET_PREFIX = "hub:"  # prefix of data sets; without it, a path is a file
# End of sentences that ask for a model or for a file.
MODEL_FORMS = "the folder of a model, a .gguf file, or a name on the hub such as org/name"
DATASET_FORM = f"a data set on the hub such as {DATASET_PREFIX}org/name"
_REPOSITORY_REGEX = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_COMMIT_REGEX = re.compile(r"[0-9a-f]{40}")
_NO_FILE = r"(?!.*\.(?:gguf|safetensors|bin|pth?)$)"  # weights that are not there are no repository
_MODEL_REGEX = re.compile(rf"{_NO_FILE}(?P<name>{_REPOSITORY_REGEX})(?:@(?P<revision>\w[\w./-]*))?")
_DATASET_REGEX = re.compile(
    rf"{DATASET_PREFIX}(?P<name>{_REPOSITORY_REGEX})(?:@(?P<revision>\w[\w.-]*))?"
    r"(?:/(?P<config>\w[\w.-]*))?(?::(?P<split>\w[\w.-]*))?"
)

TextTransform = Callable[[str], str]


class HubModel(NamedTuple):
    """A model repository, and its branch, tag or commit; None is the main branch."""

    name: str
    revision: str | None

    @property
    def is_pinned(self) -> bool:
        """Return whether the revision is a commit, which never changes."""
        return self.revision is not None and _COMMIT_REGEX.fullmatch(self.revision) is not None

    def pin(self, commit: str) -> HubModel:
        return self._replace(revision=commit)

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


class HubDataset(NamedTuple):
    """A data set repository, with its configuration and split; None if it has only one."""

    name: str
    revision: str | None
    config: str | None
    split: str | None

    @property
    def is_fully_specified(self) -> bool:
        """Return whether the name has a commit, a configuration and a split."""
        pinned = HubModel(self.name, self.revision).is_pinned
        return pinned and self.config is not None and self.split is not None

    def __str__(self) -> str:
        config = "" if self.config is None else f"/{self.config}"
        split = "" if self.split is None else f":{self.split}"
        return f"{DATASET_PREFIX}{HubModel(self.name, self.revision)}{config}{split}"


def parse_hub_model(text: str | Path) -> HubModel | None:
    """Parse `org/name[@revision]`. Return None for other texts."""
    found = _MODEL_REGEX.fullmatch(str(text))
    return found and HubModel(found["name"], found["revision"])


def parse_hub_dataset(text: str | Path) -> HubDataset | None:
    """Parse `hub:org/name[@revision][/config][:split]`. Return None for other texts."""
    found = _DATASET_REGEX.fullmatch(str(text))
    return found and HubDataset(found["name"], found["revision"], found["config"], found["split"])


# -- paths -------------------------------------------------------------------------------------


def get_hub_cache() -> Path:
    """Return the download cache that is shared by all Hugging Face programs."""
    home = os.environ.get("HF_HOME") or _get_cache_root() / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()


def get_fieldcraft_cache() -> Path:
    """Return the folder of files that fieldcraft derives from downloads: complete models, rows as
    JSON lines."""
    return _get_cache_root() / "fieldcraft"


def is_in_cache(path: Path) -> bool:
    """Return whether a path is in the folder of `get_fieldcraft_cache`, or is the folder that
    contains it."""
    cache = get_fieldcraft_cache()
    return path == cache.parent or path.is_relative_to(cache)


def _get_cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser()


def get_repository_folder(model: HubModel) -> Path:
    """Return the cache folder of all revisions of a model."""
    return get_hub_cache() / f"models--{model.name.replace('/', '--')}"


def get_snapshot_folder(model: HubModel) -> Path:
    """Return the folder of a model at a commit. It may not exist."""
    return get_repository_folder(model) / "snapshots" / str(model.revision)


def identify_hub_model(folder: Path) -> HubModel | None:
    """Return the model whose copy a folder of the cache is; None for other folders."""
    repository = folder.parent.parent
    kind, *names = repository.name.split("--")
    if (kind, folder.parent.name, len(names)) != ("models", "snapshots", 2):
        return None
    found = HubModel("/".join(names), folder.name)
    return found if found.is_pinned and repository.parent == get_hub_cache() else None


def get_dataset_file(dataset: HubDataset) -> Path:
    """Return the file of the rows of a fully specified data set. It may not exist. It is named
    after the data set, because tasks carry the file name as their source."""
    _, name = dataset.name.split("/")
    folder = (
        get_fieldcraft_cache()
        / "datasets"
        / dataset.name.replace("/", "--")
        / str(dataset.revision)
    )
    return folder / str(dataset.config) / str(dataset.split) / f"{name.replace('.', '-')}.jsonl"


def identify_hub_dataset(file: Path) -> HubDataset | None:
    """Return the data set whose rows a file of the cache contains; None for other files."""
    root = get_fieldcraft_cache() / "datasets"
    parts = file.relative_to(root).parts if file.is_relative_to(root) else ()
    if len(parts) != 5:
        return None
    name, commit, config, split, _ = parts
    return HubDataset(name.replace("--", "/", 1), commit, config, split)


# -- recipes -----------------------------------------------------------------------------------


def replace_paths_with_names(data: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a recipe with local copies replaced by hub names."""
    return map_sources(
        data,
        checkpoint=lambda text: str(identify_hub_model(Path(text)) or text),
        file=lambda text: str(identify_hub_dataset(Path(text)) or text),
    )


def replace_names_with_paths(data: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a recipe with fully specified hub names replaced by the paths of their
    local copies, which may not exist."""
    return map_sources(data, checkpoint=_locate_model, file=_locate_dataset)


def _locate_model(text: str) -> str:
    model = parse_hub_model(text)
    is_local = model is None or not model.is_pinned or Path(text).exists()
    return text if model is None or is_local else str(get_snapshot_folder(model))


def _locate_dataset(text: str) -> str:
    dataset = parse_hub_dataset(text)
    return (
        text
        if dataset is None or not dataset.is_fully_specified
        else str(get_dataset_file(dataset))
    )


def map_sources(
    data: dict[str, Any], *, checkpoint: TextTransform, file: TextTransform
) -> dict[str, Any]:
    """Return the contents of a recipe with each checkpoint and each data file transformed by a
    function. Models with a url are unchanged, because their names are names on a server."""
    map_checkpoint, map_file = _apply_to_texts(checkpoint), _apply_to_texts(file)
    found = _map_at(data, ("model",), map_checkpoint)
    found = _map_at(found, ("stages", "*", "teacher", "checkpoint"), map_checkpoint)
    found = _map_at(found, ("evaluation", "tasks", "*"), map_file)
    for key in ("tasks", "corpus", "demonstrations", "pairs"):
        found = _map_at(found, (key,), map_file)

    def map_local_model(section: Any) -> Any:
        """Return a teacher, or a member of its team, with its model transformed if it is local."""
        url = section.get("url") if isinstance(section, Mapping) else None
        return section if url is not None else _map_at(section, ("model",), map_checkpoint)

    if map_local_model(teacher := found.get("teacher")) is teacher:
        return found
    return _map_at(
        _map_at(found, ("teacher",), map_local_model), ("teacher", "members", "*"), map_local_model
    )


def _apply_to_texts(transform: TextTransform) -> Callable[[Any], Any]:
    """Return a function that transforms texts and paths, and returns other values unchanged."""
    return lambda value: transform(str(value)) if isinstance(value, str | Path) and value else value


def _map_at(data: Any, path: tuple[str, ...], transform: Callable[[Any], Any]) -> Any:
    """Return a value with its part at a path transformed; `*` matches every key."""
    if not path:
        return transform(data)
    if not isinstance(data, Mapping):
        return data
    keys = data if path[0] == "*" else [key for key in path[:1] if key in data]
    return {**data, **{key: _map_at(data[key], path[1:], transform) for key in keys}}
