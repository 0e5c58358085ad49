"""An adapter of PEFT merged into the model below it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fieldcraft.config.names import first_line
from fieldcraft.hub.converted import ADAPTER, ADAPTER_WEIGHTS
from fieldcraft.records.reading import reading
from fieldcraft.train.lora import import_peft
from fieldcraft.train.model import load_config, load_model, load_tokenizer, name_of_type
from fieldcraft.train.parity import said_by_model
from fieldcraft.train.saving import save_model
from fieldcraft.types import UserError


def write_merged(folder: Path, adapter: Path, base: Path) -> None:
    """Write the model `base` with an adapter added to its weights, in float32, as the model of a
    stage with LoRA is. The base is rounded to the type that it is kept in, as it was in training.

    Raises UserError for an adapter that cannot be merged, or that does not fit the base.
    """
    kept = load_config(base).dtype or torch.float32
    model = load_model(base, torch.device("cpu"), name_of_type(kept)).float()
    own = any((adapter / name).exists() for name in ("tokenizer.json", "tokenizer_config.json"))
    whole = _with_adapter(model, adapter, base)
    said = said_by_model(whole)  # so that a merge that changes more than it should is noticed
    tokenizer = load_tokenizer(adapter if own else base)
    save_model(folder, whole.merge_and_unload(), tokenizer, said=said)


def _with_adapter(model: Any, adapter: Path, base: Path) -> Any:
    peft = import_peft()
    misfit = f"{adapter / ADAPTER_WEIGHTS} does not fit the model in {base}"
    with warnings.catch_warnings(), reading(adapter / ADAPTER, "copy the adapter again"):
        warnings.simplefilter("ignore")  # of what is refused below
        config = peft.PeftConfig.from_pretrained(str(adapter))
    if config.task_type not in (None, "CAUSAL_LM"):
        raise UserError(
            f"{adapter} is an adapter for {config.task_type} and not for a model that generates"
            " text: choose another one."
        )
    config.inference_mode = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = peft.get_peft_model(model, config)
            weights = load_file(adapter / ADAPTER_WEIGHTS)
            peft.set_peft_model_state_dict(whole, weights)
            wanted = peft.get_peft_model_state_dict(whole, save_embedding_layers=False)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError) as error:
        said = first_line(error)
        raise UserError(
            f"{misfit} ({said}): set base_model_name_or_path in {adapter / ADAPTER} to its own"
            " base."
        ) from error
    if wrong := sorted(wanted.keys() ^ weights.keys()):
        raise UserError(
            f"{misfit}, as the tensor {wrong[0]} is missing or has no place there: set"
            f" base_model_name_or_path in {adapter / ADAPTER} to its own base."
        )
    if not hasattr(whole, "merge_and_unload"):
        raise UserError(
            f"{adapter} is an adapter of the kind {config.peft_type.value}, which cannot be merged"
            " into weights: give one of LoRA."
        )
    return whole.eval()
