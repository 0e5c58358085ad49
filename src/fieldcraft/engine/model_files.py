"""Writers of model and tokenizer folders that transformers and other programs can read.

Configurations can also be read by programs based on transformers 4, such as converters to GGUF and
MLX, and older servers. transformers 5 renames keys and drops the old names. Programs that know only
the old names then silently fall back to a default, such as a rope_theta of 10000. So both old and
new names are written. Apart from the dtype of the weights, training does not change these
configurations, so the values in the source model's folder stay valid.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fieldcraft.engine.attention import FULL_ATTENTION, SLIDING_ATTENTION
from fieldcraft.engine.generation_config import GENERATION_CONFIG_FILE, read_eos_token_ids
from fieldcraft.records.files import copy_file_mode, raise_write_errors, write_json
from fieldcraft.records.reading import read_json

CONFIG_FILE, TOKENIZER_CONFIG_FILE = "config.json", "tokenizer_config.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
FALLBACK_TOKENIZER_CLASS = "PreTrainedTokenizerFast"  # reads tokenizer.json in every version
# Keys that apply only to the source folder: its origin, or code that is not copied.
SOURCE_ONLY_KEYS = ("transformers_version", "_name_or_path", "auto_map", "torch_dtype")
LOADER_KEYS = ("is_local", "local_files_only", "backend", "auto_map")
VOCABULARY_FILES = ("tokenizer.model", "vocab.json", "merges.txt")  # read by converters


def write_model(folder: Path, model: Any, state: Mapping[str, Tensor] | None = None) -> None:
    """Write a model to a folder, with the weights in `state` if given."""
    tensors = (model.state_dict() if state is None else state).values()
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    dtype = max(floats, key=Tensor.numel).dtype
    with raise_write_errors(folder):
        model.save_pretrained(folder, state_dict=state)  # this empties the state
    copy_file_mode(folder, folder / CONFIG_FILE)
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


def add_legacy_config_keys(
    folder: Path, source: Path | None, dtype: torch.dtype, attribute_map: Mapping[str, str]
) -> None:
    """Complete the config.json of a folder.

    Args:
        folder: model folder.
        source: folder that the model was loaded from, or None.
        dtype: dtype of the weights.
        attribute_map: mapping from alternative key names to the names that are written.
    """
    config, source_config = (
        _read_config(folder / CONFIG_FILE),
        _read_source_config(source, CONFIG_FILE),
    )
    source_settings = {
        key: value for key, value in source_config.items() if key not in SOURCE_ONLY_KEYS
    }
    aliases = {
        name: config[canonical_name]
        for name, canonical_name in attribute_map.items()
        if canonical_name in config
    }
    completed = {
        **_legacy_rope_keys(config),
        **aliases,
        **source_settings,
        **config,
        **_dtype_keys(dtype),
    }
    if isinstance(text_config := config.get("text_config"), dict):
        source_text_config = source_config.get("text_config") or {}
        completed["text_config"] = {
            **_legacy_rope_keys(text_config),
            **source_text_config,
            **text_config,
            **_dtype_keys(dtype),
        }
    write_json(folder / CONFIG_FILE, completed)


def add_legacy_tokenizer_keys(folder: Path, source: Path | None) -> None:
    """Complete the tokenizer files in a folder. `source` is the folder that the tokenizer was
    loaded from, or None."""
    source_config = _read_source_config(source, TOKENIZER_CONFIG_FILE)
    completed = {**source_config, **_read_config(folder / TOKENIZER_CONFIG_FILE)}
    completed["tokenizer_class"] = source_config.get("tokenizer_class", FALLBACK_TOKENIZER_CLASS)
    if completed["tokenizer_class"] == "TokenizersBackend":
        completed["tokenizer_class"] = FALLBACK_TOKENIZER_CLASS
    if isinstance(completed.get("extra_special_tokens"), list):  # transformers 4 expects a mapping
        completed["additional_special_tokens"] = completed.pop("extra_special_tokens")
    completed.pop("chat_template", None)  # the source's, which may be out of date
    if (folder / CHAT_TEMPLATE_FILE).exists():  # earlier versions do not read this file
        completed["chat_template"] = (folder / CHAT_TEMPLATE_FILE).read_text("utf-8")
    write_json(
        folder / TOKENIZER_CONFIG_FILE, {k: v for k, v in completed.items() if k not in LOADER_KEYS}
    )
    for name in VOCABULARY_FILES:
        if source is not None and (source / name).exists():
            shutil.copyfile(source / name, folder / name)


def _dtype_keys(dtype: torch.dtype) -> dict[str, str]:
    name = str(dtype).removeprefix("torch.")
    return {"dtype": name, "torch_dtype": name}


def _legacy_rope_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the legacy keys of rotary embeddings that correspond to `rope_parameters`."""
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict):
        return {}
    rope_scaling = dict(
        rope.get(FULL_ATTENTION) or {}
        if FULL_ATTENTION in rope or SLIDING_ATTENTION in rope
        else rope
    )
    if not rope_scaling.get("rope_theta"):
        return {}
    legacy = {"rope_theta": rope_scaling.pop("rope_theta")}
    if "partial_rotary_factor" in rope_scaling:
        legacy["partial_rotary_factor"] = rope_scaling.pop("partial_rotary_factor")
    rope_type = rope_scaling.get("rope_type", "default")
    if rope_type == "longrope":  # Phi 3 allows three keys in rope_scaling; this one is outside
        legacy["original_max_position_embeddings"] = rope_scaling.pop(
            "original_max_position_embeddings"
        )
        rope_scaling = {"type": rope_type} | {
            k: v for k, v in rope_scaling.items() if k not in ("type", "rope_type")
        }
    legacy["rope_scaling"] = None if rope_type == "default" else rope_scaling
    if sliding := rope.get(SLIDING_ATTENTION):
        legacy["rope_local_base_freq"] = sliding["rope_theta"]
    return legacy


def _read_source_config(source: Path | None, name: str) -> dict[str, Any]:
    if source is None or not (source / name).exists():
        return {}
    return _read_config(source / name)


def _read_config(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(file, dict[str, Any], "copy it from the model's source again")
    return found
