"""Resolution of user-provided checkpoint names to local folders.

A name is `org/name[@revision]` on the hub, a folder, a file for llama.cpp, or an adapter with its
base. An existing folder takes precedence over the hub. Quantised weights, detected from the files
next to them, are rejected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from fieldcraft.config.hub_names import (
    HubModel,
    get_hub_cache,
    get_snapshot_folder,
    identify_hub_model,
    parse_hub_model,
)
from fieldcraft.hub.client import HubUnreachableError, raise_hub_errors
from fieldcraft.hub.model_conversion import ADAPTER_CONFIG_FILE, ensure_full_model
from fieldcraft.records.paths import expand_home, require_utf8_name
from fieldcraft.records.reading import DamagedFileError, read_json
from fieldcraft.types import UserError

# Files next to weights: those that transformers reads, and the project's fieldcraft.json. Never
# code.
_SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "README.md")
_WEIGHT_FILES = "*.safetensors"
# Repositories contain copies of the weights in other formats in subfolders and under these names.
_IGNORED_FILES = ("*/*", "consolidated*")
_WEIGHT_INDEX_FILE = "model.safetensors.index.json"
# Written next to the weights by AutoGPTQ, AutoAWQ and ModelOpt, regardless of config.json.
QUANTISATION_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")


def resolve_checkpoint(path: Path) -> Path:
    """Return the folder of the full model that a path refers to; a path without a model is returned
    unchanged.

    Raises UserError for a name that the hub does not have or denies, and for a model that cannot be
    converted or whose name is not UTF-8.
    """
    require_utf8_name(path)
    model = parse_hub_model(path)
    if model is None or path.exists():
        return ensure_full_model(path, find_base=find_base_model)
    return ensure_full_model(fetch_model(model), find_base=find_base_model)


def find_base_model(name: str, revision: str | None) -> Path | None:
    """Return the folder of an adapter's base model, None if it is neither local nor a name on the
    hub. Raises UserError like `fetch_model`."""
    path = Path(expand_home(name))
    if path.exists():
        return path
    model = parse_hub_model(name)
    return (
        None if model is None else fetch_model(model if revision is None else model.pin(revision))
    )


def fetch_model(model: HubModel) -> Path:
    """Return the folder of a model on the hub. Cached files are not downloaded again, and for a
    complete cached commit no request is sent.

    Raises UserError if it cannot be downloaded, or is not a model in safetensors format.
    """
    pinned = _pin_revision(model)
    folder = get_snapshot_folder(pinned)
    if not _is_complete(pinned):
        with raise_hub_errors(model), _hide_progress_bars():
            files = _list_files(pinned)
            _download(pinned, *_SMALL_FILES)
        _require_usable(model, folder, files)
        with raise_hub_errors(model):
            _download(pinned, *_SMALL_FILES, _WEIGHT_FILES)
    return folder


def _pin_revision(model: HubModel) -> HubModel:
    """Return the model pinned to the current commit of its revision, or to the commit when the hub
    was last queried."""
    from huggingface_hub import HfApi

    if model.is_pinned:
        return model
    with raise_hub_errors(model):
        resolved = HfApi().resolve_revision(
            model.name, revision=model.revision, cache_dir=get_hub_cache()
        )
    return model.pin(resolved.resolved)


def _is_complete(model: HubModel) -> bool:
    """Return whether the cache has all required files of a commit."""
    try:
        with raise_hub_errors(model), _hide_progress_bars():
            _download(model, *_SMALL_FILES, _WEIGHT_FILES, local_files_only=True)
    except HubUnreachableError:
        return False
    return _has_weights(get_snapshot_folder(model))


def _download(model: HubModel, *patterns: str, local_files_only: bool = False) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(
        model.name,
        revision=model.revision,
        cache_dir=get_hub_cache(),
        allow_patterns=list(patterns),
        ignore_patterns=list(_IGNORED_FILES),
        local_files_only=local_files_only,
    )


@contextmanager
def _hide_progress_bars() -> Iterator[None]:
    """Download small files without a progress bar."""
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


class _WeightIndex(BaseModel):
    model_config = ConfigDict(extra="allow")

    weight_map: dict[str, str]


def _has_weights(folder: Path) -> bool:
    """Return whether all weight files are present, in a cache that other programs may have
    filled."""
    index = folder / _WEIGHT_INDEX_FILE
    if not index.exists():
        return any(folder.glob(_WEIGHT_FILES))
    files = set(read_json(index, _WeightIndex, "fetch the model again")["weight_map"].values())
    return all((folder / file).exists() for file in files)


def _list_files(model: HubModel) -> list[str]:
    """Return the names of the top-level files of a commit. Unlike a download, this fails
    immediately if the hub is unreachable."""
    from huggingface_hub import HfApi

    siblings = HfApi().model_info(model.name, revision=model.revision).siblings or []
    return [file.rfilename for file in siblings if "/" not in file.rfilename]


def _require_usable(model: HubModel, folder: Path, files: list[str]) -> None:
    """Raise UserError, before weights are downloaded, for a repository that is not a model, has no
    safetensors weights, or only quantised ones."""
    if not {"config.json", ADAPTER_CONFIG_FILE} & {*files}:
        gguf = [file for file in files if file.endswith(".gguf")]
        raise UserError(_describe_gguf_only(model, gguf[0]) if gguf else _describe_no_model(model))
    require_unquantised(folder, model)
    if not any(file.endswith(".safetensors") for file in files):
        raise UserError(
            f"{model} has no weights in safetensors, and files of other formats may execute code"
            " when they are loaded: choose a revision or a model with .safetensors files."
        )


def _describe_gguf_only(model: HubModel, file: str) -> str:
    return (
        f"{model} only has GGUF files: run 'hf download {model.name} {file} --local-dir .' and"
        f" give {file}."
    )


def _describe_no_model(model: HubModel) -> str:
    return (
        f"{model} is not a model, as it has neither a config.json nor an {ADAPTER_CONFIG_FILE}:"
        " give the name of a model that generates text."
    )


def require_cached(folder: Path, run: Path) -> Path:
    """Return the folder of the model that a run started with. Raises UserError for a model of the
    hub that is not cached on this machine."""
    model = identify_hub_model(folder)
    if model is not None and not folder.exists():
        raise UserError(
            f"{run} started with {model}, which is not in {get_hub_cache()}: run 'hf download"
            f" {model.name} --revision {model.revision}'."
        )
    return folder


def require_unquantised(folder: Path, display_name: object) -> None:
    """Raise UserError for a folder with quantised weights (AWQ, GPTQ, bitsandbytes, FP8 and
    similar); `display_name` is the user's name for it."""
    config_files = [name for name in QUANTISATION_FILES if (folder / name).exists()]
    if config_files or (method := _find_quantisation(folder)) is not None:
        evidence = f"see {config_files[0]}" if config_files else method
        raise UserError(
            f"{display_name} is quantised ({evidence}), and such weights cannot be trained or"
            " merged: use the unquantised model that it was made from."
        )


def _find_quantisation(folder: Path) -> str | None:
    """Return the quantisation method according to config.json, None without one."""
    try:
        config: dict[str, Any] = read_json(folder / "config.json", dict[str, Any], "")
    except (DamagedFileError, OSError):
        return None  # which has its own message
    for part in (config, config.get("text_config")):
        for key in ("quantization_config", "compression_config"):
            if isinstance(part, dict) and part.get(key):
                method = part[key].get("quant_method") if isinstance(part[key], dict) else None
                return str(method or f"see {key} in config.json")
    return None
