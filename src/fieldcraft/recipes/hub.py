"""Models that are named as on Hugging Face's hub, or that come in forms of other programs.

The network is never asked: a name is looked up in the cache that other programs have filled.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from fieldcraft.records.reading import read_json

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
ADAPTER = "adapter_config.json"  # what PEFT writes beside an adapter


def cached_model(path: Path) -> Path:
    """Return the folder in the hub's cache of a model that is named as on the hub, and any other
    path as it is."""
    if path.exists() or not _NAME.fullmatch(str(path)):
        return path
    folder = _cache() / f"models--{str(path).replace('/', '--')}"
    main = folder / "refs" / "main"
    found = folder / "snapshots" / main.read_text().strip() if main.is_file() else folder
    return found if (found / "config.json").exists() else path


def how_to_get(path: Path) -> str | None:
    """Return a sentence that says how to get a checkpoint for a path that holds none: a name of the
    hub, weights of llama.cpp, an adapter of another program; None where nothing is known."""
    if path.suffix == ".gguf" or any(path.glob("*.gguf")):
        return (
            f"{path} holds weights for llama.cpp (GGUF), which are not trained here: give the"
            " folder of the checkpoint that they were made from, or convert them with transformers:"
            " AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=FILE).save_pretrained(OTHER)."
        )
    if (path / ADAPTER).exists():
        return _adapter(path)
    if not path.exists() and _NAME.fullmatch(str(path)):
        return f"{path} is no folder, and no model in the cache of Hugging Face: {_download(path)}."
    return None


def _adapter(path: Path) -> str:
    advice = "give the folder of a whole model"
    config: dict[str, Any] = read_json(path / ADAPTER, dict[str, Any], advice)
    base = str(config.get("base_model_name_or_path") or "its base model")
    there = Path(base).exists() or cached_model(Path(base)).exists()
    get = "" if there or not _NAME.fullmatch(base) else f"run 'hf download {base}', "
    return (
        f"{path} is an adapter on {base}, made by another program: {get}merge the two with PEFT, by"
        f" AutoPeftModelForCausalLM.from_pretrained('{path}').merge_and_unload()"
        ".save_pretrained(FOLDER), copy the tokenizer's files there, and give that folder."
    )


def _download(name: Path) -> str:
    return f"run 'hf download {name} --local-dir {name.name}' and give {name.name}"


def _cache() -> Path:
    """Where programs of Hugging Face keep what they have fetched."""
    settings = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = os.environ.get("HF_HOME") or Path(settings, "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()
