"""Merging of a PEFT adapter into its base model."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fieldcraft.config.names import get_first_line
from fieldcraft.hub.model_conversion import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.train.lora import import_peft
from fieldcraft.train.model import load_config, load_model, load_tokenizer, to_dtype_name
from fieldcraft.train.parity import probe_model
from fieldcraft.train.saving import save_model
from fieldcraft.types import UserError


def write_merged_model(folder: Path, adapter: Path, base: Path) -> None:
    """Write the model `base` with an adapter merged into its weights, in float32, like the model of
    a stage with LoRA. The base has the precision of its stored dtype, as in training.

    Raises UserError if the adapter cannot be merged or does not fit the base.
    """
    dtype = load_config(base).dtype or torch.float32
    model = load_model(base, torch.device("cpu"), to_dtype_name(dtype)).float()
    has_tokenizer = any(
        (adapter / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")
    )
    peft_model = _load_adapter(model, adapter, base)
    probe = probe_model(peft_model)  # detects a merge that changes the policy
    tokenizer = load_tokenizer(adapter if has_tokenizer else base)
    save_model(folder, peft_model.merge_and_unload(), tokenizer, probe=probe)


def _load_adapter(model: Any, adapter: Path, base: Path) -> Any:
    peft = import_peft()
    misfit = f"{adapter / ADAPTER_WEIGHTS_FILE} does not fit the model in {base}"
    with (
        warnings.catch_warnings(),
        raise_read_errors(adapter / ADAPTER_CONFIG_FILE, "copy the adapter again"),
    ):
        warnings.simplefilter("ignore")  # about errors that are raised below
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
            peft_model = peft.get_peft_model(model, config)
            weights = load_file(adapter / ADAPTER_WEIGHTS_FILE)
            peft.set_peft_model_state_dict(peft_model, weights)
            expected = peft.get_peft_model_state_dict(peft_model, save_embedding_layers=False)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError) as error:
        reason = get_first_line(error)
        raise UserError(
            f"{misfit} ({reason}): set base_model_name_or_path in {adapter / ADAPTER_CONFIG_FILE}"
            " to its own base."
        ) from error
    if wrong := sorted(expected.keys() ^ weights.keys()):
        raise UserError(
            f"{misfit}, because the tensor {wrong[0]} is missing or unexpected: set"
            f" base_model_name_or_path in {adapter / ADAPTER_CONFIG_FILE} to its own base."
        )
    if not hasattr(peft_model, "merge_and_unload"):
        raise UserError(
            f"{adapter} is an adapter of type {config.peft_type.value}, which cannot be merged"
            " into weights: specify a LoRA adapter."
        )
    return peft_model.eval()
