"""Loading of checkpoint folders, and choice of the device.

A folder is loaded completely or rejected: transformers would fill tensors that are missing or have
another shape with random numbers, and would prompt on the terminal for permission to run
third-party code.
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

from fieldcraft.config.hub_names import MODEL_FORMS
from fieldcraft.config.names import get_first_line
from fieldcraft.config.numbers import MAX_LAYERS
from fieldcraft.config.sections import Dtype
from fieldcraft.engine.local.requests import get_configured_eos
from fieldcraft.hub.models import require_unquantised
from fieldcraft.records.reading import advise_repair, require_readable
from fieldcraft.types import Tokenizer, UserError

# "Loading weights" and "Writing model shards" at every stage would hide the run's own progress.
disable_progress_bar()

AUX_LOSS_PATTERN = re.compile(r"loss_(coef|alpha|weight|factor|scale)")  # configuration keys
COPY_AGAIN_ADVICE = "copy its files from the model's source again"  # for a model outside a run

# transformers and safetensors raise arbitrary exceptions for missing, truncated or invalid files;
# tokenizers raises Exception itself.
READ_ERRORS = Exception


def to_torch_dtype(name: Dtype) -> torch.dtype:
    """Return the torch dtype of a recipe's `dtype`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def to_dtype_name(dtype: torch.dtype) -> Dtype:
    """Return the recipe's `dtype` that corresponds to a torch dtype."""
    return "float32" if dtype == torch.float32 else "bfloat16"


def choose_device(requested: str) -> torch.device:
    """Return the device of a recipe: `auto` selects a CUDA device if available. Raises UserError if
    `cuda` is requested and not available."""
    if requested == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda is set, but torch finds no GPU: use device=cpu.")
    return torch.device("cuda" if requested != "cpu" and torch.cuda.is_available() else "cpu")


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a checkpoint folder, without network access.

    If the folder has a `tokenizer.json`, only that file is used. AutoTokenizer would prefer a class
    named in another file, or the default class of the model's architecture, and split texts
    differently.

    Raises UserError if the folder has no tokenizer, or one that cannot be read.
    """
    if not (folder / "tokenizer.json").exists() and not (folder / "tokenizer_config.json").exists():
        advice = "copy tokenizer.json and tokenizer_config.json of the model there"
        raise UserError(f"{folder} contains no tokenizer: {advise_repair(folder, advice)}.")
    require_readable(folder)
    has_tokenizer_json = (folder / "tokenizer.json").exists()
    loader = PreTrainedTokenizerFast if has_tokenizer_json else AutoTokenizer
    try:
        return loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except READ_ERRORS as error:
        raise UserError(
            f"the tokenizer of {folder} cannot be read ({get_first_line(error)}):"
            f" {advise_repair(folder, COPY_AGAIN_ADVICE)}."
        ) from error


def require_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Raise UserError unless a checkpoint folder's tokenizer has the same tokens with the same ids
    as a tokenizer, so that its model can score another model's text."""
    vocabulary = tokenizer.backend_tokenizer.get_vocab()
    other_vocabulary = load_tokenizer(folder).backend_tokenizer.get_vocab()
    if differing := sorted(token for token, _ in vocabulary.items() ^ other_vocabulary.items()):
        raise UserError(
            f"the model in {folder} cannot score the tokens of the model that is trained, because"
            f" their tokenizers differ in {len(set(differing))} tokens, such as {differing[0]!r}:"
            " choose a teacher with the same tokenizer."
        )


def load_config(folder: Path) -> PreTrainedConfig:
    """Load the transformers configuration of a checkpoint folder, without network access.

    Raises UserError if it is missing or unreadable, if the weights are quantised, or if the model
    needs custom code.
    """
    require_readable(folder)
    file = folder / "config.json"
    if not file.exists():
        raise UserError(
            f"{folder} is not a checkpoint, because config.json is missing:"
            f" {advise_repair(folder, f'give {MODEL_FORMS}')}."
        )
    require_unquantised(folder, folder)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except READ_ERRORS as error:
        if _has_custom_code(folder):
            raise UserError(
                f"{folder} requires the custom code named in its config.json, which fieldcraft"
                " never runs: choose a model with an architecture that is part of transformers."
            ) from error
        raise UserError(
            f"{file} cannot be read ({get_first_line(error)}): "
            f"{advise_repair(folder, COPY_AGAIN_ADVICE)}."
        ) from error
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if layers > MAX_LAYERS:  # they would be made one by one, until the memory is full
        raise UserError(
            f"{file} has num_hidden_layers={layers}, more than any model:"
            f" {advise_repair(folder, COPY_AGAIN_ADVICE)}."
        )
    return config


def load_model(folder: Path, device: torch.device, dtype: Dtype = "float32") -> Any:
    """Load the causal LM of a checkpoint folder in Hugging Face format, without network access.

    Raises UserError if there is none, or if its weights are not complete, of the expected shapes,
    and finite.
    """
    make_empty_model(folder)
    try:
        with _silence_reports():
            model, loading_info = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=to_torch_dtype(dtype),
                local_files_only=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # they are reported below, by name
                output_loading_info=True,
            )
    except READ_ERRORS as error:
        raise UserError(_describe_unreadable(folder, error)) from error
    if problem := _find_mismatch(loading_info):
        raise UserError(
            f"{_find_weights_file(folder)} does not fit its config.json, because {problem}:"
            f" {advise_repair(folder, COPY_AGAIN_ADVICE)}."
        )
    if not all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values()):
        raise UserError(
            f"{_find_nonfinite_tensor(folder)} contains non-finite numbers, so it cannot be"
            " used: "
            f"{advise_repair(folder, f'{COPY_AGAIN_ADVICE}, or use an earlier checkpoint')}."
        )
    _require_known_eos(folder, model)
    return model.to(device)


def make_empty_model(folder: Path) -> Any:
    """Make the causal LM of a checkpoint folder from its configuration, without weights.

    Raises UserError as `load_model` does, except for the weights.
    """
    config = load_config(folder)
    try:
        with torch.device("meta"), _silence_reports():
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except READ_ERRORS as error:
        raise UserError(
            f"{folder} contains no causal language model ({get_first_line(error)}): choose a model"
            " that generates text."
        ) from error
    _require_causal(folder, model)
    return model


def describe_aux_losses(config: PreTrainedConfig) -> list[str]:
    """Return a note on each auxiliary loss of a configuration, such as the load balancing of a
    mixture of experts (`router_aux_loss_coef`). No stage uses auxiliary losses."""
    settings = config.get_text_config().to_dict()
    factors = {
        name: value for name, value in settings.items() if AUX_LOSS_PATTERN.search(name) and value
    }
    return [
        f"{name}={value:g} of its config.json is not added to the loss of any stage"
        for name, value in factors.items()
        if isinstance(value, float | int)
    ]


def _require_causal(folder: Path, model: Any) -> None:
    """Raise UserError for a model with bidirectional attention, such as BERT."""
    causal = [m.is_causal for m in model.modules() if isinstance(getattr(m, "is_causal", 0), bool)]
    if causal and not any(causal):
        raise UserError(
            f"{folder} contains no causal language model: {type(model).__name__} has bidirectional"
            " attention; choose a model that generates text."
        )


def _require_known_eos(folder: Path, model: Any) -> None:
    """Raise UserError if an end-of-sequence id is not in the vocabulary."""
    tokens = range(model.get_input_embeddings().num_embeddings)
    for end in get_configured_eos(model):
        if end is not None and not (isinstance(end, int) and end in tokens):
            raise UserError(
                f"{folder / 'generation_config.json'} contains an eos_token_id outside the"
                f" vocabulary of {len(tokens)} tokens: {advise_repair(folder, COPY_AGAIN_ADVICE)}."
            )


@contextmanager
def _silence_reports() -> Iterator[None]:
    """Silence the table in which transformers reports mismatches; they are raised as one message
    instead."""
    before = get_verbosity()
    set_verbosity(CRITICAL)
    try:
        yield
    finally:
        set_verbosity(before)


def _find_mismatch(loading_info: dict[str, Any]) -> str | None:
    """Return the first mismatch that transformers found between a model and its weights; None if
    there is none."""
    for name in sorted(loading_info["missing_keys"]):
        return f"the tensor {name} is missing{_count_others(loading_info['missing_keys'])}"
    for name, shape, expected in sorted(loading_info["mismatched_keys"]):
        others = _count_others(loading_info["mismatched_keys"])
        return (
            f"the tensor {name} has the shape {tuple(shape)} instead of {tuple(expected)}{others}"
        )
    for name in sorted(loading_info["unexpected_keys"]):
        return (
            "the model does not have the tensor "
            f"{name}{_count_others(loading_info['unexpected_keys'])}"
        )
    return None


def _count_others(names: set[Any]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _describe_unreadable(folder: Path, error: Exception) -> str:
    """Return the reason why the weights of a folder cannot be read, with the file that causes
    it."""
    if _is_out_of_memory(error):
        return (
            f"{folder} needs more memory than is free ({get_first_line(error)}): close other"
            " programs, or set dtype: bfloat16, which takes half of it."
        )
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt"):
                pass
        except (SafetensorError, OSError) as broken:
            return (
                f"{file} is damaged or cut off ({get_first_line(broken)}): "
                f"{advise_repair(folder, COPY_AGAIN_ADVICE)}."
            )
    return (
        f"{folder} cannot be loaded ({get_first_line(error)}): "
        f"{advise_repair(folder, COPY_AGAIN_ADVICE)}."
    )


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is a lack of memory: torch has an exception type for GPU memory; for
    host memory it raises a RuntimeError with such a message."""
    lacks = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return lacks or "allocate memory" in str(error)


def _find_nonfinite_tensor(folder: Path) -> str:
    """Return the file and name of a non-finite tensor."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is not a dict
                if not tensors.get_tensor(name).float().isfinite().all():
                    return f"the tensor {name} in {file}"
    return f"a tensor in {_find_weights_file(folder)}"


def _find_weights_file(folder: Path) -> Path:
    """Return the file that lists all tensors: the weights, or the index of their shards."""
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
    return next((folder / name for name in names if (folder / name).exists()), folder)


def _has_custom_code(folder: Path) -> bool:
    """Return whether an unreadable configuration refers to custom code."""
    try:
        return "auto_map" in PreTrainedConfig.get_config_dict(folder, local_files_only=True)[0]
    except READ_ERRORS:
        return False
