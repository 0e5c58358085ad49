"""Conversion of a GGUF file (llama.cpp) to a transformers folder: weights, tokenizer, template.

transformers dequantises the weights. Properties that it does not import from the file are completed
here, or the file is rejected: the pre-tokenizer, rotary frequencies, and the token that ends a
turn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from fieldcraft.engine.model_files import add_eos_token
from fieldcraft.hub.model_conversion import GGUF_SUFFIX
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.train.model import READ_ERRORS, load_tokenizer
from fieldcraft.train.saving import save_model
from fieldcraft.types import UserError

_USE_SOURCE_ADVICE = "specify the folder or the hub name of the model that it was made from"
# Values of `tokenizer.ggml.pre`: GPT-2's pre-tokenizer, and GPT-2's with individual digits.
_GPT2_PRE_TOKENIZERS = ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling")
_DIGIT_PRE_TOKENIZERS = (
    "smollm",
    "starcoder",
    "refact",
    "command-r",
    "codeshell",
    "exaone",
    "minerva-7b",
)
_LOSSLESS_TYPES = ("F32", "F16", "F64")  # weight types that bfloat16 would round


def write_from_gguf(folder: Path, file: Path) -> None:
    """Write the model of a GGUF file: in bfloat16 if its weights are quantised or bfloat16, else in
    float32.

    Raises UserError if the file is damaged or has unsupported contents.
    """
    header = GgufHeader(file)
    tokenizer = _load_gguf_tokenizer(header)
    model = _load_gguf_model(header)
    save_model(folder, model, tokenizer)
    for end in header.end_token_ids:
        add_eos_token(folder, end)


class GgufHeader:
    """Header of a GGUF file, with the properties of its model.

    Args:
        file: path of the file.

    Raises:
        UserError: the file is damaged, or the package gguf is not installed.
    """

    def __init__(self, file: Path) -> None:
        try:
            import gguf
        except ImportError as error:
            raise UserError(
                f"{file} needs the package gguf: pip install 'fieldcraft[gguf]'."
            ) from error
        self.file = file
        with raise_read_errors(file, "fetch the file again"):
            self._reader = gguf.GGUFReader(file)
        self._types = gguf.GGMLQuantizationType

    def get_value(self, key: str) -> Any:
        """Return the value of a key; None if missing."""
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    @property
    def architecture(self) -> str:
        return str(self.get_value("general.architecture"))

    @cached_property
    def tokens(self) -> list[str]:
        return self.get_value("tokenizer.ggml.tokens") or []

    @property
    def end_token_ids(self) -> list[int]:
        """Ids of the token that ends a sequence and, if different, the token that ends a turn."""
        found = [self.get_value(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot")]
        return list(dict.fromkeys(int(end) for end in found if end is not None))

    @property
    def dtype(self) -> torch.dtype:
        """Smallest dtype that represents all unquantised matrices exactly."""
        types = {tensor.tensor_type for tensor in self._reader.tensors if len(tensor.shape) > 1}
        exact = {self._types[name] for name in _LOSSLESS_TYPES}
        return torch.float32 if types & exact else torch.bfloat16

    def get_tensor(self, name: str) -> np.ndarray | None:
        """Return an unquantised tensor by name; None if missing."""
        return next((t.data for t in self._reader.tensors if t.name == name), None)


# -- weights -----------------------------------------------------------------------------------


def _load_gguf_model(header: GgufHeader) -> Any:
    from transformers import GgufConfig

    folder, file = header.file.parent, {"gguf_file": header.file.name}
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, **file)
        _complete_rope_scaling(config, header)
        model, loading_info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=header.dtype,
            quantization_config=GgufConfig(dequantize=True),
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **file,
        )
    except UserError:
        raise
    except READ_ERRORS as error:
        raise UserError(_describe_unreadable(header, error)) from error
    if missing := sorted(
        {*loading_info["missing_keys"], *(key[0] for key in loading_info["mismatched_keys"])}
    ):
        raise UserError(
            f"{header.file} lacks the tensor {missing[0]}, or has it in another shape: "
            f"{_USE_SOURCE_ADVICE}."
        )
    model.name_or_path = model.config.name_or_path = ""  # other files of its folder are not copied
    return model


def _describe_unreadable(header: GgufHeader, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0].rstrip(".")
    if "not supported" in reason or "architecture" in reason:
        return (
            f"{header.file} has the architecture '{header.architecture}', which transformers does"
            f" not read from GGUF: {_USE_SOURCE_ADVICE}."
        )
    return f"{header.file} cannot be read ({reason or type(error).__name__}): {_USE_SOURCE_ADVICE}."


def _complete_rope_scaling(config: Any, header: GgufHeader) -> None:
    """Set the rotary scaling. Raises UserError if it cannot be determined from the file."""
    factors = header.get_tensor("rope_freqs.weight")
    if factors is not None:
        config.rope_parameters = _infer_llama3_scaling(config, np.asarray(factors), header)
        return
    scaling = header.get_value(f"{header.architecture}.rope.scaling.type") or "none"
    known = (config.rope_parameters or {}).get("rope_type", "default") != "default"
    has_longrope_factors = any(
        header.get_tensor(f"rope_factors_{n}.weight") is not None for n in ("long", "short")
    )
    if has_longrope_factors or (scaling != "none" and not known):
        raise UserError(
            f"{header.file} has rotary scaling ({scaling}), which transformers does not read from"
            f" GGUF: {_USE_SOURCE_ADVICE}."
        )


def _infer_llama3_scaling(config: Any, factors: np.ndarray, header: GgufHeader) -> dict[str, Any]:
    """Return the rotary scaling of Llama 3.1 and related models, inferred from the resulting
    factors, which are all that the file contains."""
    parameters = dict(config.rope_parameters)
    for factor in (8.0, 16.0, 32.0):
        scaling = {
            "rope_type": "llama3",
            "rope_theta": parameters["rope_theta"],
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        if np.allclose(compute_llama3_factors(scaling, 2 * len(factors)), factors, rtol=1e-3):
            return scaling
    raise UserError(
        f"{header.file} has custom rotary frequencies (rope_freqs), which transformers does not"
        f" read from GGUF: {_USE_SOURCE_ADVICE}."
    )


def compute_llama3_factors(scaling: dict[str, Any], head_dim: int) -> list[float]:
    """Return the divisors of the rotary frequencies under Llama 3's scaling, for a head with
    `head_dim` dimensions."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factors = []
    for dimension in range(0, head_dim, 2):
        wavelength = 2 * math.pi * scaling["rope_theta"] ** (dimension / head_dim)
        turns = scaling["original_max_position_embeddings"] / wavelength
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return factors


# -- tokenizer ---------------------------------------------------------------------------------


def _load_gguf_tokenizer(header: GgufHeader) -> Any:
    """Return the tokenizer in the file's folder if there is one, else the embedded one."""
    folder = header.file.parent
    has_tokenizer_file = (folder / "tokenizer.json").exists()
    tokenizer = load_tokenizer(folder) if has_tokenizer_file else _load_embedded_tokenizer(header)
    _require_same_tokens(header, tokenizer)
    if tokenizer.chat_template is None:
        tokenizer.chat_template = header.get_value("tokenizer.chat_template")
    tokenizer.name_or_path = tokenizer.name_or_path if has_tokenizer_file else ""
    return tokenizer


def _load_embedded_tokenizer(header: GgufHeader) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            header.file.parent,
            gguf_file=header.file.name,
            local_files_only=True,
            trust_remote_code=False,
        )
    except READ_ERRORS as error:
        raise UserError(_describe_unreadable(header, error)) from error
    if header.get_value("tokenizer.ggml.model") == "gpt2":
        _complete_pre_tokenizer(header, tokenizer.backend_tokenizer)
    return tokenizer


def _complete_pre_tokenizer(header: GgufHeader, backend: Any) -> None:
    """Set the pre-tokenizer of a byte-level tokenizer that was loaded with GPT-2's, if the file
    specifies a different one. Raises UserError if that one is not known."""
    is_configured = json.loads(backend.to_str())["pre_tokenizer"]["type"] != "ByteLevel"
    pre_tokenizer = header.get_value("tokenizer.ggml.pre")
    if is_configured or pre_tokenizer in _GPT2_PRE_TOKENIZERS:
        return
    if pre_tokenizer not in _DIGIT_PRE_TOKENIZERS:
        raise UserError(
            f"{header.file} does not specify a known pre-tokenizer (tokenizer.ggml.pre is"
            f" {pre_tokenizer!r}): copy tokenizer.json and tokenizer_config.json of the model that"
            " it was made from to its folder."
        )
    digits = pre_tokenizers.Digits(individual_digits=True)
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, plain])


def _require_same_tokens(header: GgufHeader, tokenizer: Any) -> None:
    """Raise UserError if a tokenizer has different tokens than the file. Only alphabetic tokens are
    compared, because the spelling of others varies."""
    tokens: Sequence[str | None] = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    pairs = enumerate(zip(header.tokens, tokens, strict=False))
    differing = (number for number, (own, other) in pairs if own.isalpha() and own != other)
    number = len(header.tokens) if len(tokenizer) > len(header.tokens) else next(differing, None)
    if number is not None:
        raise UserError(
            f"the tokenizer next to {header.file} belongs to another model, because token {number}"
            " differs: remove it, or replace it with the tokenizer of the model that the"
            f" {GGUF_SUFFIX} file was made from."
        )
