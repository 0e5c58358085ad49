"""Checkpoints as users name them, as folders of this machine.

A name is `org/name[@revision]` of the hub, a folder, a file for llama.cpp, or an adapter with its
base. A folder that is there goes before the hub.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from fieldcraft.config.hub_names import (
    HubModel,
    folder_of,
    hub_cache,
    model_in,
    model_named,
)
from fieldcraft.hub.client import HubUnreachable, asking
from fieldcraft.hub.converted import ADAPTER, converted
from fieldcraft.hub.quantised import refuse_quantised
from fieldcraft.records.reading import read_json
from fieldcraft.types import UserError

# Beside weights: what transformers reads, and the project's own fieldcraft.json. Never code.
_SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "README.md")
_WEIGHTS = "*.safetensors"
# Folders hold other forms of the same weights, and so do files of this name.
_IGNORED = ("*/*", "consolidated*")
_INDEX = "model.safetensors.index.json"


def checkpoint(named: Path) -> Path:
    """Return the folder of a whole model that a user names; a path that holds none stays as it is.

    Raises UserError for a name that the hub does not have or give, and for what cannot be made a
    whole model.
    """
    model = model_named(named)
    if model is None or named.exists():
        return converted(named, base=base_of)
    return converted(fetch(model), base=base_of)


def base_of(name: str, revision: str | None) -> Path | None:
    """Return the folder of the model below an adapter, None where it is not on this machine and no
    name of the hub. Raises UserError as `fetch` does."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    model = model_named(name)
    return None if model is None else fetch(model if revision is None else model.at(revision))


def fetch(model: HubModel) -> Path:
    """Return the folder of a model of the hub. What the cache has is not fetched again, and of a
    commit that is whole there the hub is not asked.

    Raises UserError where it cannot be fetched, or is no model in safetensors.
    """
    pinned = _pinned(model)
    folder = folder_of(pinned)
    if not _is_whole(pinned):
        with asking(model), _without_bars():
            files = _files(pinned)
            _download(pinned, *_SMALL)
        _refuse_unusable(model, folder, files)
        with asking(model):
            _download(pinned, *_SMALL, _WEIGHTS)
    return folder


def _pinned(model: HubModel) -> HubModel:
    """Return the model at the commit that its revision is now, or was when the hub was last
    asked."""
    from huggingface_hub import HfApi

    if model.is_pinned:
        return model
    with asking(model):
        found = HfApi().resolve_revision(model.name, revision=model.revision, cache_dir=hub_cache())
    return model.at(found.resolved)


def _is_whole(model: HubModel) -> bool:
    """Return whether the cache has all that is wanted of a commit."""
    try:
        with asking(model), _without_bars():
            _download(model, *_SMALL, _WEIGHTS, local_files_only=True)
    except HubUnreachable:
        return False
    return _has_weights(folder_of(model))


def _download(model: HubModel, *wanted: str, local_files_only: bool = False) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(
        model.name,
        revision=model.revision,
        cache_dir=hub_cache(),
        allow_patterns=list(wanted),
        ignore_patterns=list(_IGNORED),
        local_files_only=local_files_only,
    )


@contextmanager
def _without_bars() -> Iterator[None]:
    """Fetch what is small without a line on the terminal."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


class _Index(BaseModel):
    model_config = ConfigDict(extra="allow")

    weight_map: dict[str, str]


def _has_weights(folder: Path) -> bool:
    """Return whether all files of the weights are there, in a cache that other programs have
    filled."""
    index = folder / _INDEX
    if not index.exists():
        return any(folder.glob(_WEIGHTS))
    files = set(read_json(index, _Index, "fetch the model again")["weight_map"].values())
    return all((folder / file).exists() for file in files)


def _files(model: HubModel) -> list[str]:
    """Return the names of the files of a commit, but for those in folders. Unlike a download, this
    ends at once where the hub cannot be reached."""
    from huggingface_hub import HfApi

    found = HfApi().model_info(model.name, revision=model.revision).siblings or []
    return [file.rfilename for file in found if "/" not in file.rfilename]


def _refuse_unusable(model: HubModel, folder: Path, files: list[str]) -> None:
    """Raise UserError, before its weights are fetched, for a repository that is no model, that has
    none in safetensors, or quantised ones only."""
    if not {"config.json", ADAPTER} & {*files}:
        gguf = [file for file in files if file.endswith(".gguf")]
        raise UserError(_only_gguf(model, gguf[0]) if gguf else _no_model(model))
    refuse_quantised(folder, model)
    if not any(file.endswith(".safetensors") for file in files):
        raise UserError(
            f"{model} has no weights in safetensors, and files of other kinds may run code when"
            " they are loaded: choose a revision or a model with .safetensors files."
        )


def _only_gguf(model: HubModel, file: str) -> str:
    return (
        f"{model} has GGUF files alone: run 'hf download {model.name} {file} --local-dir .' and"
        f" give {file}."
    )


def _no_model(model: HubModel) -> str:
    return (
        f"{model} is no model, as it has neither a config.json nor an {ADAPTER}: give the name of"
        " a model that generates text."
    )


def require_cached(folder: Path, run: Path) -> Path:
    """Return the folder of the model that a run began with. Raises UserError for one of the hub's
    that is not in the cache of this machine."""
    model = model_in(folder)
    if model is not None and not folder.exists():
        raise UserError(
            f"{run} began with {model}, which is not in {hub_cache()}: run 'hf download"
            f" {model.name} --revision {model.revision}'."
        )
    return folder
