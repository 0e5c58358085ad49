"""Conversion of GGUF files (llama.cpp) and of adapters with their base model to full models.

Each is converted once, in a separate process, to a cache folder named after a hash of the file
contents, so a changed file gets another folder.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fieldcraft.config.hub_names import get_fieldcraft_cache, identify_hub_model
from fieldcraft.records.files import write_json
from fieldcraft.records.locks import lock_shared_file
from fieldcraft.records.reading import DamagedFileError, read_json
from fieldcraft.terminal.console import print_line
from fieldcraft.types import UserError

ADAPTER_CONFIG_FILE = "adapter_config.json"  # written by PEFT next to an adapter
ADAPTER_WEIGHTS_FILE = "adapter_model.safetensors"
GGUF_SUFFIX = ".gguf"
CONVERSION_MODULE = "fieldcraft.train.conversion"
_SPLIT_FILE = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_HASH_DIGITS = 16  # hex digits of a hash, enough to avoid collisions

FindBase = Callable[[str, str | None], Path | None]


def ensure_full_model(path: Path, *, find_base: FindBase) -> Path:
    """Return the folder of the full model for a GGUF file or an adapter; any other path is returned
    unchanged. `find_base` returns the folder of an adapter's base model, by its name and revision.

    Raises UserError for a model that cannot be converted.
    """
    file = _find_gguf(path)
    if file is not None:
        return _convert_gguf(file)
    if (path / ADAPTER_CONFIG_FILE).exists() and not _is_stage_adapter(path):
        return _merge_adapter(path, find_base)
    return path


def _is_stage_adapter(path: Path) -> bool:
    """Return whether an adapter belongs to a stage, whose run determines its base."""
    return (path.absolute().parent.parent / "recipe.json").exists()


# -- GGUF --------------------------------------------------------------------------------------


def _find_gguf(path: Path) -> Path | None:
    """Return the GGUF file that a path refers to: the path itself, or the only one in a folder
    without other weights. Raises UserError for one part of a split file, and if the choice is
    ambiguous."""
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(path.glob(f"*{GGUF_SUFFIX}"))
        if len(files) > 1:
            raise UserError(f"{path} has {len(files)} GGUF files: give one, such as {files[0]}.")
        return files[0] if files else None
    if path.suffix != GGUF_SUFFIX or not path.is_file():
        return None
    if part := _SPLIT_FILE.fullmatch(path.name):
        raise UserError(
            f"{path} is one of {int(part['count'])} parts of a model: join them with"
            f" 'llama-gguf-split --merge {path} {part['name']}.gguf', and give that file."
        )
    return path


def _convert_gguf(file: Path) -> Path:
    tokenizer_files = [file.with_name(name) for name in _TOKENIZER_FILES]
    hashes = [hash_file(path) for path in (file, *tokenizer_files) if path.exists()]
    return _convert_once(file.stem, hashes, "gguf", file)


# -- adapters ----------------------------------------------------------------------------------


class _AdapterConfig(BaseModel):
    base_model_name_or_path: str | None = None
    revision: str | None = None


def _merge_adapter(folder: Path, find_base: FindBase) -> Path:
    config: dict[str, Any] = read_json(
        folder / ADAPTER_CONFIG_FILE, _AdapterConfig, "copy the adapter again"
    )
    name = config.get("base_model_name_or_path")
    if not (folder / ADAPTER_WEIGHTS_FILE).exists():
        raise UserError(
            f"{folder} is an adapter without weights in safetensors: save it again with PEFT, which"
            f" writes {ADAPTER_WEIGHTS_FILE}."
        )
    base_folder = find_base(name, config.get("revision")) if name else None
    if base_folder is None or not (base_folder / "config.json").exists():
        raise UserError(
            f"{folder} is an adapter, and its base {name or 'model'} is not here: set"
            f" base_model_name_or_path in {folder / ADAPTER_CONFIG_FILE} to the folder of that"
            " model, or to its name on the hub."
        )
    files = [
        folder / ADAPTER_CONFIG_FILE,
        folder / ADAPTER_WEIGHTS_FILE,
        *(folder / name for name in _TOKENIZER_FILES),
    ]
    hashes = [
        *(hash_file(file) for file in files if file.exists()),
        *_fingerprint_model(base_folder),
    ]
    return _convert_once(folder.absolute().name, hashes, "adapter", folder, base_folder)


def _fingerprint_model(folder: Path) -> list[str]:
    """Return texts that identify a model: its commit, or the hashes of its files."""
    if (model := identify_hub_model(folder)) is not None:
        return [str(model)]
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")])
    return [hash_file(file) for file in files]


# -- the cache ---------------------------------------------------------------------------------


def _convert_once(name: str, hashes: list[str], kind: str, *sources: Path) -> Path:
    """Return the folder to which these sources are converted; convert them if it does not exist."""
    key = hashlib.sha256("".join(hashes).encode()).hexdigest() if len(hashes) > 1 else hashes[0]
    target = get_fieldcraft_cache() / "models" / f"{name}-{key[:_HASH_DIGITS]}"
    with lock_shared_file(target):
        if not target.exists():
            _convert(kind, target, sources)
    return target


def _convert(kind: str, target: Path, sources: tuple[Path, ...]) -> None:
    """Run a conversion process. Raises UserError with its error message."""
    print_line(f"Converting {sources[0]} to {target} (only once) ...", file=sys.stderr)
    command = [sys.executable, "-m", CONVERSION_MODULE, kind, str(target), *map(str, sources)]
    process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if process.returncode == 0:
        return
    message = (process.stderr.strip().splitlines() or [f"it ended with {process.returncode}"])[-1]
    if process.returncode == 2:
        raise UserError(message)
    raise UserError(
        f"{sources[0]} cannot be converted to a full model ({message.rstrip('.')}): close other"
        " programs if memory is short, or give the folder of a full model."
    )


class _FileHash(BaseModel):
    size: int
    changed: int
    sha256: str


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex. The hash of an unchanged file is cached."""
    stat = path.resolve().stat()
    path_hash = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    cache_file = get_fieldcraft_cache() / "hashes" / f"{path_hash}.json"
    state = {"size": stat.st_size, "changed": stat.st_mtime_ns}
    if digest := _read_cached_hash(cache_file, state):
        return digest
    with lock_shared_file(cache_file):
        if digest := _read_cached_hash(cache_file, state):  # another process has computed it
            return digest
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        write_json(cache_file, state | {"sha256": digest})
    return digest


def _read_cached_hash(cache_file: Path, state: dict[str, int]) -> str:
    """Return the cached hash of a file in this state, or ""."""
    try:
        cached: dict[str, Any] = read_json(cache_file, _FileHash, "")
    except DamagedFileError:
        return ""
    return str(cached["sha256"]) if state.items() <= cached.items() else ""
