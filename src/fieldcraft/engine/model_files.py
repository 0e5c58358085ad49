"""Writers of model and tokenizer folders that transformers and other programs can read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fieldcraft.engine.generation_config import GENERATION_CONFIG_FILE, read_eos_token_ids
from fieldcraft.engine.legacy_config import add_legacy_config_keys, add_legacy_tokenizer_keys
from fieldcraft.records.files import copy_file_mode, raise_write_errors, write_json
from fieldcraft.records.reading import read_json


def write_model(folder: Path, model: Any, state: Mapping[str, Tensor] | None = None) -> None:
    """Write a model to a folder, with the weights in `state` if given."""
    tensors = (model.state_dict() if state is None else state).values()
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    dtype = max(floats, key=Tensor.numel).dtype
    with raise_write_errors(folder):
        model.save_pretrained(folder, state_dict=state)  # this empties the state
    copy_file_mode(folder, folder / "config.json")
    add_legacy_config_keys(folder, find_source_folder(model), dtype, model.config.attribute_map)


def write_tokenizer(folder: Path, tokenizer: Any) -> None:
    """Write a tokenizer to a folder."""
    with raise_write_errors(folder):
        tokenizer.save_pretrained(folder)
    add_legacy_tokenizer_keys(folder, find_source_folder(tokenizer))


def add_eos_token(folder: Path, token_id: int) -> None:
    """Add an end-of-sequence token to the generation config of a folder, so that other programs
    stop at it."""
    token_ids = read_eos_token_ids(folder)
    if token_id not in token_ids:
        file = folder / GENERATION_CONFIG_FILE
        config = read_json(file, dict[str, Any], "write the model again") if file.exists() else {}
        write_json(
            file, {**config, "eos_token_id": [*token_ids, token_id] if token_ids else token_id}
        )


def find_source_folder(loaded: Any) -> Path | None:
    """Return the folder that a model or tokenizer was loaded from. None if it was created here."""
    name = loaded.name_or_path
    return Path(name) if name and Path(name).is_dir() else None
