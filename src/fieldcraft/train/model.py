"""The loading of a checkpoint folder, and the choice of where to run it.

A folder is loaded whole or refused: transformers would fill tensors that are missing, or that have
another shape, with random numbers, and would ask on the terminal whether to run the code of a
stranger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from logging import CRITICAL
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity

from fieldcraft.config.names import first_line
from fieldcraft.config.sections import Dtype
from fieldcraft.engine.local.requests import configured_ends
from fieldcraft.hub.quantised import refuse_quantised
from fieldcraft.records.remedies import remedy, require_readable
from fieldcraft.types import Tokenizer, UserError

# "Loading weights" and "Writing model shards" at every stage would bury the run's own progress.
disable_progress_bar()

OWN_LOSS = re.compile(r"loss_(coef|alpha|weight|factor|scale)")  # in a configuration's keys
COPY = "copy its files from the model's source again"  # what to do about a model of no run

# What transformers and safetensors raise for files that are missing, cut off or make no sense: what
# they like. That of tokenizers is Exception itself.
UNREADABLE = Exception


def torch_type(name: Dtype) -> torch.dtype:
    """Return the torch type of a recipe's `dtype`."""
    found: torch.dtype = getattr(torch, name)
    return found


def name_of_type(dtype: torch.dtype) -> Dtype:
    """Return the `dtype` of a recipe that computes as a model of a type does."""
    return "float32" if dtype == torch.float32 else "bfloat16"


def choose_device(wish: str) -> torch.device:
    """Return the device of a recipe: `auto` takes a CUDA device where there is one. Raises
    UserError if `cuda` is not there."""
    if wish == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda was asked for, but torch sees no GPU: use device=cpu.")
    return torch.device("cuda" if wish != "cpu" and torch.cuda.is_available() else "cpu")


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a checkpoint folder; the network is never asked.

    A folder with a `tokenizer.json` gets just that. AutoTokenizer would rather believe a class that
    is named beside it, or the usual one of the model's architecture, and split texts as that does.

    Raises UserError if the folder has no tokenizer, or one that cannot be read.
    """
    if not (folder / "tokenizer.json").exists() and not (folder / "tokenizer_config.json").exists():
        copy = "copy tokenizer.json and tokenizer_config.json of the model there"
        raise UserError(f"{folder} holds no tokenizer: {remedy(folder, copy)}.")
    require_readable(folder)
    plain = (folder / "tokenizer.json").exists()
    loader = PreTrainedTokenizerFast if plain else AutoTokenizer
    try:
        return loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except UNREADABLE as error:
        raise UserError(
            f"the tokenizer of {folder} cannot be read ({first_line(error)}):"
            f" {remedy(folder, COPY)}."
        ) from error


def require_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Raise UserError unless a checkpoint folder has the tokens of a tokenizer by the same ids, so
    that its model can read what another one wrote."""
    here = tokenizer.backend_tokenizer.get_vocab()
    there = load_tokenizer(folder).backend_tokenizer.get_vocab()
    if differing := sorted(token for token, _ in here.items() ^ there.items()):
        raise UserError(
            f"the model in {folder} cannot score the tokens of the model that is trained, because"
            f" their tokenizers differ in {len(set(differing))} tokens, such as {differing[0]!r}:"
            " choose a teacher with the same tokenizer."
        )


def load_config(folder: Path) -> PreTrainedConfig:
    """Load transformers' configuration of a checkpoint folder; the network is never asked.

    Raises UserError if there is none, if it cannot be read, if its weights are quantised, or if it
    needs code of its own.
    """
    require_readable(folder)
    file = folder / "config.json"
    if not file.exists():
        raise UserError(
            f"{folder} is no checkpoint, as it has no config.json:"
            f" {remedy(folder, 'choose a folder that has one')}."
        )
    refuse_quantised(folder, folder)
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except UNREADABLE as error:
        if _names_code(folder):
            raise UserError(
                f"{folder} needs the custom code that its config.json names, which is never run:"
                " choose a model of an architecture that transformers has itself."
            ) from error
        raise UserError(
            f"{file} cannot be read ({first_line(error)}): {remedy(folder, COPY)}."
        ) from error


def load_model(folder: Path, device: torch.device, dtype: Dtype = "float32") -> Any:
    """Load the causal LM of a checkpoint folder in Hugging Face format; the network is never asked.

    Raises UserError if there is none, or if its weights are not just those that it needs: all of
    them, in their shapes, and finite.
    """
    empty_model(folder)
    try:
        with _without_reports():
            model, found = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch_type(dtype),
                local_files_only=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                output_loading_info=True,
            )
    except UNREADABLE as error:
        raise UserError(_unreadable(folder, error)) from error
    if problem := _misfit(found):
        raise UserError(
            f"{_weights_file(folder)} does not fit config.json beside it, because {problem}:"
            f" {remedy(folder, COPY)}."
        )
    if not all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values()):
        raise UserError(
            f"{_broken_tensor(folder)} holds numbers that are not finite, so nothing can be"
            f" computed with it: {remedy(folder, f'{COPY}, or take an earlier checkpoint')}."
        )
    _refuse_unknown_ends(folder, model)
    return model.to(device)


def empty_model(folder: Path) -> Any:
    """Make the causal LM of a checkpoint folder without its weights: all that its configuration
    says.

    Raises UserError as `load_model` does, but for the weights.
    """
    config = load_config(folder)
    try:
        with torch.device("meta"), _without_reports():
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except UNREADABLE as error:
        raise UserError(
            f"{folder} holds no causal language model ({first_line(error)}): choose a model that"
            " generates text."
        ) from error
    _refuse_encoder(folder, model)
    return model


def loss_notes(config: PreTrainedConfig) -> list[str]:
    """Return a sentence on each term that a configuration would add to the loss, such as the one by
    which a mixture of experts uses all of them (`router_aux_loss_coef`). No stage has such a
    term."""
    said = config.get_text_config().to_dict()
    factors = {name: value for name, value in said.items() if OWN_LOSS.search(name) and value}
    return [
        f"{name}={value:g} of its config.json is added to the loss of no stage"
        for name, value in factors.items()
        if isinstance(value, float | int)
    ]


def _refuse_encoder(folder: Path, model: Any) -> None:
    """Raise UserError for a model whose tokens all see the ones after them (BERT and its kin)."""
    causal = [m.is_causal for m in model.modules() if isinstance(getattr(m, "is_causal", 0), bool)]
    if causal and not any(causal):
        raise UserError(
            f"{folder} holds no causal language model: {type(model).__name__} reads in both"
            " directions, so it cannot write; choose a model that generates text."
        )


def _refuse_unknown_ends(folder: Path, model: Any) -> None:
    """Raise UserError where sequences are to end with what is no token."""
    tokens = range(model.get_input_embeddings().num_embeddings)
    for end in configured_ends(model):
        if end is not None and not (isinstance(end, int) and end in tokens):
            raise UserError(
                f"{folder / 'generation_config.json'} holds an eos_token_id that is none of the"
                f" {len(tokens)} tokens: {remedy(folder, COPY)}."
            )


@contextmanager
def _without_reports() -> Iterator[None]:
    """Silence the table by which transformers reports what does not fit; here it becomes a
    sentence."""
    before = get_verbosity()
    set_verbosity(CRITICAL)
    try:
        yield
    finally:
        set_verbosity(before)


def _misfit(found: dict[str, Any]) -> str | None:
    """Return the first fault that transformers found between a model and its weights; None where
    there is none."""
    for name in sorted(found["missing_keys"]):
        return f"the tensor {name} is missing{_others(found['missing_keys'])}"
    for name, here, wanted in sorted(found["mismatched_keys"]):
        others = _others(found["mismatched_keys"])
        return f"the tensor {name} has the shape {tuple(here)} instead of {tuple(wanted)}{others}"
    for name in sorted(found["unexpected_keys"]):
        return f"the model has no place for the tensor {name}{_others(found['unexpected_keys'])}"
    return None


def _others(names: set[Any]) -> str:
    return f" (and so it is with {len(names) - 1} more)" if len(names) > 1 else ""


def _unreadable(folder: Path, error: Exception) -> str:
    """Return the reason why the weights of a folder cannot be read, with the file that is to
    blame."""
    if _is_lack_of_memory(error):
        return (
            f"{folder} needs more memory than is free ({first_line(error)}): close other programs,"
            " or set dtype: bfloat16, which takes half of it."
        )
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt"):
                pass
        except (SafetensorError, OSError) as broken:
            return f"{file} is damaged or cut off ({first_line(broken)}): {remedy(folder, COPY)}."
    return f"{folder} cannot be loaded ({first_line(error)}): {remedy(folder, COPY)}."


def _is_lack_of_memory(error: Exception) -> bool:
    """Return whether an error is a lack of memory: torch has a type for that of a GPU; that of the
    host is a RuntimeError which says so."""
    lacks = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return lacks or "allocate memory" in str(error)


def _broken_tensor(folder: Path) -> str:
    """Return the file and name of a tensor that is not finite."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no dict
                if not tensors.get_tensor(name).float().isfinite().all():
                    return f"the tensor {name} in {file}"
    return f"a tensor in {_weights_file(folder)}"


def _weights_file(folder: Path) -> Path:
    """Return the file with the names of all tensors: the weights, or the index of their parts."""
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
    return next((folder / name for name in names if (folder / name).exists()), folder)


def _names_code(folder: Path) -> bool:
    """Return whether a configuration that could not be read names code beside it."""
    try:
        return "auto_map" in PreTrainedConfig.get_config_dict(folder, local_files_only=True)[0]
    except UNREADABLE:
        return False
