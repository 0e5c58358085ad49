"""Models and tokenizers as folders that transformers and other programs read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fieldcraft.engine.legacy import mend_config, mend_tokenizer
from fieldcraft.engine.recommended import FILE, read_ends
from fieldcraft.records.files import open_to_readers, write_json, writing
from fieldcraft.records.reading import read_json


def write_model(folder: Path, model: Any, state: Mapping[str, Tensor] | None = None) -> None:
    """Write a model, with other weights than its own if there is a state."""
    tensors = (model.state_dict() if state is None else state).values()
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    dtype = max(floats, key=Tensor.numel).dtype
    with writing(folder):
        model.save_pretrained(folder, state_dict=state)  # which empties the state
    open_to_readers(folder, folder / "config.json")
    mend_config(folder, source_of(model), dtype, model.config.attribute_map)


def write_tokenizer(folder: Path, tokenizer: Any) -> None:
    """Write a tokenizer."""
    with writing(folder):
        tokenizer.save_pretrained(folder)
    mend_tokenizer(folder, source_of(tokenizer))


def add_end(folder: Path, end: int) -> None:
    """Have other programs stop at a token too: list it in the generation settings of a folder."""
    ends = read_ends(folder)
    if end not in ends:
        file = folder / FILE
        found = read_json(file, dict[str, Any], "write the model again") if file.exists() else {}
        write_json(file, {**found, "eos_token_id": [*ends, end] if ends else end})


def source_of(loaded: Any) -> Path | None:
    """Return the folder that a model or a tokenizer was loaded from, None for one that was made
    here."""
    name = loaded.name_or_path
    return Path(name) if name and Path(name).is_dir() else None
