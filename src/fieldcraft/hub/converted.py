"""Files for llama.cpp (GGUF) and adapters on a base, made into whole models.

Each is converted once, by a process of its own, into a folder of the cache that is named after what
the files hold, so a file that has changed has another one.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import BaseModel

from fieldcraft.config.hub_names import model_in, own_cache
from fieldcraft.records.files import make_folder, write_json
from fieldcraft.records.reading import Damaged, read_json
from fieldcraft.terminal.console import say
from fieldcraft.types import UserError

ADAPTER = "adapter_config.json"  # what PEFT writes beside an adapter
ADAPTER_WEIGHTS = "adapter_model.safetensors"
GGUF = ".gguf"
WORKER = "fieldcraft.train.conversion"
_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_ENOUGH = 16  # hex digits of a hash, which no two files of a user share

Base = Callable[[str, str | None], Path | None]


def converted(path: Path, *, base: Base) -> Path:
    """Return the folder of the whole model of a GGUF file or of an adapter; any other path as it
    is. `base` finds the folder of the model below an adapter, by its name and revision.

    Raises UserError for what cannot be converted.
    """
    file = _gguf_of(path)
    if file is not None:
        return _from_gguf(file)
    if (path / ADAPTER).exists() and not _is_of_run(path):
        return _merged(path, base)
    return path


def _is_of_run(path: Path) -> bool:
    """Return whether an adapter is that of a stage, whose run knows its base better."""
    return (path.absolute().parent.parent / "recipe.json").exists()


# -- GGUF --------------------------------------------------------------------------------------


def _gguf_of(path: Path) -> Path | None:
    """Return the GGUF file that is meant: the path itself, or the only one of a folder without
    other weights. Raises UserError for a part of one, and where several could be meant."""
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(path.glob(f"*{GGUF}"))
        if len(files) > 1:
            raise UserError(f"{path} has {len(files)} GGUF files: give one, such as {files[0]}.")
        return files[0] if files else None
    if path.suffix != GGUF or not path.is_file():
        return None
    if part := _PART.fullmatch(path.name):
        raise UserError(
            f"{path} is one of {int(part['count'])} parts of a model: join them by"
            f" 'llama-gguf-split --merge {path} {part['name']}.gguf', and give that file."
        )
    return path


def _from_gguf(file: Path) -> Path:
    beside = [file.with_name(name) for name in _TOKENIZER]
    hashes = [hash_of_file(found) for found in (file, *beside) if found.exists()]
    return _once(file.stem, hashes, "gguf", file)


# -- adapters ----------------------------------------------------------------------------------


class _Adapter(BaseModel):
    base_model_name_or_path: str | None = None
    revision: str | None = None


def _merged(folder: Path, base: Base) -> Path:
    config: dict[str, Any] = read_json(folder / ADAPTER, _Adapter, "copy the adapter again")
    name = config.get("base_model_name_or_path")
    if not (folder / ADAPTER_WEIGHTS).exists():
        raise UserError(
            f"{folder} is an adapter without weights in safetensors: save it again with PEFT, which"
            f" writes {ADAPTER_WEIGHTS}."
        )
    below = base(name, config.get("revision")) if name else None
    if below is None or not (below / "config.json").exists():
        raise UserError(
            f"{folder} is an adapter, and its base {name or 'model'} is not here: set"
            f" base_model_name_or_path in {folder / ADAPTER} to the folder of that model, or to its"
            " name on the hub."
        )
    files = [folder / ADAPTER, folder / ADAPTER_WEIGHTS, *(folder / name for name in _TOKENIZER)]
    hashes = [*(hash_of_file(file) for file in files if file.exists()), *_identity(below)]
    return _once(folder.absolute().name, hashes, "adapter", folder, below)


def _identity(folder: Path) -> list[str]:
    """Return texts that tell a model from others: its commit, or what its files hold."""
    if (model := model_in(folder)) is not None:
        return [str(model)]
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")])
    return [hash_of_file(file) for file in files]


# -- the cache ---------------------------------------------------------------------------------


def _once(name: str, hashes: list[str], kind: str, *sources: Path) -> Path:
    """Return the folder that a process makes of these sources, made if it is not there."""
    key = hashlib.sha256("".join(hashes).encode()).hexdigest() if len(hashes) > 1 else hashes[0]
    target = own_cache() / "models" / f"{name}-{key[:_ENOUGH]}"
    make_folder(target.parent)
    with FileLock(target.with_name(f".{target.name}.lock"), mode=0o600):
        if not target.exists():
            _convert(kind, target, sources)
    return target


def _convert(kind: str, target: Path, sources: tuple[Path, ...]) -> None:
    """Run a process that converts. Raises UserError with what the process says that it cannot
    do."""
    say(f"{sources[0]} is made into {target}, once ...", file=sys.stderr)
    command = [sys.executable, "-m", WORKER, kind, str(target), *map(str, sources)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return
    last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
    if done.returncode == 2:
        raise UserError(last)
    raise UserError(
        f"{sources[0]} cannot be made into a whole model ({last.rstrip('.')}): close other programs"
        " if memory is short, or give the folder of a whole model."
    )


class _Hashed(BaseModel):
    size: int
    changed: int
    sha256: str


def hash_of_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex. That of a file which has not changed since is kept."""
    found = path.resolve().stat()
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    kept = own_cache() / "hashes" / f"{place}.json"
    state = {"size": found.st_size, "changed": found.st_mtime_ns}
    try:
        known: dict[str, Any] = read_json(kept, _Hashed, "")
    except Damaged:
        known = {}
    if state.items() <= known.items():
        return str(known["sha256"])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    write_json(kept, state | {"sha256": digest})
    return digest
