"""Loading a checkpoint folder, and choosing where to run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from fieldcraft.config.sections import Dtype
from fieldcraft.types import UserError

# "Loading weights" and "Writing model shards" at every stage would bury the run's own progress.
disable_progress_bar()


def choose_device(wish: str) -> torch.device:
    """`auto` takes a CUDA device where there is one. Raises UserError if `cuda` is not there."""
    if wish == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda was asked for, but torch sees no GPU: use device=cpu.")
    return torch.device("cuda" if wish != "cpu" and torch.cuda.is_available() else "cpu")


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a checkpoint folder; the network is never asked.

    A folder with a `tokenizer.json` gets just that. AutoTokenizer would rather believe a class that
    is named beside it, or the usual one of the model's architecture, and split texts as that does.

    Raises UserError if the folder has no tokenizer.
    """
    if not (folder / "tokenizer.json").exists() and not (folder / "tokenizer_config.json").exists():
        raise UserError(
            f"{folder} holds no tokenizer: copy tokenizer.json and tokenizer_config.json of the"
            " model there."
        )
    plain = (folder / "tokenizer.json").exists()
    loader = PreTrainedTokenizerFast if plain else AutoTokenizer
    return loader.from_pretrained(folder, local_files_only=True)


def load_model(folder: Path, device: torch.device, dtype: Dtype = "float32") -> Any:
    """The causal LM of a checkpoint folder in Hugging Face format; the network is never asked.

    Raises UserError if there is no model in the folder.
    """
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} is no checkpoint: it has no config.json.")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} cannot be loaded: {str(error).splitlines()[0]}") from error
    return model.to(device)
