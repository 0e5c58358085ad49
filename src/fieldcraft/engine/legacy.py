"""Configurations that programs on transformers 4 read too.

Such are converters to GGUF and MLX, and older servers. transformers 5 renames keys and drops those
with the old names. Programs that know only the old ones then fall back to a default, such as a
rope_theta of 10000, without a word. So the old ones are written beside the new ones. Neither
configuration changes in training, apart from the type of the weights: what the folder of the first
model says stays right.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fieldcraft.records.files import write_json
from fieldcraft.records.reading import read_json

CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
FULL, SLIDING = (
    "full_attention",
    "sliding_attention",
)  # kinds of layers with parameters of their own
ANY_CLASS = "PreTrainedTokenizerFast"  # reads tokenizer.json in every version
# What a folder said of itself: where it came from, or code that is not copied.
OWN = ("transformers_version", "_name_or_path", "auto_map", "torch_dtype")
LEAKED = ("is_local", "local_files_only", "backend", "auto_map")
VOCABULARIES = ("tokenizer.model", "vocab.json", "merges.txt")  # which converters read


def mend_config(
    folder: Path, source: Path | None, dtype: torch.dtype, names: Mapping[str, str]
) -> None:
    """Complete the config.json of a folder.

    Args:
        folder: of the model.
        source: the folder that it was loaded from, if there is one.
        dtype: of its weights.
        names: other names of keys, and those that are written.
    """
    config, before = _read(folder / CONFIG), _read_old(source, CONFIG)
    kept = {key: value for key, value in before.items() if key not in OWN}
    others = {name: config[written] for name, written in names.items() if written in config}
    mended = {**_legacy_rope(config), **others, **kept, **config, **_types(dtype)}
    if isinstance(text := config.get("text_config"), dict):
        old = before.get("text_config") or {}
        mended["text_config"] = {**_legacy_rope(text), **old, **text, **_types(dtype)}
    write_json(folder / CONFIG, mended)


def mend_tokenizer(folder: Path, source: Path | None) -> None:
    """Complete the files of a tokenizer in a folder. `source` is the folder that it was loaded
    from, if there is one."""
    before = _read_old(source, TOKENIZER)
    mended = {**before, **_read(folder / TOKENIZER)}
    mended["tokenizer_class"] = before.get("tokenizer_class", ANY_CLASS)
    if mended["tokenizer_class"] == "TokenizersBackend":
        mended["tokenizer_class"] = ANY_CLASS
    if isinstance(mended.get("extra_special_tokens"), list):  # transformers 4 wants a mapping
        mended["additional_special_tokens"] = mended.pop("extra_special_tokens")
    mended.pop("chat_template", None)  # of the source, which may be out of date
    if (folder / TEMPLATE).exists():  # which earlier versions do not read
        mended["chat_template"] = (folder / TEMPLATE).read_text("utf-8")
    write_json(folder / TOKENIZER, {k: v for k, v in mended.items() if k not in LEAKED})
    for name in VOCABULARIES:
        if source is not None and (source / name).exists():
            shutil.copyfile(source / name, folder / name)


def _types(dtype: torch.dtype) -> dict[str, str]:
    name = str(dtype).removeprefix("torch.")
    return {"dtype": name, "torch_dtype": name}


def _legacy_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the old keys of rotary embeddings, for what `rope_parameters` says."""
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict):
        return {}
    found = dict(rope.get(FULL) or {} if FULL in rope or SLIDING in rope else rope)
    if not found.get("rope_theta"):
        return {}
    legacy = {"rope_theta": found.pop("rope_theta")}
    if "partial_rotary_factor" in found:
        legacy["partial_rotary_factor"] = found.pop("partial_rotary_factor")
    kind = found.get("rope_type", "default")
    if kind == "longrope":  # of which Phi 3 allows three keys, with this one outside
        legacy["original_max_position_embeddings"] = found.pop("original_max_position_embeddings")
        found = {"type": kind} | {k: v for k, v in found.items() if k not in ("type", "rope_type")}
    legacy["rope_scaling"] = None if kind == "default" else found
    if sliding := rope.get(SLIDING):
        legacy["rope_local_base_freq"] = sliding["rope_theta"]
    return legacy


def _read_old(source: Path | None, name: str) -> dict[str, Any]:
    if source is None or not (source / name).exists():
        return {}
    return _read(source / name)


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(file, dict[str, Any], "copy it from the model's source again")
    return found
